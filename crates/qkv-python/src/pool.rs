//! Threads: where a call runs while Python runs on.
//!
//! The package has pools of its own, so that a forked child, where no thread of its parent's is alive, can make new ones.

use std::ops::ControlFlow;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use qkv::{Error, Progress};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::Stop;

/// How often Python is asked whether to stop.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// More threads than any machine has cores only get in each other's way.
const MOST_THREADS: usize = 1024;
/// Pools that are kept, so that calls with `threads` of their own need not start them each time.
const MOST_POOLS: usize = 4;

/// Locked only by threads that are attached to Python, and never while they let go of it: so a fork, which Python makes only while
/// it is attached, finds it open.
static POOLS: Mutex<Pools> = Mutex::new(Pools { process: 0, wanted: 0, pools: Vec::new() });

struct Pools {
    /// Whose threads they are.
    process: u32,
    /// How many threads a call has that does not say; 0 is one for each core.
    wanted: usize,
    /// By how many threads were asked for; the one used last is last.
    pools: Vec<(usize, Arc<ThreadPool>)>,
}

impl Pools {
    fn get(&mut self, threads: Option<usize>) -> PyResult<Arc<ThreadPool>> {
        if self.process != process::id() {
            // The parent's threads are not here, and its pools would wait for them.
            self.pools.drain(..).for_each(|(_, pool)| std::mem::forget(pool));
            self.process = process::id();
        }
        let threads = threads.unwrap_or(self.wanted);
        let known = self.pools.iter().position(|(own, _)| *own == threads);
        let pool = match known {
            Some(place) => self.pools.remove(place).1,
            None => {
                let pool = ThreadPoolBuilder::new().num_threads(threads).build();
                let message = |error| format!("threads: cannot start {threads} of them: {error}");
                Arc::new(pool.map_err(|error| PyRuntimeError::new_err(message(error)))?)
            }
        };
        if self.pools.len() == MOST_POOLS {
            self.pools.remove(0);
        }
        self.pools.push((threads, pool.clone()));
        Ok(pool)
    }
}

fn pools(_py: Python<'_>) -> std::sync::MutexGuard<'static, Pools> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number of threads that can be asked for.
///
/// # Errors
/// If it is 0 or more than any machine has.
pub fn checked(argument: &str, threads: i64) -> PyResult<usize> {
    match usize::try_from(threads) {
        Ok(threads) if (1..=MOST_THREADS).contains(&threads) => Ok(threads),
        _ => Err(PyValueError::new_err(format!("{argument}: got {threads}, want 1 to {MOST_THREADS}"))),
    }
}

/// Sets how many threads calls have that do not say.
pub fn set_wanted(py: Python<'_>, threads: usize) {
    pools(py).wanted = threads;
}

/// How many threads calls have that do not say.
pub fn wanted(py: Python<'_>) -> PyResult<usize> {
    Ok(pools(py).get(None)?.current_num_threads())
}

/// Runs work on this thread, which is not attached to Python meanwhile. For what asks for no other thread.
pub fn here<R: Send>(py: Python<'_>, work: impl FnOnce() -> Result<R, Error> + Send) -> Result<R, Stop> {
    py.detach(work).map_err(Stop::Error)
}

/// Runs a call on the pool's threads; a signal's handler that raises, as of Ctrl-C, cancels it.
pub fn across<R: Send>(
    py: Python<'_>,
    threads: Option<usize>,
    work: impl FnOnce(&mut Progress<'_>) -> Result<R, Error> + Send,
) -> Result<R, Stop> {
    let result = watched(py, threads, |cancelled| {
        work(&mut |_, _| match cancelled.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    });
    result.map_err(Stop::Python)?.map_err(Stop::Error)
}

/// Runs work on the pool's threads, while this one waits for it and, now and then, lets Python handle signals. Once one raises,
/// the work is told to stop.
pub fn watched<R: Send>(
    py: Python<'_>,
    threads: Option<usize>,
    work: impl FnOnce(&AtomicBool) -> R + Send,
) -> PyResult<R> {
    let pool = pools(py).get(threads)?;
    let cancelled = AtomicBool::new(false);
    let mut interrupt = None;
    let result = py.detach(|| {
        let (done, wait) = mpsc::sync_channel(1);
        let cancelled = &cancelled;
        pool.in_place_scope(|scope| {
            scope.spawn(move |_| {
                // The waiting thread is there until the scope ends.
                let _ = done.send(work(cancelled));
            });
            loop {
                match wait.recv_timeout(ASK_EVERY) {
                    Ok(result) => return Some(result),
                    // The work has panicked; the scope goes on with that.
                    Err(RecvTimeoutError::Disconnected) => return None,
                    Err(RecvTimeoutError::Timeout) if interrupt.is_none() => {
                        interrupt = Python::attach(|py| py.check_signals()).err();
                        cancelled.store(interrupt.is_some(), Ordering::Relaxed);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
            }
        })
    });
    match (interrupt, result) {
        (Some(interrupt), _) => Err(interrupt),
        (None, Some(result)) => Ok(result),
        (None, None) => unreachable!("a scope resumes its tasks' panics"),
    }
}
