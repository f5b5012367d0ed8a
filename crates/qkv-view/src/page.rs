//! The page: its files as they are served, and all of them in one that works from disk.

use std::collections::BTreeSet;

use serde_json::Value;

/// One file of the page.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Its name in the URL.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! assets {
    ($($name:literal)*) => {
        /// What the page links to.
        pub const ASSETS: &[Asset] = &[$(Asset { name: $name, text: include_str!(concat!("../page/", $name)) }),*];
    };
}

assets! {
    "attention.js" "chain.js" "chart.js" "controls.js" "dom.js" "engine.js" "fields.js" "figures.js" "heatmap.css" "heatmap.js"
    "labels.js" "lesson.css" "lesson.js" "links.js" "main.js" "measure.js" "numbers.js" "shell.js" "state.js" "strip.js"
    "style.css" "told.js" "why-scale.js" "why.css"
}

const INDEX: &str = include_str!("../page/index.html");
const DATA: &str = "id=\"data\">{}<";
const SCRIPT: &str = "<script type=\"module\" src=\"main.js\"></script>";

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
pub fn index(data: &Value) -> String {
    // A text may hold `</script>`; JSON can say it otherwise.
    let data = data.to_string().replace('<', "\\u003c");
    INDEX.replacen(DATA, &format!("id=\"data\">{data}<"), 1)
}

/// The page with all its files inside: it needs no server and no network.
pub fn one_file(data: &Value) -> String {
    let mut page = index(data);
    for asset in ASSETS.iter().filter(|asset| asset.name.ends_with(".css")) {
        let link = format!("<link rel=\"stylesheet\" href=\"{}\">", asset.name);
        page = page.replacen(&link, &format!("<style>\n{}</style>", asset.text), 1);
    }
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
    use serde_json::json;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_there_and_linked() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let names =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let wanted: BTreeSet<String> =
            names.filter(|name| name.ends_with(".js") || name.ends_with(".css")).collect();
        assert_eq!(ASSETS.iter().map(|asset| asset.name.to_string()).collect::<BTreeSet<_>>(), wanted);
    }

    #[test]
    fn data_is_no_markup_and_nothing_is_left_to_load() {
        let data = json!({ "live": false, "lesson": { "words": ["</script><b>"] } });
        for page in [index(&data), one_file(&data)] {
            assert!(page.contains("\\u003c/script>\\u003cb>") && !page.contains("</script><b>"));
        }
        let page = one_file(&data);
        for left in ["src=", "href=\"style", "\nimport ", "\nexport ", "rel=\"stylesheet\""] {
            assert!(!page.contains(left), "{left:?} is left");
        }
        assert!(page.matches("</script>").count() == 2 && page.contains("startPage();"));
        // Each module once, after what it needs.
        assert_eq!(page.matches("function attentionSteps").count(), 1);
        assert!(page.find("function attentionSteps") < page.find("async function computeHere"));
    }
}
