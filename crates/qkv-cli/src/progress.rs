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
