//! What the page's server answers of a file: what the commands print, what a map is made of, and what it refuses.

mod common;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use common::served::View;
use common::{Place, numbers};
use ndarray::Array4;
use qkv_cli::explore;
use qkv_io::File;
use qkv_view::explorer;
use serde_json::{Value, json};

/// Two layers of 4 heads, 300 queries and keys, with tokens.
fn recording(place: &Place) -> PathBuf {
    let array = |heads, salt| -> Array4<f32> { numbers((1, heads, 300, 8), salt) };
    let names = ["q", "k", "v"];
    let layers = [0, 3].map(|layer| [4, 2, 2].map(|heads| array(heads, 10 * layer + heads as u32)));
    let named: Vec<_> = [0, 3]
        .iter()
        .zip(&layers)
        .flat_map(|(layer, arrays)| {
            names.iter().zip(arrays).map(move |(name, array)| (format!("layers.{layer}.{name}"), array))
        })
        .collect();
    let arrays: Vec<_> = named.iter().map(|(name, array)| (name.as_str(), array.view().into())).collect();
    let tokens: Vec<String> = (0..300).map(|at| format!("word{}", at % 7)).collect();
    let tokens = serde_json::to_string(&tokens).unwrap();
    place.write_with("two.safetensors", &arrays, &[("causal", "true"), ("tokens", &tokens)])
}

/// A server that was entered.
struct Asked {
    view: View,
    cookie: String,
}

impl Asked {
    fn new(input: &PathBuf) -> Self {
        let view = View::start(&[input.as_ref()]);
        let cookie = view.enter();
        Self { view, cookie }
    }

    fn get(&self, question: &str) -> (u16, String, String) {
        let headers = [("Host", self.view.host()), ("Cookie", self.cookie.clone())];
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.view.ask(&format!("GET /api/{question}"), &headers, "")
    }

    fn json(&self, question: &str) -> Value {
        let (status, head, body) = self.get(question);
        assert!(status == 200 && head.contains("application/json"), "{question}: {status} {body}");
        serde_json::from_str(&body).unwrap()
    }

    fn refuses(&self, question: &str, words: &str) {
        let (status, _, body) = self.get(question);
        assert!((400..500).contains(&status) && body.contains(words), "{question}: {status} {body}");
        assert!(serde_json::from_str::<Value>(&body).unwrap()["error"].is_string());
    }
}

#[test]
fn rankings_and_the_table_are_those_of_the_commands() {
    let place = Place::new();
    let input = recording(&place);
    let asked = Asked::new(&input);
    let facts = asked.json("input");
    assert_eq!(facts["batches"], 1);
    assert_eq!(facts["layers"][1]["layer"], 3);
    assert_eq!(facts["layers"][1]["len_key"], 300);
    assert!(facts["layers"][0]["masks"][0].as_str().unwrap().starts_with("causal top-left"));
    assert_eq!(asked.json("tokens?layer=3&batch=0")["queries"][8], "word1");

    let printed = |words: &[&str]| {
        let mut command = common::command();
        command.args(words).arg(&input).arg("--json");
        common::Ran::from(command.output().unwrap()).json()
    };
    let without_place = |mut json: Value| {
        for name in ["head", "batch"] {
            json.as_object_mut().unwrap().remove(name);
        }
        json
    };
    let top = printed(&["top", "--layer", "3", "--head", "2", "--query", "250", "-n", "5"]);
    assert_eq!(asked.json("query?layer=3&head=2&batch=0&query=250&count=5"), without_place(top));
    let top = printed(&["top", "--layer", "3", "--head", "2", "--key", "7", "-n", "5"]);
    assert_eq!(asked.json("key?layer=3&head=2&batch=0&key=7&count=5"), without_place(top));

    let wanted = printed(&["heads"]);
    let mut rows = Vec::new();
    while rows.len() < 8 {
        let more = asked.json(&format!("heads?batch=0&from={}", rows.len()));
        assert_eq!(more["total"], 8);
        rows.extend(more["rows"].as_array().unwrap().clone());
        sleep(Duration::from_millis(20));
    }
    for row in &mut rows {
        let row = row.as_object_mut().unwrap();
        let keys = row.remove("keys").unwrap();
        row.insert("effective_keys".to_string(), keys);
    }
    assert_eq!(json!(rows), wanted["heads"]);
}

