//! Long calls say how far they are, on the caller's own thread, and stop when they are told to.

mod support;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use qkv::{Attention, Error, Path, Region, Stage};
use support::{grids, same_bits, views};

const FAST: [Path; 2] = [Path::Prefill, Path::Decode];

/// Holds up the workers until progress was reported: then a call is never over too soon to be asked about. The
/// caller's own thread, which has to do the reporting, is not held up.
struct Gate {
    open: AtomicBool,
    caller: thread::ThreadId,
}

impl Gate {
    fn new() -> Self {
        Self { open: AtomicBool::new(false), caller: thread::current().id() }
    }

    fn pass(&self) {
        // A bound, so that a call that never reports fails the test instead of hanging it.
        let patience = Instant::now() + Duration::from_secs(20);
        while thread::current().id() != self.caller
            && !self.open.load(Ordering::Relaxed)
            && Instant::now() < patience
        {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Calls in each way that takes progress, and hands on what was reported.
fn watched(path: Path, stop: bool, check: impl Fn(&str, &[(u64, u64)], Option<Error>)) {
    let arrays = grids::<f32>([&[2, 2, 150, 8], &[2, 1, 300, 8], &[2, 1, 300, 8]]);
    let plain = Attention::new().path(path);
    let forward = || plain.forward(arrays[0].view(), arrays[1].view(), arrays[2].view()).unwrap();
    let want = forward();
    for kind in ["run", "weights", "run_into", "scores", "trace", "trace_head", "partial"] {
        let gate = Gate::new();
        let wait = |_: &Region, _: &mut [bool]| gate.pass();
        let attention = Attention::new().path(path).mask_fn(&wait);
        let mut reports = Vec::new();
        let caller = thread::current().id();
        let mut report = |done: u64, total: u64| {
            assert_eq!(thread::current().id(), caller);
            reports.push((done, total));
            gate.open.store(true, Ordering::Relaxed);
            if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let [q, k, v] = views(&arrays);
        let call = attention.call(q, k, v).progress(&mut report);
        let result = match kind {
            "run" => call.run().map(drop),
            "weights" => call.lse().weights().run().map(drop),
            "run_into" => call.run_into(arrays[0].clone().view_mut()).map(drop),
            "scores" => call.scores(Stage::Masked).map(drop),
            "trace" => call.trace().map(drop),
            // More rows than a block has.
            "trace_head" => call.trace_head((1, 0), 2..140).map(drop),
            _ => call.partial().map(drop),
        };
        check(&format!("{kind} by {path}"), &reports, result.err());
        // What was stopped leaves nothing behind.
        same_bits("afterwards", forward().view(), want.view());
    }
}

fn reports(path: Path) {
    watched(path, false, |what, reports, error| {
        assert_eq!(error, None, "{what}");
        assert!(!reports.is_empty(), "{what}: no report");
        assert!(reports.iter().all(|(done, total)| done <= total && *total > 0), "{what}: {reports:?}");
    });
}

fn stops(path: Path) {
    watched(path, true, |what, reports, error| {
        assert_eq!(error, Some(Error::Cancelled), "{what}");
        let (done, total) = *reports.last().unwrap();
        assert!(done < total, "{what}: all was done");
    });
}

fn in_pool(threads: usize, then: impl Fn() + Send + Sync) {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(then);
}

#[test]
fn progress_is_reported_on_the_callers_thread_outside_a_pool() {
    for path in FAST {
        reports(path);
    }
}

#[test]
fn progress_is_reported_on_the_callers_thread_inside_a_pool() {
    for threads in [1, 2, 5] {
        in_pool(threads, || FAST.into_iter().for_each(reports));
    }
}

#[test]
fn a_call_stops_when_it_is_told_to_outside_a_pool() {
    for path in FAST {
        stops(path);
    }
}

#[test]
fn a_call_stops_when_it_is_told_to_inside_a_pool() {
    for threads in [1, 2, 5] {
        in_pool(threads, || FAST.into_iter().for_each(stops));
    }
}

#[test]
fn progress_never_goes_back_within_a_stage_and_changes_no_bit() {
    let arrays = grids::<f32>([&[1, 2, 200, 8], &[1, 2, 300, 8], &[1, 2, 300, 8]]);
    let [q, k, v] = views(&arrays);
    let attention = Attention::new();
    let want = attention.forward(q.clone(), k.clone(), v.clone()).unwrap();
    let mut last = 0;
    let mut report = |done: u64, _| {
        assert!(done >= last);
        last = done;
        ControlFlow::Continue(())
    };
    let got = attention.call(q, k, v).progress(&mut report).run().unwrap().output;
    same_bits("with progress", got.view(), want.view());
}

#[test]
fn a_call_with_nothing_to_do_needs_no_report() {
    let arrays = grids::<f32>([&[1, 2, 0, 8], &[1, 2, 3, 8], &[1, 2, 3, 8]]);
    let [q, k, v] = views(&arrays);
    let mut reports = 0;
    let mut stop = |_, _| {
        reports += 1;
        ControlFlow::Break(())
    };
    let output = Attention::new().call(q, k, v).progress(&mut stop).run().unwrap().output;
    assert_eq!((output.shape(), reports), (&[1, 2, 0, 8][..], 0));
}
