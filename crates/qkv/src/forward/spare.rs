//! A kernel's buffers, and where they wait for a thread's next call.
//!
//! The engine's only state: memory, never numbers. A kernel already takes buffers as the task before left them, so it does
//! not matter whether that task was another call's.

use std::any::Any;
use std::cell::Cell;

/// Larger buffers are not kept: their work takes longer than getting them, and a thread should not hold much. Dimensions up
/// to 128 in f32 are within it, whatever the lengths of a small call.
const KEPT_BYTES: usize = 1 << 19;

thread_local! {
    /// Those of the thread's last small call, while no call of this thread uses them.
    static SPARE: Cell<Option<Spare>> = const { Cell::new(None) };
}

struct Spare {
    sizes: Sizes,
    buffers: Box<dyn Any>,
}

/// All that the sizes of a kernel's buffers depend on; 0 for what does not matter to it.
pub(crate) type Sizes = [usize; 4];

/// How a thread comes by its buffers.
pub(crate) struct Buffers<New> {
    /// With how many bytes they take at most; nothing where they are not worth keeping.
    pub(crate) kept: Option<(Sizes, usize)>,
    pub(crate) new: New,
}

impl<B: 'static, New: Fn() -> B> Buffers<New> {
    /// Lends the spare buffers if they have the sizes wanted, else new ones, and keeps them for the next call.
    ///
    /// If `work` panics they are gone, whatever it left in them.
    pub(crate) fn lend(&self, work: impl FnOnce(&mut B)) {
        let Some((sizes, _)) = self.kept.filter(|&(_, bytes)| bytes <= KEPT_BYTES) else {
            return work(&mut (self.new)());
        };
        // A thread that is about to end has no place for them any more.
        let spare = SPARE.try_with(Cell::take).ok().flatten().filter(|spare| spare.sizes == sizes);
        let mut buffers = match spare.map(|spare| spare.buffers.downcast::<B>()) {
            Some(Ok(buffers)) => buffers,
            _ => Box::new((self.new)()),
        };
        work(&mut buffers);
        let _ = SPARE.try_with(|place| place.set(Some(Spare { sizes, buffers })));
    }
}