#[test]
fn a_map_has_levels_tiles_and_numbers() {
    let place = Place::new();
    let asked = Asked::new(&recording(&place));
    let shown = "layer=0&head=1&batch=0&of=weights&pool=max";
    let map = asked.json(&format!("map?{shown}"));
    assert_eq!([&map["levels"], &map["tile"], &map["len_query"]], [&json!(10), &json!(256), &json!(300)]);
    assert_eq!(map["done"], map["total"]);
    assert_eq!(map["scale"]["kind"], "square-root");
    assert_eq!(map["scale"]["colours"].as_array().unwrap().len(), 16);
    for tile in ["level=0&x=0&y=0", "level=9&x=1&y=1", "level=4&x=0&y=0"] {
        let (status, head, body) = asked.get(&format!("tile?{shown}&{tile}&low=0&high=0.5"));
        assert!(status == 200 && head.contains("image/png") && body.contains("PNG"), "{tile}: {status}");
    }
    let (status, head, _) = asked.get("thumbnail?layer=3&head=3&batch=0");
    assert!(status == 200 && head.contains("image/png"));
    let cells = |of: &str, queries: &str| {
        asked.json(&format!("cells?layer=0&head=1&batch=0&of={of}&queries={queries}&keys=0:64"))["values"]
            .clone()
    };
    let row = &cells("weights", "20:21")[0];
    let row: Vec<f64> = row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-6 && row[21..].iter().all(|&x| x == 0.0));
    assert_eq!(
        cells("mask", "20:22")[1].as_array().unwrap().iter().filter(|&x| *x == json!(1.0)).count(),
        22
    );
    assert!(cells("influence", "20:21")[0][20].as_f64().unwrap() > 0.0);
    assert_eq!(cells("scores", "5:5"), json!([]));
}

#[test]
fn what_there_is_not_is_refused_and_what_is_too_much() {
    let place = Place::new();
    let asked = Asked::new(&recording(&place));
    let head = "layer=0&head=1&batch=0";
    asked.refuses("map?layer=1&head=0&of=weights&pool=max", "layer: got 1");
    asked.refuses("map?layer=0&head=4&of=weights&pool=max", "head: got 4, want a number below 4");
    asked.refuses("map?layer=0&head=1&batch=1&of=weights&pool=max", "batch: got 1");
    asked.refuses("map?layer=0&of=weights&pool=max", "head: got nothing");
    asked.refuses(&format!("map?{head}&of=weight&pool=max"), "of: got weight");
    asked.refuses(&format!("map?{head}&of=weights&pool=sum"), "pool: got sum, want max or mean");
    asked.refuses(&format!("map?{head}&of=weights&pool=max&more=1"), "more");
    asked.refuses(&format!("map?{head}&of=weights&pool=max&level=-1"), "level");
    let tile = format!("tile?{head}&of=weights&pool=max&low=0&high=1");
    for (place, words) in [
        ("level=10&x=0&y=0", "level: got 10, want that of a tile, a number below 10"),
        ("level=9&x=2&y=0", "x: got 2, want that of a tile, a number below 2"),
        ("level=9&x=0&y=18446744073709551615", "y: got 18446744073709551615, want that of a tile"),
    ] {
        asked.refuses(&format!("{tile}&{place}"), words);
    }
    asked.refuses(&format!("tile?{head}&of=weights&pool=max&level=0&x=0&y=0"), "low: got nothing");
    let cells = format!("cells?{head}&of=weights");
    for (queries, keys) in [("0:65", "0:1"), ("0:1", "236:301"), ("5:4", "0:1")] {
        asked.refuses(&format!("{cells}&queries={queries}&keys={keys}"), "at most 64");
    }
    asked.refuses(&format!("{cells}&queries=a:b&keys=0:1"), "queries: got a:b, want A:B");
    asked.refuses(&format!("query?{head}&query=300"), "query: got 300, want a number below 300");
    asked.refuses(&format!("key?{head}&key=300"), "key: got 300");
    asked.refuses("heads?batch=1", "batch: got 1");
    asked.refuses("nothing", "there is no such file");
    // As many as there are, though more are asked for.
    let query = asked.json(&format!("query?{head}&query=3&count=18446744073709551615"));
    assert_eq!(query["by_weight"].as_array().unwrap().len(), 4);
}

