//! Tasks over threads: those of the rayon pool that the caller is in, or the caller's alone.
//!
//! Which thread takes which task, and when, is left open: a task writes what is its own, or its [`Source`] hands it out when
//! those are done that it follows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::spare::Buffers;
use crate::call::Progress;
use crate::error::Error;
use crate::simd::FloatEnvironment;

/// How often progress is reported while the caller's thread waits for others.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Where tasks come from.
pub(crate) trait Source: Send {
    type Task;

    /// One that may begin, and its number.
    fn next(&mut self) -> Option<(usize, Self::Task)>;

    /// How many more may begin now, where that depends on tasks that are done.
    fn ready(&self) -> usize;

    /// A task is done.
    fn done(&mut self, number: usize);
}

impl<Tasks: Iterator + Send> Source for Tasks {
    type Task = Tasks::Item;

    fn next(&mut self) -> Option<(usize, Self::Task)> {
        Iterator::next(self).map(|task| (0, task))
    }

    fn ready(&self) -> usize {
        0
    }

    fn done(&mut self, _: usize) {}
}

/// Runs `total` tasks on up to `threads` threads, each with buffers that its thread keeps. One thread is the caller's own: then
/// no other is woken, nor a pool started.
///
/// # Errors
/// [`Error::Cancelled`] if progress asked to stop; tasks begun are finished.
pub(crate) fn each<Tasks: Source, Scratch: 'static>(
    (total, mut tasks): (usize, Tasks),
    threads: usize,
    progress: &mut Option<&mut Progress<'_>>,
    buffers: Buffers<impl Fn() -> Scratch + Sync>,
    run: impl Fn(&mut Scratch, Tasks::Task) + Sync,
) -> Result<(), Error> {
    let board = Board { total: total as u64, done: AtomicU64::new(0), cancelled: AtomicBool::new(false) };
    let mut report = || board.report(progress);
    // Also before the first task and after the last, so that the shortest call is seen and can be cancelled.
    if total > 0 {
        report();
    }
    let threads = threads.min(total);
    if threads <= 1 {
        let next = |done: Option<usize>| {
            done.into_iter().for_each(|number| tasks.done(number));
            tasks.next().map_or(Next::Never, |(number, task)| Next::Task(number, task))
        };
        buffers.lend(|scratch| board.work(scratch, &run, next, report));
        return board.result();
    }
    let queue = Mutex::new(Queue { tasks, begun: 0, workers: threads });
    let crew = Crew { board: &board, queue, changed: Condvar::new(), threads, new: buffers.new, run };
    if rayon::current_thread_index().is_some() {
        // The caller's thread belongs to the pool: waiting would take a worker away, so it works too.
        rayon::in_place_scope(|scope| {
            for _ in 1..threads {
                crew.add_worker(scope, None);
            }
            crew.work(scope, None, Some(&mut report));
        });
    } else {
        // Nothing is ever sent: the channel closes when the last worker is done, even by a panic.
        let (at_work, all_done) = mpsc::channel::<()>();
        let crew = &crew;
        rayon::in_place_scope(|scope| {
            for _ in 0..threads {
                crew.add_worker(scope, Some(at_work.clone()));
            }
            drop(at_work);
            while all_done.recv_timeout(REPORT_EVERY) == Err(RecvTimeoutError::Timeout) {
                report();
            }
        });
    }
    report();
    board.result()
}

/// What is left to do.
struct Queue<Tasks> {
    tasks: Tasks,
    begun: u64,
    workers: usize,
}

/// What a worker does next.
enum Next<Task> {
    Task(usize, Task),
    /// Look again: another may begin later.
    Later,
    Never,
}

/// Several threads at the tasks of a queue.
///
/// One that finds none that may begin leaves, and who finishes tasks calls others in when more can begin: a worker that waited
/// might wait for a task that lies below it on its own stack, where a closure of the user's has turned to rayon. The caller alone
/// may wait, and so can report all the time: whatever it waits for began after it, so callers do not wait in a circle.
struct Crew<'c, Tasks, New, Run> {
    board: &'c Board,
    queue: Mutex<Queue<Tasks>>,
    /// More tasks may begin, or none will.
    changed: Condvar,
    threads: usize,
    new: New,
    run: Run,
}

impl<Tasks, Scratch, New, Run> Crew<'_, Tasks, New, Run>
where
    Tasks: Source,
    New: Fn() -> Scratch + Sync,
    Run: Fn(&mut Scratch, Tasks::Task) + Sync,
{
    fn add_worker<'s>(&'s self, scope: &rayon::Scope<'s>, at_work: Option<mpsc::Sender<()>>) {
        scope.spawn(move |scope| self.work(scope, at_work, None));
    }

    /// Works until no task may begin; the caller, who reports, until all have begun. The sender is dropped by the last who works.
    fn work<'s>(
        &'s self,
        scope: &rayon::Scope<'s>,
        at_work: Option<mpsc::Sender<()>>,
        report: Option<&mut dyn FnMut()>,
    ) {
        let is_caller = report.is_some();
        let next = |done: Option<usize>| {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            done.into_iter().for_each(|number| queue.tasks.done(number));
            let Some((number, task)) = queue.tasks.next() else {
                if is_caller && queue.begun < self.board.total {
                    drop(self.changed.wait_timeout(queue, REPORT_EVERY));
                    return Next::Later;
                }
                queue.workers -= 1;
                return Next::Never;
            };
            queue.begun += 1;
            let more = queue.tasks.ready().min(self.threads - queue.workers);
            queue.workers += more;
            if queue.tasks.ready() > 0 || queue.begun == self.board.total {
                self.changed.notify_one();
            }
            drop(queue);
            (0..more).for_each(|_| self.add_worker(scope, at_work.clone()));
            Next::Task(number, task)
        };
        let mut nothing = || ();
        self.board.work(&mut (self.new)(), &self.run, next, report.unwrap_or(&mut nothing));
    }
}

/// How far the tasks are.
struct Board {
    total: u64,
    done: AtomicU64,
    cancelled: AtomicBool,
}

/// After a panic in a task those that wait for it would not begin, so nobody waits for them.
struct CancelIfUnwinding<'b>(&'b Board);

impl Drop for CancelIfUnwinding<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.cancelled.store(true, Ordering::Relaxed);
        }
    }
}

impl Board {
    /// Runs tasks until there is none; `next` is told which was done.
    fn work<Scratch, Task>(
        &self,
        scratch: &mut Scratch,
        run: &impl Fn(&mut Scratch, Task),
        mut next: impl FnMut(Option<usize>) -> Next<Task>,
        mut report: impl FnMut(),
    ) {
        let _environment = FloatEnvironment::enter();
        let _unwinding = CancelIfUnwinding(self);
        let mut done = None;
        while !self.cancelled.load(Ordering::Relaxed) {
            match next(done.take()) {
                Next::Task(number, task) => {
                    run(scratch, task);
                    done = Some(number);
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                Next::Later => {}
                Next::Never => return,
            }
            report();
        }
    }

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
