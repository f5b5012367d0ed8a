//! A bar on stderr for work that takes long. Where stderr is not a terminal there is none.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(500);

pub struct Progress {
    bar: ProgressBar,
    since: Instant,
}

impl Progress {
    pub fn new(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}% {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        Self { bar, since: Instant::now() }
    }

    /// Of one part of the work, as all parts were of one size.
    pub fn part(&self, number: usize, count: usize) -> impl FnMut(u64, u64) -> ControlFlow<()> + '_ {
        const STEPS: u64 = 1000;
        move |done, total| {
            let done = number as u64 * STEPS + done * STEPS / total.max(1);
            self.report(done, count as u64 * STEPS)
        }
    }

    pub fn report(&self, done: u64, total: u64) -> ControlFlow<()> {
        if self.since.elapsed() >= PATIENCE {
            self.bar.set_length(total);
            self.bar.set_position(done);
        }
        ControlFlow::Continue(())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
