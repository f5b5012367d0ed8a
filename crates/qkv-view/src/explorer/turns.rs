//! Who computes next: questions of a reader before what is done in the background, and one at a time, as each takes all threads.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    taken: bool,
    /// Questions that wait.
    questions: usize,
}

/// A turn, until it is dropped.
pub(super) struct Turn<'t>(&'t Turns);

impl Turns {
    /// For a question.
    pub fn question(&self) -> Turn<'_> {
        let mut state = self.lock();
        state.questions += 1;
        let mut state = self.wait(state, |state| state.taken);
        state.questions -= 1;
        state.taken = true;
        Turn(self)
    }

    /// For a piece of work that can wait.
    pub fn background(&self) -> Turn<'_> {
        let mut state = self.wait(self.lock(), |state| state.taken || state.questions > 0);
        state.taken = true;
        Turn(self)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'t>(&self, state: MutexGuard<'t, State>, busy: impl Fn(&State) -> bool) -> MutexGuard<'t, State> {
        self.changed.wait_while(state, |state| busy(state)).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().taken = false;
        self.0.changed.notify_all();
    }
}
