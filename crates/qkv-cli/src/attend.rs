//! `qkv attend`: computes, and says what was read, what was done, how long it took and how exact it is.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use ndarray::{ArrayViewD, CowArray, IxDyn, s};
use qkv::{Alignment, AttentionOutput, Plan, TileCounts};
use qkv_io::TensorView;
use qkv_view::show;
use serde_json::json;

use crate::audit::{Audit, audit};
use crate::input::{Input, Sources};
use crate::machine::{self, Threads};
use crate::options::AttentionOptions;
use crate::progress::Progress;
use crate::request::{Number, Request, view_four_axes, with_element};
use crate::source::Source;
use crate::terminal::Terminal;
use crate::{describe, output, sample, tokens};

/// Arrays with more elements than this are shown in part.
const PREVIEWED: usize = 200;

#[derive(Args, Debug, Default)]
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    /// A file with arrays q, k and v (or x: alone it is all three, with w_q, w_k, w_v it is projected), and maybe a
    /// mask; none: the built-in sample
    #[arg(value_name = "INPUT")]
    input: Option<Source>,

    /// The queries, instead of INPUT's
    #[arg(short, value_name = "FILE[:NAME]")]
    query: Option<Source>,

    /// The keys, instead of INPUT's
    #[arg(short, value_name = "FILE[:NAME]")]
    key: Option<Source>,

    /// The values, instead of INPUT's
    #[arg(short, value_name = "FILE[:NAME]")]
    value: Option<Source>,

    /// Where the output goes: .npy (it alone), .npz or .safetensors (out, lse, weights)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Give the log-sum-exp of each row too
    #[arg(long)]
    lse: bool,

    /// Give the weights too; they take memory for every pair of query and key
    #[arg(long)]
    weights: bool,

    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    attention: AttentionOptions,
}

impl Arguments {
    fn reads_sample(&self) -> bool {
        self.input.is_none() && self.query.is_none() && self.key.is_none() && self.value.is_none()
    }

    /// Refuses an output that could not be written, before anything is computed.
    fn check_output(&self) -> anyhow::Result<()> {
        const OUTPUT_ALONE: &str =
            "a .npy file holds the output alone; for --lse and --weights want .npz or .safetensors";
        let Some(path) = &self.output else { return Ok(()) };
        output::check(path, (self.lse || self.weights).then_some(OUTPUT_ALONE))
    }
}

/// Whether the audit passed.
pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    arguments.check_output()?;
    let simd = machine::simd_from_environment()?;
    let input = if arguments.reads_sample() {
        sample::read(&arguments.attention)?
    } else {
        let [input, query, key, value] =
            [&arguments.input, &arguments.query, &arguments.key, &arguments.value].map(Option::as_ref);
        Input::read(&Sources { input, query, key, value }, &arguments.attention)?
    };
    let threads = Threads::new(arguments.attention.threads)?;
    with_element!(input, T => {
        let request = threads.run(|| Request::<T>::new(&input, &arguments.attention, simd))?;
        attend(&request, &threads, arguments, terminal)
    })
}

/// What came of it.
struct Outcome<'r, T: Number> {
    plan: Plan,
    seconds: f64,
    peak_bytes: Option<u64>,
    result: &'r AttentionOutput<T, IxDyn>,
    /// The output in the file's order of axes.
    output: CowArray<'r, T, IxDyn>,
    audit: Audit,
}

impl<T: Number> Outcome<'_, T> {
    fn gflops(&self) -> f64 {
        self.plan.flops as f64 / self.seconds.max(1e-9) / 1e9
    }

    /// What goes into a file.
    fn arrays(&self) -> Vec<(&'static str, TensorView<'_>)> {
        let mut arrays: Vec<(_, TensorView<'_>)> = vec![("out", self.output.view().into())];
        arrays.extend(self.result.lse.as_ref().map(|lse| ("lse", lse.view().into())));
        arrays.extend(self.result.weights.as_ref().map(|weights| ("weights", weights.view().into())));
        arrays
    }
}

fn attend<T: Number>(
    request: &Request<'_, T>,
    threads: &Threads,
    arguments: &Arguments,
    terminal: &mut Terminal,
) -> anyhow::Result<bool> {
    describe::warn(request, terminal);
    let attention = request.attention(0);
    let plan = threads.run(|| request.call(&attention).plan()).map_err(|error| request.explained(error))?;
    if !arguments.json {
        print_request(request, &plan, terminal)?;
    }

    let since = Instant::now();
    let result = threads.run(|| {
        let progress = Progress::new("attending");
        let mut report = |done, total| progress.report(done, total);
        let mut call = request.call(&attention).progress(&mut report);
        if arguments.lse {
            call = call.lse();
        }
        if arguments.weights {
            call = call.weights();
        }
        call.run()
    });
    let result = result.map_err(|error| request.explained(error))?;
    let seconds = since.elapsed().as_secs_f64();
    let peak_bytes = machine::peak_bytes();
    let rows = view_four_axes(&result.output, &request.extents)?;
    let audit = threads.run(|| audit(request, rows, arguments.attention.seed.unwrap_or(0)))?;
    let output = threads.run(|| request.leave(result.output.view()))?;

    let outcome = Outcome { plan, seconds, peak_bytes, result: &result, output, audit };
    if let Some(path) = &arguments.output {
        output::write(path, &outcome.arrays())?;
    }
    if arguments.json {
        print_json(request, arguments, &outcome, terminal)?;
    } else {
        print_outcome(request, arguments, &outcome, terminal)?;
    }
    Ok(outcome.audit.passed())
}

