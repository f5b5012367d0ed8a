//! Tasks over threads: those of the rayon pool that the caller is in, or the caller's alone.
//!
//! Which thread takes which task, and when, is left open; a task writes rows of its own, and nothing it computes
//! depends on the others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::spare::Buffers;
use crate::call::Progress;
use crate::error::Error;
use crate::simd::FloatEnvironment;

/// How often progress is reported while the caller's thread waits for others.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Runs `total` tasks on up to `threads` threads, each with buffers that its thread keeps. One thread is the caller's own: then
/// no other is woken, nor a pool started.
///
/// # Errors
/// [`Error::Cancelled`] if progress asked to stop; tasks begun are finished.
pub(crate) fn each<Task: Send, Scratch: 'static>(
    (total, tasks): (usize, impl Iterator<Item = Task> + Send),
    threads: usize,
    progress: &mut Option<&mut Progress<'_>>,
    buffers: Buffers<impl Fn() -> Scratch + Sync>,
    run: impl Fn(&mut Scratch, Task) + Sync,
) -> Result<(), Error> {
    let board = Board { total: total as u64, done: AtomicU64::new(0), cancelled: AtomicBool::new(false) };
    // Also before the first task and after the last, so that the shortest call is seen and can be cancelled.
    if total > 0 {
        board.report(progress);
    }
    let work =
        |scratch: &mut Scratch, next: &mut dyn FnMut() -> Option<Task>, after_each: &mut dyn FnMut()| {
            let _environment = FloatEnvironment::enter();
            while !board.cancelled.load(Ordering::Relaxed)
                && let Some(task) = next()
            {
                run(scratch, task);
                board.done.fetch_add(1, Ordering::Relaxed);
                after_each();
            }
        };
    let threads = threads.min(total);
    if threads <= 1 {
        let mut tasks = tasks;
        buffers.lend(|scratch| work(scratch, &mut || tasks.next(), &mut || board.report(progress)));
        return board.result();
    }
    let queue = Mutex::new(tasks);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = |after_each: &mut dyn FnMut()| work(&mut (buffers.new)(), &mut || next(), after_each);
    if rayon::current_thread_index().is_some() {
        // The caller's thread belongs to the pool: waiting would take a worker away, so it works too.
        rayon::in_place_scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|_| work(&mut || ()));
            }
            work(&mut || board.report(progress));
        });
    } else {
        // Nothing is ever sent: the channel closes when the last worker is done, even by a panic.
        let (at_work, all_done) = mpsc::channel::<()>();
        let work = &work;
        rayon::in_place_scope(|scope| {
            for _ in 0..threads {
                let at_work = at_work.clone();
                scope.spawn(move |_| {
                    work(&mut || ());
                    drop(at_work);
                });
            }
            drop(at_work);
            while progress.is_some() && all_done.recv_timeout(REPORT_EVERY) == Err(RecvTimeoutError::Timeout)
            {
                board.report(progress);
            }
        });
    }
    board.report(progress);
    board.result()
}

/// How far the tasks are.
struct Board {
    total: u64,
    done: AtomicU64,
    cancelled: AtomicBool,
}

impl Board {
    fn result(&self) -> Result<(), Error> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn report(&self, progress: &mut Option<&mut Progress<'_>>) {
        let Some(progress) = progress else { return };
        if self.cancelled.load(Ordering::Relaxed) {
            return;
        }
        if progress(self.done.load(Ordering::Relaxed), self.total).is_break() {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }
}
