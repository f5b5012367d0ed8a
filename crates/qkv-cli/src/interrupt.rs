//! Ctrl-C: ends the command at once with status 130, and never in the middle of a file.
//!
//! While a file is being written, the writer is asked to stop instead; it takes its temporary file away first.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use anyhow::Context;

/// The exit status after Ctrl-C.
pub const STATUS: u8 = 130;

const COMPUTING: u8 = 0;
const WRITING: u8 = 1;
const INTERRUPTED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(COMPUTING);

/// What a command that was stopped while writing fails with.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Sets what Ctrl-C does.
pub fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if STATE.swap(INTERRUPTED, Ordering::SeqCst) == COMPUTING {
            std::process::exit(STATUS.into());
        }
    })
    .context("cannot listen for Ctrl-C")
}

/// Runs what writes a file; it is handed the question whether to stop.
pub fn while_writing<R>(write: impl FnOnce(&dyn Fn() -> bool) -> R) -> anyhow::Result<R> {
    if STATE.compare_exchange(COMPUTING, WRITING, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        // The handler's thread is about to end the process.
        loop {
            thread::park();
        }
    }
    let result = write(&|| STATE.load(Ordering::SeqCst) == INTERRUPTED);
    match STATE.compare_exchange(WRITING, COMPUTING, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => Ok(result),
        Err(_) => Err(Interrupted.into()),
    }
}
