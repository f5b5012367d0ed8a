//! An allocator that counts, for tests of memory; the only `unsafe` of the tests, since there is no allocator without.
#![allow(dead_code)] // each test file takes its part

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// To be made the `#[global_allocator]` of a test's file.
pub struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static COUNT_OF_THREAD: Cell<usize> = const { Cell::new(0) };
}

/// What a closure takes.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// At most, beyond what was there before.
    pub peak_bytes: usize,
    /// Allocations of all threads.
    pub count: usize,
    /// Of the calling one.
    pub count_of_thread: usize,
}

/// Measures one closure. The peak is right only while no other is measured.
pub fn measured<R>(run: impl FnOnce() -> R) -> (R, Taken) {
    let before = NOW.load(Ordering::Relaxed);
    let (count, count_of_thread) = (COUNT.load(Ordering::Relaxed), COUNT_OF_THREAD.get());
    PEAK.store(before, Ordering::Relaxed);
    let result = run();
    let taken = Taken {
        peak_bytes: PEAK.load(Ordering::Relaxed) - before,
        count: COUNT.load(Ordering::Relaxed) - count,
        count_of_thread: COUNT_OF_THREAD.get() - count_of_thread,
    };
    (result, taken)
}

fn take(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    COUNT_OF_THREAD.set(COUNT_OF_THREAD.get() + 1);
}

// SAFETY: all is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(start, layout) }
    }
}
