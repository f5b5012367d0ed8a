//! The line protocol between `compare.py` and a peer: JSON, one request and one reply a line.
//!
//! | request | reply |
//! |---|---|
//! | `{"load": {a case}}` | `{"ok": "how it is computed"}` |
//! | `{"time": {"seconds": 0.05}}` | `{"ok": seconds}`, of the fastest call among as many as fill that time: two at least, one if it takes a second |
//! | `{"write": {"file": "x.safetensors"}}` | `{"ok": null}`, the result of one more call is there |
//!
//! or `{"cannot": "why"}` to any of them.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

/// A question: arrays `query`, `key`, `value` and perhaps `mask` or `bias` in a file, and options.
#[derive(Deserialize)]
pub struct Case {
    pub file: PathBuf,
    pub causal: bool,
    /// How many keys, its own included, a query of a causal call sees.
    pub window: Option<u64>,
    /// How many keys of each batch count; the file's mask says the same.
    pub key_lengths: Option<Vec<usize>>,
    pub softcap: Option<f64>,
    pub lse: bool,
}

/// One call: its result goes to the file, or nowhere.
pub type Call = Box<dyn FnMut(Option<&Path>) -> Result<()>>;

/// A case, ready to be called.
pub struct Loaded {
    pub how: String,
    pub call: Call,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Request {
    Load(Case),
    Time { seconds: f64 },
    Write { file: PathBuf },
}

/// Answers requests until the input ends.
pub fn serve(load: fn(&Case) -> Result<Loaded>) -> ExitCode {
    let mut loaded = None;
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return ExitCode::FAILURE };
        let reply = match answer(&line, load, &mut loaded) {
            Ok(value) => json!({ "ok": value }),
            Err(error) => json!({ "cannot": format!("{error:#}") }),
        };
        let mut out = io::stdout().lock();
        if writeln!(out, "{reply}").and_then(|()| out.flush()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn answer(line: &str, load: fn(&Case) -> Result<Loaded>, loaded: &mut Option<Call>) -> Result<Value> {
    match (serde_json::from_str(line)?, loaded) {
        (Request::Load(case), loaded) => {
            let Loaded { how, call } = load(&case)?;
            *loaded = Some(call);
            Ok(json!(how))
        }
        (Request::Time { seconds }, Some(call)) => Ok(json!(time(call, seconds)?)),
        (Request::Write { file }, Some(call)) => {
            call(Some(&file))?;
            Ok(Value::Null)
        }
        _ => bail!("nothing is loaded"),
    }
}

fn time(call: &mut Call, seconds: f64) -> Result<f64> {
    let (enough, second) = (Duration::from_secs_f64(seconds), Duration::from_secs(1));
    let (mut fastest, mut calls, start) = (Duration::MAX, 0, Instant::now());
    loop {
        let before = Instant::now();
        call(None)?; // The first wakes threads and fills caches that others have used meanwhile.
        fastest = fastest.min(before.elapsed());
        calls += 1;
        let elapsed = start.elapsed();
        if (calls > 1 && elapsed >= enough) || elapsed >= second {
            return Ok(fastest.as_secs_f64());
        }
    }
}