fn print_request<T: Number>(
    request: &Request<'_, T>,
    plan: &Plan,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let input = request.input;
    for (index, line) in describe::input(request).iter().enumerate() {
        writeln!(terminal, "{line}")?;
        if let (0, Some(tokens), sample::NAME) = (index, &input.tokens, input.rest.file.as_str()) {
            writeln!(terminal, "         {}", tokens.concat().join(" "))?;
        }
    }
    writeln!(terminal)?;
    for line in describe::steps(request) {
        writeln!(terminal, "{line}")?;
    }
    writeln!(terminal, "\n{plan}")?;
    Ok(())
}

fn print_outcome<T: Number>(
    request: &Request<'_, T>,
    arguments: &Arguments,
    outcome: &Outcome<'_, T>,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let Outcome { seconds, result, output, audit, .. } = outcome;
    let memory = outcome.peak_bytes.map(|bytes| format!(", {} of memory at most", show::bytes(bytes)));
    let gflops = outcome.gflops();
    writeln!(
        terminal,
        "time     {}, {gflops:.1} GFLOP/s{}",
        show::seconds(*seconds),
        memory.unwrap_or_default()
    )?;
    let verdict = if audit.passed() { "pass" } else { "FAIL" };
    writeln!(
        terminal,
        "audit    {} of {} rows again in f64: largest error {}, limit {}: {verdict}",
        audit.rows,
        request.extents.rows(),
        show::error(audit.max_error),
        show::error(audit.limit)
    )?;
    if let Some(path) = &arguments.output {
        writeln!(terminal, "{}", output::line(path, &outcome.arrays()))?;
        return Ok(());
    }
    writeln!(terminal)?;
    let head = if arguments.reads_sample() { sample::HEAD } else { 0 };
    if arguments.reads_sample() {
        let of_head = output.slice(s![0, head, .., ..]).into_dyn();
        preview(&format!("out[0, {head}]"), &of_head, terminal)?;
    } else {
        preview("out", &output.view(), terminal)?;
    }
    if let Some(lse) = &result.lse {
        preview("lse", &lse.view(), terminal)?;
    }
    if let Some(weights) = &result.weights {
        preview("weights", &weights.view(), terminal)?;
    }
    tokens::print(request, head, terminal)
}

fn preview<O: qkv::Element>(
    name: &str,
    array: &ArrayViewD<'_, O>,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let text = show::tensor(array, name.len() + 3, PREVIEWED);
    writeln!(terminal, "{name} = {text}")?;
    Ok(())
}

fn print_json<T: Number>(
    request: &Request<'_, T>,
    arguments: &Arguments,
    outcome: &Outcome<'_, T>,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let Outcome { plan, seconds, peak_bytes, result, audit, .. } = outcome;
    let TileCounts { empty, full, mixed } = plan.tiles;
    let files = request.input.given.each();
    let files = files.into_iter().map(|(name, array)| (name.to_string(), json!(array.origin)));
    let shapes = request.arrays.each().map(|(name, array)| (name.to_string(), json!(array.shape())));
    let mut shapes = serde_json::Map::from_iter(shapes);
    // As the others are: with the engine's axes, unless a layer has put the heads together.
    let out = if request.layer.is_some() { outcome.output.shape() } else { result.output.shape() };
    shapes.insert("out".to_string(), json!(out));
    let causal = match request.input.settings.causal {
        None => json!(null),
        Some(Alignment::TopLeft) => json!("top-left"),
        Some(Alignment::BottomRight) => json!("bottom-right"),
        Some(Alignment::Offset(offset)) => json!(offset),
    };
    let object = json!({
        "inputs": serde_json::Map::from_iter(files),
        "shapes": shapes,
        "dtype": <T as qkv::Element>::NAME,
        "scale": request.scale(),
        "causal": causal,
        "masks": describe::bounds(request).iter().map(describe::Bound::json).collect::<Vec<_>>(),
        "plan": {
            "path": plan.path.name(),
            "simd": plan.simd.name(),
            "tiles": { "empty": empty, "full": full, "mixed": mixed },
            "flops": plan.flops,
            "bytes": plan.bytes,
            "scratch_bytes": plan.scratch_bytes,
        },
        "seconds": seconds,
        "gflops": outcome.gflops(),
        "peak_bytes": peak_bytes,
        "audit": { "rows": audit.rows, "max_error": audit.max_error },
        "output": arguments.output.as_ref().map(|path| path.display().to_string()),
    });
    writeln!(terminal, "{object}")?;
    Ok(())
}
