//! `qkv bench`: how fast the engine is on named cases, beside what the machine allows, all measured in one process.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use qkv::machine::{FmaLoop, ReadBuffer};
use qkv::{Element, Error, Generator, Simd, bf16, f16};
use qkv_view::show;
use serde_json::json;

use crate::cases::{CASES, Case, Type, Work};
use crate::machine::{self, Threads};
use crate::options::parse_at_least_one;
use crate::progress::Progress;
use crate::terminal::Terminal;

/// Short calls are repeated for so long in each round.
const ROUND: Duration = Duration::from_millis(20);
/// Columns of a bar for the whole limit.
const BAR: usize = 20;

#[derive(Args, Debug)]
pub struct Arguments {
    /// What to measure, by the names of --list; none: everything
    #[arg(value_name = "CASE")]
    cases: Vec<String>,

    /// Print the cases and measure nothing
    #[arg(long, conflicts_with_all = ["cases", "json"])]
    list: bool,

    /// How often each case is measured; the median counts
    #[arg(long, value_name = "N", default_value = "3", value_parser = parse_at_least_one)]
    rounds: usize,

    /// Threads; by default one for each core
    #[arg(long, value_name = "N", value_parser = parse_at_least_one)]
    threads: Option<usize>,

    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn cases(&self) -> anyhow::Result<Vec<&'static Case>> {
        let find = |name: &String| {
            let names = || CASES.iter().map(|case| case.name).collect::<Vec<_>>().join(", ");
            let case = CASES.iter().find(|case| case.name == name);
            case.ok_or_else(|| anyhow!("CASE: got {name:?}, want one of {}", names()))
        };
        if self.cases.is_empty() { Ok(CASES.iter().collect()) } else { self.cases.iter().map(find).collect() }
    }
}

/// What the machine does at most, in flops and bytes a second.
#[derive(Clone, Copy)]
struct Limits {
    fma: f64,
    read: f64,
}

impl Limits {
    /// The shortest time for the work in seconds, and whether arithmetic or memory makes it so long.
    fn seconds(&self, work: &Work) -> (f64, &'static str) {
        let (compute, memory) = (work.flops / self.fma, work.bytes / self.read);
        if compute >= memory { (compute, "compute") } else { (memory, "memory") }
    }
}

/// A case and what came of it.
struct Measured {
    name: &'static str,
    seconds: f64,
    gflops: f64,
    gbps: f64,
    /// The shortest time by the limits of the same round, as a share of the measured one.
    of_limit: f64,
    limited_by: &'static str,
}

/// Always passes: being slow is no failure.
pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    if arguments.list {
        list(terminal)?;
        return Ok(true);
    }
    let cases = arguments.cases()?;
    let simd = machine::simd_from_environment()?.unwrap_or_else(Simd::best);
    let threads = Threads::new(arguments.threads)?;
    let machine = threads.run(|| Machine::new(simd))?;
    let limits = threads.run(|| machine.best());
    if !arguments.json {
        print_limits((simd, threads.count()), &limits, arguments.rounds, terminal)?;
    }

    let most = cases.iter().map(|case| case.numbers()).max().unwrap_or(0);
    let drawn = Generator::new(0).randn(&[most])?.into_raw_vec_and_offset().0;
    let bench = Bench { drawn, machine, simd, rounds: arguments.rounds };
    let mut measured = Vec::new();
    for case in cases {
        let (seconds, of_limit) = threads.run(|| bench.measure(case))?;
        let work = case.work();
        let (_, limited_by) = limits.seconds(&work);
        let (gflops, gbps) = (work.flops / seconds / 1e9, work.bytes / seconds / 1e9);
        let line = Measured { name: case.name, seconds, gflops, gbps, of_limit, limited_by };
        if !arguments.json {
            print_line(&line, terminal)?;
        }
        measured.push(line);
    }
    if arguments.json {
        print_json((simd, threads.count()), &limits, &measured, terminal)?;
    }
    Ok(true)
}

/// The machine, to be measured.
struct Machine {
    fma: FmaLoop,
    buffer: ReadBuffer,
}

impl Machine {
    fn new(simd: Simd) -> Result<Self, Error> {
        Ok(Self { fma: FmaLoop::new(simd)?, buffer: ReadBuffer::new(simd)? })
    }

    fn best(&self) -> Limits {
        Limits { fma: self.fma.peak(), read: self.buffer.bandwidth() }
    }

    fn now(&self) -> Limits {
        Limits { fma: self.fma.round(), read: self.buffer.sweep() }
    }
}

struct Bench {
    /// Normal numbers, as many as the largest case takes.
    drawn: Vec<f32>,
    machine: Machine,
    simd: Simd,
    rounds: usize,
}

impl Bench {
    /// The time of one call in seconds, and the shortest possible one's share of it: medians over the rounds.
    fn measure(&self, case: &'static Case) -> Result<(f64, f64), Error> {
        match case.dtype {
            Type::F32 => self.measure_as::<f32>(case),
            Type::F16 => self.measure_as::<f16>(case),
            Type::Bf16 => self.measure_as::<bf16>(case),
        }
    }

