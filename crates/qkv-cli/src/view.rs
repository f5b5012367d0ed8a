//! `qkv view`: the lesson, and a file to explore, as a page in the browser or in one file.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use qkv_view::explorer::{self, Explorer};
use qkv_view::page;
use qkv_view::server::Server;
use serde_json::Value;

use crate::explore;
use crate::lesson::first_lesson;
use crate::options::AttentionOptions;
use crate::output;
use crate::progress::Progress;
use crate::source::Source;
use crate::terminal::Terminal;

#[derive(Args, Debug)]
pub struct Arguments {
    /// A file with arrays q, k and v, or a recording, to be explored; without one there is the lesson alone
    #[arg(value_name = "INPUT")]
    input: Option<Source>,

    /// Write one file that works from disk, without a server or a network, and open nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["port", "no_open"])]
    export: Option<PathBuf>,

    /// The port of 127.0.0.1 to serve on [default: any that is free]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,

    /// Do not open a browser; the address is printed
    #[arg(long)]
    no_open: bool,

    #[command(flatten)]
    attention: AttentionOptions,
}

impl Arguments {
    /// Whether a file is to be written.
    pub fn writes(&self) -> bool {
        self.export.is_some()
    }
}

pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let input = arguments.input.as_ref().map(|source| opened(source, arguments, terminal)).transpose()?;
    if let Some(path) = &arguments.export {
        output::check_page(path)?;
        output::write_text(path, &exported(input.as_ref())?)?;
        writeln!(terminal, "wrote {}", path.display())?;
        return Ok(true);
    }
    let what = if input.is_some() { "the explorer" } else { "the lesson" };
    let explorer = input.map(Explorer::new);
    let server =
        Server::new(arguments.port, &first_lesson()?, explorer).with_context(|| match arguments.port {
            0 => "cannot serve on 127.0.0.1".to_string(),
            port => format!("--port {port}: cannot serve on 127.0.0.1:{port}"),
        })?;
    writeln!(terminal, "{what} is at {} (it opens once; Ctrl-C ends it)", server.url())?;
    terminal.flush()?;
    if !arguments.no_open
        && let Err(error) = open::that_detached(server.url())
    {
        terminal.warn(&format!("no browser could be opened ({error}): open the address above"));
    }
    server.run().context("cannot serve the page")?;
    Ok(true)
}

fn opened(source: &Source, arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<explorer::Input> {
    let opened = explore::open(source, &arguments.attention)?;
    opened.warnings.iter().for_each(|warning| terminal.warn(warning));
    Ok(explore::into_input(opened.layers, explore::title(&source.path)))
}

fn exported(input: Option<&explorer::Input>) -> anyhow::Result<String> {
    let Some(input) = input else { return Ok(page::one_file(&first_lesson()?, &Value::Null)) };
    let progress = Progress::new("exporting");
    let data = explorer::exported(input, &mut |done, total| progress.report(done, total));
    Ok(page::one_file(&first_lesson()?, &data.map_err(anyhow::Error::from_boxed)?))
}
