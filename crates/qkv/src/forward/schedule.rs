//! Tasks over threads: those of the rayon pool that the caller is in.
//!
//! Which thread takes which task, and when, is left open; a task writes rows of its own, and nothing it computes
//! depends on the others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::attention::Progress;
use crate::error::Error;
use crate::simd::FloatEnvironment;

/// How often progress is reported while the caller's thread waits for others.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Runs `total` tasks, each with a scratch that its thread keeps.
///
/// # Errors
/// [`Error::Cancelled`] if progress asked to stop; tasks begun are finished.
pub(crate) fn each<Task: Send, Scratch>(
    (total, tasks): (usize, impl Iterator<Item = Task> + Send),
    progress: &mut Option<&mut Progress<'_>>,
    new_scratch: impl Fn() -> Scratch + Sync,
    run: impl Fn(&mut Scratch, Task) + Sync,
) -> Result<(), Error> {
    let board = Board { total: total as u64, done: AtomicU64::new(0), cancelled: AtomicBool::new(false) };
    let queue = Mutex::new(tasks);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = |after_each: &mut dyn FnMut()| {
        let _environment = FloatEnvironment::enter();
        let mut scratch = new_scratch();
        while !board.cancelled.load(Ordering::Relaxed)
            && let Some(task) = next()
        {
            run(&mut scratch, task);
            board.done.fetch_add(1, Ordering::Relaxed);
            after_each();
        }
    };
    // Also before the first task and after the last, so that the shortest call is seen and can be cancelled.
    if total > 0 {
        board.report(progress);
    }
    let threads = rayon::current_num_threads().min(total);
    if threads <= 1 {
        work(&mut || board.report(progress));
    } else if rayon::current_thread_index().is_some() {
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
    if threads > 1 {
        board.report(progress);
    }
    if board.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
}

/// How far the tasks are.
struct Board {
    total: u64,
    done: AtomicU64,
    cancelled: AtomicBool,
}

impl Board {
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
