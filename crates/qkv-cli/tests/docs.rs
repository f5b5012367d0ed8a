//! What the documents show of the command is what the command prints.
//!
//! A block that follows a line `<!-- $ qkv WORDS -->` holds that command and its output; with `| TITLE | TITLE`, only the
//! sections with these headings. `QKV_WRITE_DOCS=1 cargo test -p qkv-cli --test docs` writes them anew.

mod common;

use std::path::{Path, PathBuf};

const DOCUMENTS: [&str; 2] = ["README.md", "docs/lesson.md"];
const OPENING: &str = "<!-- $ qkv ";
const FENCE: &str = "```";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The words of a command line, with double quotes.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate();
    let words = parts.flat_map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().map(str::to_string).collect(),
        _ => vec![part.to_string()],
    });
    words.collect()
}

/// What the command prints, or the sections of it that are asked for.
fn printed(directive: &str) -> String {
    let mut parts = directive.split(" | ");
    let mut command = common::command();
    command.current_dir(root());
    let output = command.args(words(parts.next().expect("a command"))).output().expect("the command starts");
    let out = common::Ran::from(output).succeeded().out.clone();
    let titles: Vec<&str> = parts.map(str::trim).collect();
    if titles.is_empty() {
        return out;
    }
    let sections: Vec<&str> = out.split("── ").skip(1).collect();
    let section = |title: &&str| {
        let found = sections.iter().find(|section| section.starts_with(&format!("{title} ─")));
        let section = found.unwrap_or_else(|| panic!("no section {title:?} in {directive}: {out}"));
        format!("── {}\n", section.trim_end())
    };
    titles.iter().map(section).collect::<Vec<_>>().join("\n")
}

/// The document as it should be.
fn renewed(document: &str) -> String {
    let mut lines = document.lines();
    let mut renewed = Vec::new();
    while let Some(line) = lines.next() {
        renewed.push(line.to_string());
        let Some(directive) = line.strip_prefix(OPENING).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        let fence = lines.next().expect("a block after the command");
        assert!(fence.starts_with(FENCE), "want a block after {line}");
        lines.by_ref().find(|line| line.starts_with(FENCE)).expect("the end of the block");
        renewed.push(fence.to_string());
        let command = directive.split(" | ").next().expect("a command");
        renewed.push(format!("$ qkv {command}\n{}", printed(directive).trim_end()));
        renewed.push(FENCE.to_string());
    }
    renewed.join("\n") + "\n"
}

/// Errors are some 1e-7 and depend on how a library multiplies matrices.
fn without_errors(text: &str) -> String {
    let is_error = |word: &&str| word.trim_matches([',', '.']).parse::<f64>().is_ok() && word.contains("e-");
    let words = text.split(' ').map(|word| if is_error(&word) { "[error]" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn documents_show_what_the_command_prints() {
    for name in DOCUMENTS {
        let path = root().join(name);
        let document = std::fs::read_to_string(&path).expect("a document");
        assert!(document.contains(OPENING), "{name} shows no command");
        let renewed = renewed(&document);
        if std::env::var_os("QKV_WRITE_DOCS").is_some() {
            std::fs::write(&path, &renewed).expect("written");
            continue;
        }
        let pairs = document
            .lines()
            .zip(renewed.lines())
            .map(|(own, new)| (without_errors(own), without_errors(new)));
        for (index, (own, new)) in pairs.enumerate() {
            assert_eq!(
                own,
                new,
                "{name}, line {}: run QKV_WRITE_DOCS=1 cargo test -p qkv-cli --test docs",
                index + 1
            );
        }
        assert_eq!(document.lines().count(), renewed.lines().count(), "{name}");
    }
}

#[test]
fn the_picture_is_what_the_command_draws() {
    let place = common::Place::new();
    let (drawn, kept) = (place.path("map.svg"), root().join("docs/map.svg"));
    let mut command = common::command();
    command.current_dir(root());
    command.args(words("map crates/qkv-cli/data/sample.safetensors --head 1 -o")).arg(&drawn);
    common::Ran::from(command.output().expect("the command starts")).succeeded();
    if std::env::var_os("QKV_WRITE_DOCS").is_some() {
        std::fs::copy(drawn, kept).expect("copied");
        return;
    }
    let [drawn, kept] = [drawn, kept].map(|path| std::fs::read_to_string(path).expect("a picture"));
    assert!(drawn == kept, "docs/map.svg: run QKV_WRITE_DOCS=1 cargo test -p qkv-cli --test docs");
}