    fn measure_as<T: Element>(&self, case: &'static Case) -> Result<(f64, f64), Error> {
        let progress = Progress::new(case.name);
        let arrays = case.arrays::<T>(&self.drawn);
        let attention = arrays.attention(self.simd);
        let time = |calls: u32| -> Result<Duration, Error> {
            if case.is_cold() {
                return (0..calls)
                    .map(|_| {
                        self.machine.buffer.sweep();
                        let since = Instant::now();
                        arrays.run(&attention)?;
                        Ok(since.elapsed())
                    })
                    .sum();
            }
            let since = Instant::now();
            (0..calls).try_for_each(|_| arrays.run(&attention))?;
            Ok(since.elapsed())
        };
        // This also warms up.
        let mut calls = 1;
        while time(calls)? < ROUND {
            calls *= 2;
        }
        let (mut seconds, mut of_limit) = (Vec::new(), Vec::new());
        let mut before = self.machine.now();
        for round in 0..self.rounds {
            // There is nothing to cancel: Ctrl-C ends the process.
            let _ = progress.report(round as u64, self.rounds as u64);
            let of_call = time(calls)?.as_secs_f64() / f64::from(calls);
            let after = self.machine.now();
            let limits =
                Limits { fma: (before.fma + after.fma) / 2.0, read: (before.read + after.read) / 2.0 };
            seconds.push(of_call);
            of_limit.push(limits.seconds(&case.work()).0 / of_call);
            before = after;
        }
        Ok((median(seconds), median(of_limit)))
    }
}

/// Of at least one number.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let half = numbers.len() / 2;
    if numbers.len() % 2 == 1 { numbers[half] } else { (numbers[half - 1] + numbers[half]) / 2.0 }
}

fn list(terminal: &mut Terminal) -> anyhow::Result<()> {
    writeln!(terminal, "{:<13} {:<27} meaning", "case", "shape")?;
    for case in &CASES {
        writeln!(terminal, "{:<13} {:<27} {}", case.name, case.shape(), case.meaning)?;
    }
    writeln!(terminal, "\nshape: batch, heads/key heads, queries, keys, dim (of keys/of values)")?;
    Ok(())
}

fn print_limits(
    (simd, threads): (Simd, usize),
    limits: &Limits,
    rounds: usize,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let (peak, read) = (limits.fma / 1e9, limits.read / 1e9);
    let on = show::count(threads, "thread");
    let rounds = show::count(rounds, "round");
    writeln!(terminal, "machine  {simd} on {on}")?;
    writeln!(terminal, "compute  {peak:.1} GFLOP/s at most, f32 multiply-adds and nothing else")?;
    writeln!(terminal, "memory   {read:.1} GB/s at most, reading and nothing else")?;
    writeln!(terminal, "cases    the median of {rounds}; visible pairs alone count, each array once")?;
    writeln!(terminal, "limit    the longer of flops / compute and bytes / memory, in the same round\n")?;
    writeln!(terminal, "{:<12} {:>9} {:>9} {:>7}   of limit", "case", "time", "GFLOP/s", "GB/s")?;
    // It takes a while until there is more to read.
    terminal.flush()?;
    Ok(())
}

fn print_line(line: &Measured, terminal: &mut Terminal) -> anyhow::Result<()> {
    let Measured { name, gflops, gbps, of_limit, limited_by, .. } = line;
    let time = show::seconds(line.seconds);
    let (percent, bar) = (of_limit * 100.0, bar(*of_limit));
    writeln!(
        terminal,
        "{name:<12} {time:>9} {gflops:>9.1} {gbps:>7.2}   {percent:>3.0} % of {limited_by:<7} {bar}"
    )?;
    terminal.flush()?;
    Ok(())
}

/// A share as a bar, in eighths of a column.
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

fn print_json(
    (simd, threads): (Simd, usize),
    limits: &Limits,
    measured: &[Measured],
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let case = |line: &Measured| {
        let Measured { name, seconds, gflops, gbps, of_limit, .. } = line;
        json!({ "name": name, "seconds": seconds, "gflops": gflops, "gbps": gbps, "of_limit": of_limit })
    };
    let object = json!({
        "machine": {
            "fma_peak_gflops": limits.fma / 1e9,
            "read_gbps": limits.read / 1e9,
            "threads": threads,
            "simd": simd.name(),
        },
        "cases": measured.iter().map(case).collect::<Vec<_>>(),
    });
    writeln!(terminal, "{object}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0]), 3.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn the_nearer_limit_counts() {
        let limits = Limits { fma: 100.0, read: 10.0 };
        assert_eq!(limits.seconds(&Work { flops: 200.0, bytes: 10.0 }), (2.0, "compute"));
        assert_eq!(limits.seconds(&Work { flops: 200.0, bytes: 30.0 }), (3.0, "memory"));
    }

    #[test]
    fn bars_grow_by_eighths_and_end_at_the_limit() {
        assert_eq!(bar(0.0), "");
        assert_eq!(bar(0.5), "█".repeat(10));
        assert_eq!(bar(0.0301), "▋");
        assert_eq!(bar(1.7), "█".repeat(20));
    }
}