#[test]
fn a_head_without_keys_is_answered_too() {
    let place = Place::new();
    let array = |length, salt| -> Array4<f32> { numbers((1, 2, length, 8), salt) };
    let (q, k) = (array(5, 1), array(0, 2));
    let named = [("q", q.view().into()), ("k", k.view().into()), ("v", k.view().into())];
    let asked = Asked::new(&place.write("empty.safetensors", &named));
    let map = asked.json("map?head=0&of=weights&pool=max");
    assert_eq!(map["done"], map["total"]);
    assert_eq!(asked.get("thumbnail?head=0").0, 200);
    assert_eq!(
        asked.json("cells?head=0&of=weights&queries=0:5&keys=0:0")["values"],
        json!([[], [], [], [], []])
    );
    asked.refuses("key?head=0&key=0", "there is none");
}

#[test]
fn what_cannot_be_computed_is_refused_before_anything_is_served() {
    let place = Place::new();
    let input = recording(&place);
    let mask = Array4::<f32>::from_elem((1, 1, 7, 7), -1.5);
    let mask = place.write("mask.npy", &[("mask", mask.view().into())]);
    qkv!("view", input, "--mask", mask, "--no-open").refused(&["mask"]);
}

#[test]
fn without_a_file_there_is_nothing_to_explore() {
    let view = View::start(&[]);
    let (host, cookie) = (view.host(), view.enter());
    let (status, _, body) = view.ask("GET /api/input", &[("Host", &host), ("Cookie", &cookie)], "");
    assert!(status == 422 && body.contains("explorer"), "{status} {body}");
}

#[test]
fn an_export_is_stopped_within_a_head() {
    let place = Place::new();
    let file = File::open(recording(&place)).unwrap();
    let (input, warnings) = explore::recording(&file).unwrap();
    assert_eq!(warnings, [""; 0]);
    for stop_at in [1, 401, 700, 3401] {
        let mut last = 0;
        let stopped = explorer::exported(&input, &mut |done, total| {
            assert!(done >= last && total == 8000, "{done} after {last} of {total}");
            last = done;
            if done >= stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(stopped.unwrap_err().to_string().contains("cancelled"));
        assert!((stop_at..stop_at.next_multiple_of(1000)).contains(&last), "{last}");
    }
}

#[test]
fn a_file_is_exported_with_what_it_has_room_for() {
    let place = Place::new();
    let (input, page) = (recording(&place), place.path("page.html"));
    qkv!("view", input, "--export", page).succeeded();
    let text = std::fs::read_to_string(&page).unwrap();
    let data = text.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: Value = serde_json::from_str(data).unwrap();
    let explorer = &data["explorer"];
    assert_eq!(explorer["input"]["layers"].as_array().unwrap().len(), 2);
    // Both layers have one text.
    assert_eq!(explorer["tokens"].as_array().unwrap().len(), 1);
    let heads = explorer["heads"].as_array().unwrap();
    assert_eq!(heads.len(), 8);
    let head = &heads[6];
    assert_eq!([&head["layer"], &head["head"], &head["batch"]], [&json!(3), &json!(2), &json!(0)]);
    assert_eq!(head["map"]["bin"], 1);
    assert_eq!(head["mass"].as_array().unwrap().len(), 300);
    let top = qkv!("top", input, "--layer", "3", "--head", "2", "--query", "250", "-n", "1", "--json").json();
    let listed = &head["by_weight"][250];
    assert_eq!(listed[0], top["by_weight"][0]["key"]);
    let close = |a: &Value, b: &Value| (a.as_f64().unwrap() / b.as_f64().unwrap() - 1.0).abs() < 1e-3;
    assert!(close(&listed[1], &top["by_weight"][0]["weight"]), "{listed} {top}");
    assert!(close(&listed[2], &top["by_weight"][0]["influence"]), "{listed} {top}");
    qkv!("view", place.path("none.npz"), "--export", page).refused(&["none.npz"]);
}
