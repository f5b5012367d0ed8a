//! The page: its files as they are served, and all of them in one that works from disk.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::lesson::Lesson;

/// One file of the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asset {
    /// Its name in the URL.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! assets {
    ($($name:literal)*) => {
        /// What the page links to.
        const ASSETS: &[Asset] = &[$(Asset { name: $name, text: include_str!(concat!("../page/", $name)) }),*];
    };
}

assets! {
    "answers.js" "attended.js" "attention.js" "cell-numbers.js" "chain.js" "chart.js" "columns.js" "controls.js" "dom.js"
    "embedded-source.js" "engine.js" "explorer-state.js" "explorer.css" "explorer.js" "fields.js" "figures.js" "focus-panel.js"
    "head-table.js" "heatmap.css" "heatmap.js" "labels.js" "legend.js" "lesson.css" "lesson.js" "links.js" "live-source.js" "main.js"
    "map-bar.js" "map-colours.js" "map-frame.js" "map-keys.js" "map-loader.js" "map-overlay.js" "map-screen.js" "map-side.css"
    "map-tiles.js" "map-view.js" "map.css" "measure.js" "names.js" "numbers.js" "overview.js" "pointing.js" "readout.js"
    "request-cache.js" "rulers.js" "search.js" "shell.js" "state.js" "strip.js" "style.css" "survey.js" "thumbnails.js" "token-text.js" "told.js"
    "vendor/openseadragon.min.js" "why-scale.js" "why.css"
}

const INDEX: &str = include_str!("../page/index.html");
const DATA: &str = "id=\"data\">{}<";
const SCRIPT: &str = "<script type=\"module\" src=\"main.js\"></script>";
/// What is no module.
const LIBRARY: &str = "vendor/openseadragon.min.js";

impl Asset {
    /// The file of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ASSETS.iter().find(|asset| asset.name == name)
    }

    /// As HTTP names it.
    pub fn media_type(&self) -> &'static str {
        match self.name.rsplit_once('.') {
            Some((_, "css")) => "text/css; charset=utf-8",
            _ => "text/javascript; charset=utf-8",
        }
    }
}

/// The page that is served, with the data that it starts from.
pub(crate) fn index(data: &Value) -> String {
    // A text may hold `</script>`; JSON can say it otherwise.
    let data = data.to_string().replace('<', "\\u003c");
    INDEX.replacen(DATA, &format!("id=\"data\">{data}<"), 1)
}

/// The page with all its files inside: it needs no server and no network. It has a lesson to start from, and
/// [exported](crate::explorer::exported) data to explore, or null.
pub fn one_file(lesson: &Lesson, explorer: &Value) -> String {
    let mut page = index(&json!({ "live": false, "lesson": lesson, "explorer": explorer }));
    for asset in ASSETS.iter().filter(|asset| asset.name.ends_with(".css")) {
        let link = format!("<link rel=\"stylesheet\" href=\"{}\">", asset.name);
        page = page.replacen(&link, &format!("<style>\n{}</style>", asset.text), 1);
    }
    let library = Asset::named(LIBRARY).map_or("", |library| library.text);
    let link = format!("<script src=\"{LIBRARY}\" defer></script>");
    page = page.replacen(&link, &format!("<script>\n{library}</script>"), 1);
    let mut script = String::new();
    add_module("main.js", &mut BTreeSet::new(), &mut script);
    page.replacen(SCRIPT, &format!("<script>\n'use strict';\n{script}</script>"), 1)
}

/// Appends a module after those that it imports. Names are unique over all of them, so what is left without imports and exports
/// is one script.
fn add_module(name: &str, added: &mut BTreeSet<String>, script: &mut String) {
    let Some(asset) = Asset::named(name).filter(|_| added.insert(name.to_string())) else { return };
    let imported = |line: &str| {
        let from = line.strip_prefix("import ")?.rsplit_once(" from './")?.1;
        from.strip_suffix("';").map(str::to_string)
    };
    asset.text.lines().filter_map(imported).for_each(|name| add_module(&name, added, script));
    for line in asset.text.lines().filter(|line| !line.starts_with("import ") && !line.starts_with("export "))
    {
        script.push_str(line);
        script.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_there_and_linked() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let names = |inside: &str| {
            let files = std::fs::read_dir(folder.join(inside)).unwrap();
            let names = files.map(|file| format!("{inside}{}", file.unwrap().file_name().to_str().unwrap()));
            names.filter(|name| name.ends_with(".js") || name.ends_with(".css")).collect::<Vec<_>>()
        };
        let wanted: BTreeSet<String> = [names(""), names("vendor/")].concat().into_iter().collect();
        assert_eq!(ASSETS.iter().map(|asset| asset.name.to_string()).collect::<BTreeSet<_>>(), wanted);
    }

    #[test]
    fn data_is_no_markup_and_nothing_is_left_to_load() {
        let words = vec!["</script><b>".to_string()];
        let (x, w) = (vec![vec![1.0]], vec![vec![2.0]]);
        let [w_q, w_k, w_v] = [w.clone(), w.clone(), w];
        let lesson = Lesson { words: Some(words), x, w_q, w_k, w_v, scale: None, causal: false };
        let file = one_file(&lesson, &Value::Null);
        for page in [&index(&json!({ "lesson": lesson })), &file] {
            assert!(page.contains("\\u003c/script>\\u003cb>") && !page.contains("</script><b>"));
        }
        let page = file;
        assert!(page.contains("OpenSeadragon contributors"), "its licence goes with it");
        for left in [
            "<script src=",
            "<script type=\"module\"",
            "href=\"style",
            "\nimport ",
            "\nexport ",
            "rel=\"stylesheet\"",
        ] {
            assert!(!page.contains(left), "{left:?} is left");
        }
        assert!(page.matches("</script>").count() == 3 && page.contains("startPage();"));
        // Each module once, after what it needs.
        assert_eq!(page.matches("function attentionSteps").count(), 1);
        assert!(page.find("function attentionSteps") < page.find("async function computeHere"));
    }
}
