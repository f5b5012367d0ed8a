//! The command `qkv`: parse, call, print. It is a library, so that the Python package has the same command and reads recordings by the
//! same text.
//!
//! This file owns the way in and the way out: the command line, the exit status, and what a closed pipe and Ctrl-C
//! mean. Results go to stdout, everything else to stderr.

#![deny(unsafe_code)]

mod attend;
mod audit;
mod bench;
mod cases;
mod check;
mod compare;
mod describe;
mod diff;
mod expected;
mod explain;
mod explain_json;
pub mod explore;
mod head;
mod heads;
mod input;
mod interrupt;
mod layout;
mod lesson;
mod lesson_checks;
mod machine;
mod map;
mod mask;
mod options;
mod output;
mod paths;
mod progress;
mod projected;
mod random;
mod recording;
mod request;
mod sample;
mod settings;
mod source;
mod span;
mod table;
mod terminal;
mod tokens;
mod top;
mod view;

use std::ffi::OsString;
use std::io::{self, Write};

use clap::{Parser, Subcommand};

pub use lesson::first_lesson;
use terminal::Terminal;

/// Scaled dot-product attention on CPUs, softmax(Q Kᵀ · scale + mask) V.
///
/// Without a command: `attend` on the built-in sample.
#[derive(Parser)]
#[command(name = "qkv", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Compute attention over a file's q, k and v, and say what was done
    Attend(Box<attend::Arguments>),
    /// Show attention step by step, number by number: a lesson, your own tokens, or some rows of a file
    Explain(Box<explain::Arguments>),
    /// Hold every path against the f64 reference, the scalar program and what the file expects
    Check(Box<check::Arguments>),
    /// Open a page, in the browser or as one file: the lesson, in which everything can be changed, and a file to explore
    View(Box<view::Arguments>),
    /// Draw who attends whom: one head of any length, or a page of all heads
    Map(Box<map::Arguments>),
    /// Rank the keys that one query attends most, or the queries that attend one key most
    Top(Box<top::Arguments>),
    /// Compare the attention of two inputs, head by head
    Diff(Box<diff::Arguments>),
    /// List all heads with a few numbers each, to sort and find them by
    Heads(Box<heads::Arguments>),
    /// Draw arrays of random numbers, the very ones that torch draws from the seed, into a file
    Random(random::Arguments),
    /// Measure the engine on named cases, beside the most that this machine's arithmetic and memory allow
    Bench(bench::Arguments),
}

/// Runs the command, whose first argument is its own name, and gives its exit status. Ctrl-C ends the process.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let command = cli.command.unwrap_or_else(|| Command::Attend(Box::default()));
    let writes_file = match &command {
        Command::Attend(arguments) => arguments.output.is_some(),
        Command::Explain(arguments) => arguments.writes(),
        Command::Map(_) => true,
        Command::View(arguments) => arguments.writes(),
        Command::Diff(arguments) => arguments.writes(),
        _ => false,
    };
    let mut terminal = Terminal::new(writes_file);
    let result = interrupt::install().and_then(|()| match &command {
        Command::Attend(arguments) => attend::run(arguments, &mut terminal),
        Command::Explain(arguments) => explain::run(arguments, &mut terminal),
        Command::Check(arguments) => check::run(arguments, &mut terminal),
        Command::View(arguments) => view::run(arguments, &mut terminal),
        Command::Map(arguments) => map::run(arguments, &mut terminal),
        Command::Top(arguments) => top::run(arguments, &mut terminal),
        Command::Diff(arguments) => diff::run(arguments, &mut terminal),
        Command::Heads(arguments) => heads::run(arguments, &mut terminal),
        Command::Random(arguments) => random::run(arguments, &mut terminal),
        Command::Bench(arguments) => bench::run(arguments, &mut terminal),
    });
    match result.and_then(|passed| Ok(terminal.flush().map(|()| passed)?)) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => failure(&error),
    }
}

/// Help and version are results; anything else is a mistake, said in one line.
fn usage(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        // Where stdout is closed nobody reads the help.
        let _ = error.print();
        return 0;
    }
    let text = error.render().to_string();
    let mistake = text.split("\n\nUsage:").next().unwrap_or(&text);
    let mistake = mistake.split("\n\nFor more").next().unwrap_or(mistake);
    let mistake = mistake.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ");
    terminal::complain(&format!("{mistake} (see --help)"));
    2
}

fn failure(error: &anyhow::Error) -> u8 {
    let closed_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(closed_pipe) {
        return 0;
    }
    if error.is::<interrupt::Interrupted>() {
        return interrupt::STATUS;
    }
    terminal::complain(&format!("{error:#}"));
    2
}
