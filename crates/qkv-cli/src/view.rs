//! `qkv view`: the lesson as a page, in the browser or in one file.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use ndarray::Axis;
use qkv_view::lesson::Lesson as PageLesson;
use qkv_view::page;
use qkv_view::server::Server;
use serde_json::json;

use crate::input::Given;
use crate::lesson::Lesson;
use crate::options::AttentionOptions;
use crate::output;
use crate::request::typed;
use crate::source::Array;
use crate::terminal::Terminal;

#[derive(Args, Debug)]
pub struct Arguments {
    /// Write one file that works from disk, without a server or a network, and open nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["port", "no_open"])]
    export: Option<PathBuf>,

    /// The port of 127.0.0.1 to serve on [default: any that is free]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,

    /// Do not open a browser; the address is printed
    #[arg(long)]
    no_open: bool,
}

impl Arguments {
    /// Whether a file is to be written.
    pub fn writes(&self) -> bool {
        self.export.is_some()
    }
}

pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let data = json!({ "live": false, "lesson": first_lesson()?, "explorer": null });
    if let Some(path) = &arguments.export {
        output::check_page(path)?;
        output::write_text(path, &page::one_file(&data))?;
        writeln!(terminal, "wrote {}", path.display())?;
        return Ok(true);
    }
    let server = Server::new(arguments.port, data).with_context(|| match arguments.port {
        0 => "cannot serve on 127.0.0.1".to_string(),
        port => format!("--port {port}: cannot serve on 127.0.0.1:{port}"),
    })?;
    writeln!(terminal, "the lesson is at {} (it opens once; Ctrl-C ends it)", server.url())?;
    terminal.flush()?;
    if !arguments.no_open
        && let Err(error) = open::that_detached(server.url())
    {
        terminal.warn(&format!("no browser could be opened ({error}): open the address above"));
    }
    server.run().context("cannot serve the page")?;
    Ok(true)
}

/// The numbers that PyTorch draws after `torch.manual_seed(42)`.
fn first_lesson() -> anyhow::Result<PageLesson> {
    let input = Lesson::first(5, None, None).input(&AttentionOptions::default())?;
    let Given::Layer { x, weights } = &input.given else { bail!("a lesson has weights") };
    let weight = |name: &str| {
        let own = weights.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        rows(&own.with_context(|| format!("a lesson has {name}"))?.1)
    };
    Ok(PageLesson {
        words: None,
        x: rows(x)?,
        w_q: weight("w_q")?,
        w_k: weight("w_k")?,
        w_v: weight("w_v")?,
        scale: None,
        causal: false,
    })
}

fn rows(array: &Array) -> anyhow::Result<Vec<Vec<f32>>> {
    let numbers = typed::<f32>(&array.tensor)?.view();
    Ok(numbers.axis_iter(Axis(0)).map(|row| row.iter().copied().collect()).collect())
}
