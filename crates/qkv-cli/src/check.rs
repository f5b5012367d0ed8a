//! `qkv check`: every path that can serve an input, against the f64 reference by the error law, against the scalar
//! program bit for bit, and against what the file expects.
//!
//! Large inputs are checked on their last rows and on drawn ones, because the oracles are slow; the output says so.

use std::io::Write;

use clap::Args;
use qkv_view::show;
use serde_json::{Value, json};

use crate::describe;
use crate::expected;
use crate::input::{Input, Sources};
use crate::machine::{self, Threads};
use crate::options::AttentionOptions;
use crate::paths::{self, Scope};
use crate::projected;
use crate::request::{Number, Request, with_element};
use crate::source::Source;
use crate::terminal::Terminal;

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    /// A file with arrays q, k and v (or x, alone or with a layer's weights), and maybe what is expected of them
    #[arg(value_name = "INPUT")]
    input: Source,

    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    attention: AttentionOptions,
}

/// One comparison and its verdict.
pub struct Check {
    /// What was compared.
    pub name: String,
    /// What computed it.
    pub path: String,
    pub against: String,
    pub max_error: f64,
    /// The error of the plain five steps, where they have one.
    pub plain_error: Option<f64>,
    pub limit: f64,
    pub passed: bool,
}

impl Check {
    fn verdict(&self) -> &'static str {
        if self.passed { "pass" } else { "fail" }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "path": self.path,
            "against": self.against,
            "max_error": self.max_error,
            "plain_error": self.plain_error,
            "limit": self.limit,
            "verdict": self.verdict(),
        })
    }
}

/// Whether every check passed.
pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let simd = machine::simd_from_environment()?;
    let sources = Sources { input: Some(&arguments.input), query: None, key: None, value: None };
    let mut input = Input::read(&sources, &arguments.attention)?;
    let expected = expected::Expected::take(&mut input.rest)?;
    let threads = Threads::new(arguments.attention.threads)?;
    with_element!(input, T => {
        let request = threads.run(|| Request::<T>::new(&input, &arguments.attention, simd))?;
        check(&request, &expected, (arguments, &threads), terminal)
    })
}

fn check<T: Number>(
    request: &Request<'_, T>,
    expected: &expected::Expected,
    (arguments, threads): (&Arguments, &Threads),
    terminal: &mut Terminal,
) -> anyhow::Result<bool> {
    describe::warn(request, terminal);
    expected.check_shapes(request)?;
    let scope = Scope::new::<T>(&request.extents, arguments.attention.seed.unwrap_or(0));
    // The engine checks shapes and options before anything is said of them.
    let attention = request.attention(0);
    request.call(&attention).check().map_err(|error| request.explained(error))?;
    if !arguments.json {
        print_request(request, &scope, expected, terminal)?;
    }
    let mut outcome = paths::check(request, &scope, threads, expected.weights.is_some())?;
    let mut checks = std::mem::take(&mut outcome.checks);
    let layer = projected::Outcome::new(request, &outcome.whole, &scope, threads)?;
    checks.extend(layer.as_ref().map(projected::Outcome::check::<T>));
    if let Some(embedding) = &expected.embedding {
        checks.extend(threads.run(|| embedding.check(request, &arguments.attention))?);
    }
    checks.extend(expected.check(request, &outcome, layer.as_ref(), threads)?);

    let failed = checks.iter().filter(|check| !check.passed).count();
    if arguments.json {
        let verdict = if failed == 0 { "pass" } else { "fail" };
        let checks: Vec<_> = checks.iter().map(Check::json).collect();
        writeln!(terminal, "{}", json!({ "verdict": verdict, "checks": checks }))?;
    } else {
        print_table(&checks, terminal)?;
        match failed {
            0 => writeln!(terminal, "\nverdict  pass: {}", show::count(checks.len(), "check"))?,
            _ => writeln!(terminal, "\nverdict  FAIL: {failed} of {}", show::count(checks.len(), "check"))?,
        }
    }
    Ok(failed == 0)
}

fn print_request<T: Number>(
    request: &Request<'_, T>,
    scope: &Scope,
    expected: &expected::Expected,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    for line in describe::input(request) {
        writeln!(terminal, "{line}")?;
    }
    if let Some(note) = expected.note() {
        writeln!(terminal, "note     {note}")?;
    }
    for line in describe::steps(request) {
        writeln!(terminal, "{line}")?;
    }
    writeln!(terminal, "rows     {}\n", scope.words(&request.extents))?;
    Ok(())
}

fn print_table(checks: &[Check], terminal: &mut Terminal) -> anyhow::Result<()> {
    let head = ["name", "path", "against", "error", "plain", "limit", "verdict"].map(str::to_string);
    let rows = checks.iter().map(|check| {
        [
            check.name.clone(),
            check.path.clone(),
            check.against.clone(),
            show::error(check.max_error),
            check.plain_error.map_or("-".to_string(), show::error),
            show::error(check.limit),
            if check.passed { "pass".to_string() } else { "FAIL".to_string() },
        ]
    });
    let lines: Vec<_> = [head].into_iter().chain(rows).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    for line in &lines {
        let cells: Vec<_> =
            line.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column))).collect();
        writeln!(terminal, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}
