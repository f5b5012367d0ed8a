//! `qkv map`, `top`, `heads` and `diff`: held against the weights that `attend` writes, on files with hostile tokens, padding and
//! layers; and what is refused.

mod common;

use std::path::PathBuf;

use common::{Place, data, numbers, read};
use half::bf16;
use ndarray::{Array2, Array4, ArrayD, Ix4, s};
use serde_json::Value;

/// q, k and v of 2 heads, 40 queries and keys.
fn arrays(salt: u32) -> [Array4<f32>; 3] {
    [numbers((1, 2, 40, 8), salt), numbers((1, 1, 40, 8), salt + 1), numbers((1, 1, 40, 4), salt + 2)]
}

fn file(place: &Place, name: &str, salt: u32, texts: &[(&str, &str)]) -> PathBuf {
    let [q, k, v] = arrays(salt);
    place.write_with(name, &[("q", q.view().into()), ("k", k.view().into()), ("v", v.view().into())], texts)
}

/// Two layers, with metadata for both and for each.
fn recording(place: &Place) -> PathBuf {
    let ([q0, k0, v0], [q1, k1, v1]) = (arrays(1), arrays(7));
    place.write_with(
        "recording.safetensors",
        &[
            ("layers.0.q", q0.view().into()),
            ("layers.0.k", k0.view().into()),
            ("layers.0.v", v0.view().into()),
            ("layers.11.q", q1.view().into()),
            ("layers.11.k", k1.view().into()),
            ("layers.11.v", v1.view().into()),
        ],
        &[
            ("causal", "true"),
            ("layers.11.causal", "false"),
            ("layers.11.window", "3,2"),
            ("layers.0.softcap", "5"),
        ],
    )
}

/// `(head, query, key)`, as `attend` writes them with the same words.
fn weights(place: &Place, input: &PathBuf, words: &[&str]) -> ArrayD<f32> {
    let out = place.path("weights.npz");
    let mut command = common::command();
    command.arg("attend").arg(input).args(words).arg("--weights").arg("-o").arg(&out);
    common::Ran::from(command.output().unwrap()).succeeded();
    let weights: ArrayD<f32> = read(&out, "weights");
    weights.into_dimensionality::<Ix4>().unwrap().slice(s![0, .., .., ..]).to_owned().into_dyn()
}

fn number(value: &Value) -> f64 {
    match value {
        Value::String(text) => text.parse().unwrap(),
        number => number.as_f64().unwrap_or_else(|| panic!("{number} is no number")),
    }
}

#[test]
fn top_ranks_the_very_weights_that_attend_writes() {
    let place = Place::new();
    let input = file(&place, "in.safetensors", 3, &[("causal", "true")]);
    let all = weights(&place, &input, &[]);
    let top = qkv!("top", input, "--head", "1", "--query", "30", "-n", "5", "--json").json();
    let row = all.slice(s![1, 30, ..]);
    let listed = top["by_weight"].as_array().unwrap();
    assert_eq!(listed.len(), 5);
    let mut sorted: Vec<f32> = row.iter().copied().collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    for (entry, want) in listed.iter().zip(&sorted) {
        assert_eq!(number(&entry["weight"]) as f32, *want);
        assert_eq!(row[number(&entry["key"]) as usize], *want);
    }
    let rest: f64 = sorted[5..].iter().map(|&w| f64::from(w)).sum();
    assert!((number(&top["rest"]) - rest).abs() < 1e-12, "{top}");
    let influences: Vec<f64> =
        top["by_influence"].as_array().unwrap().iter().map(|entry| number(&entry["influence"])).collect();
    assert!(influences.is_sorted_by(|a, b| a >= b) && influences[0] > 0.0, "{influences:?}");

    // More than there are is all.
    let many =
        qkv!("top", input, "--head", "1", "--query", "30", "-n", "18446744073709551615", "--json").json();
    assert_eq!(many["by_weight"].as_array().unwrap().len(), 31);
    let of_key = qkv!("top", input, "--head", "1", "--key", "4", "-n", "3", "--json").json();
    let column = all.slice(s![1, .., 4]);
    let received: f64 = column.iter().map(|&w| f64::from(w)).sum();
    assert!((number(&of_key["received"]) - received).abs() < 1e-12);
    assert_eq!(of_key["queries"], 36);
    let first = &of_key["by_weight"][0];
    assert_eq!(number(&first["weight"]) as f32, column.iter().copied().fold(0.0, f32::max));
    assert_eq!(column[number(&first["query"]) as usize], number(&first["weight"]) as f32);
}

#[test]
fn heads_are_sorted_and_say_the_same_in_every_form() {
    let place = Place::new();
    let input = file(&place, "in.safetensors", 3, &[("causal", "true")]);
    let all = weights(&place, &input, &[]);
    let table = qkv!("heads", input, "--sort", "first", "--json").json();
    let heads = table["heads"].as_array().unwrap();
    let first: Vec<f64> = heads.iter().map(|head| number(&head["first"])).collect();
    assert!(heads.len() == 2 && first[0] >= first[1]);
    for head in heads {
        let own = all.slice(s![number(&head["head"]) as usize, .., 0]);
        let want = own.iter().map(|&w| f64::from(w)).sum::<f64>() / 40.0;
        assert!((number(&head["first"]) - want).abs() < 1e-12);
        assert!(head["same"].is_null(), "without tokens nothing is the same");
    }
    let csv = qkv!("heads", input, "--sort", "first", "--csv").succeeded().out.clone();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "head,entropy,effective_keys,distance,first,self,previous,same,after,empty,nan");
    assert_eq!(lines[1].split(',').nth(4).unwrap().parse::<f64>().unwrap(), first[0]);
    let reversed =
        qkv!("heads", input, "--sort", "first", "--reverse", "-n", "1", "--csv").succeeded().out.clone();
    assert_eq!(reversed.lines().nth(1), Some(lines[2]));
    assert_eq!(reversed.lines().count(), 2);
}

#[test]
fn tokens_find_copies_and_what_followed_them() {
    let place = Place::new();
    // Each query has the key of the place after the earlier copy of its token.
    let (tokens, mut q, k) =
        (["a", "b", "c", "a", "b", "c"], Array2::<f32>::zeros((6, 6)), Array2::<f32>::eye(6) * 30.0);
    for i in 3..6 {
        q[[i, i - 2]] = 1.0;
    }
    let json = serde_json::to_string(&tokens).unwrap();
    let input = place.write_with(
        "copies.safetensors",
        &[("q", q.view().into()), ("k", k.view().into()), ("v", k.view().into())],
        &[("tokens", &json), ("scale", "1"), ("causal", "true")],
    );
    let heads = qkv!("heads", input, "--json").json();
    let after = number(&heads["heads"][0]["after"]);
    // Three of six queries, all of whose weight is there.
    assert!((after - 0.5).abs() < 1e-6, "{heads}");
}

#[test]
fn a_recording_is_seen_layer_by_layer() {
    let place = Place::new();
    let input = recording(&place);
    let heads = qkv!("heads", input, "--json").json();
    let layers: Vec<u64> =
        heads["heads"].as_array().unwrap().iter().map(|head| head["layer"].as_u64().unwrap()).collect();
    assert_eq!(layers, [0, 0, 11, 11]);
    // What is said of a layer goes before what is said of all.
    let attend = qkv!("attend", input, "--layer", "11", "--json").json();
    assert!(attend["causal"].is_null(), "{attend}");
    assert!(attend["masks"].to_string().contains("window"), "{attend}");
    assert!(!qkv!("attend", input, "--layer", "0", "--json").json()["causal"].is_null());
    let top = qkv!("top", input, "--layer", "11", "--query", "10", "--json").json();
    let keys: Vec<u64> =
        top["by_weight"].as_array().unwrap().iter().map(|entry| entry["key"].as_u64().unwrap()).collect();
    assert!(keys.iter().all(|key| (7..=12).contains(key)), "{keys:?}");
    let sheet = place.path("sheet.svg");
    qkv!("map", input, "--sheet", "-o", sheet).succeeded();
    let svg = std::fs::read_to_string(sheet).unwrap();
    assert!(svg.contains("layer 11, head 1") && svg.contains("of 4 heads"));
    qkv!("attend", input).refused(&["which layer is meant", "2 layers, 0 to 11", "--layer N"]);
    qkv!("attend", input, "--layer", "3").refused(&["--layer 3", "no such layer"]);
    let plain = file(&place, "plain.safetensors", 3, &[]);
    qkv!("attend", plain, "--layer", "0").refused(&["--layer 0", "no recording"]);
    qkv!("explain", "--layer", "0").refused(&["--layer"]);
}

#[test]
fn arrays_beside_the_layers_of_a_recording_are_warned_of_once() {
    let place = Place::new();
    let [q, k, v] = arrays(1);
    let layers = [0, 1].map(|layer| ["q", "k", "v"].map(|name| format!("layers.{layer}.{name}")));
    let mut named: Vec<_> = layers
        .iter()
        .flat_map(|names| names.iter().zip([&q, &k, &v]))
        .map(|(name, array)| (&**name, array))
        .collect();
    named.extend([("q", &k), ("v", &v)]);
    let named: Vec<_> = named.into_iter().map(|(name, array)| (name, array.view().into())).collect();
    let input = place.write("beside.safetensors", &named);
    let words = "beside.safetensors: has layers, and beside them arrays that are not used: q, v";
    for ran in [
        qkv!("heads", input),
        qkv!("attend", input, "--layer", "1"),
        qkv!("top", input, "--layer", "0", "--query", "1"),
        qkv!("diff", input, input, "--layer", "1"),
    ] {
        let told = &ran.succeeded().err;
        assert!(told.matches(words).count() <= 2 && told.contains(words), "{told}");
    }
    assert_eq!(qkv!("heads", input).succeeded().err.matches("warning").count(), 1);
    assert_eq!(qkv!("diff", input, input).succeeded().err.matches("warning").count(), 2);
}

#[test]
fn padding_attends_nothing_and_is_attended_by_none() {
    let place = Place::new();
    let (q, k): (Array4<f32>, Array4<f32>) = (numbers((2, 1, 9, 4), 1), numbers((2, 1, 9, 4), 2));
    let arrays: [(&str, qkv_io::TensorView<'_>); 3] =
        [("q", q.view().into()), ("k", k.view().into()), ("v", k.view().into())];
    let input = place.write_with("padded.safetensors", &arrays, &[("padding", "[[0, 7], [3, 9]]")]);
    for (batch, real) in [(0, 0..7), (1, 3..9)] {
        let heads = qkv!("heads", input, "--batch", batch.to_string(), "--json").json();
        assert_eq!(heads["heads"][0]["empty"], 9 - real.len());
        let query = real.start.to_string();
        let top = qkv!("top", input, "--batch", batch.to_string(), "--query", query, "--json").json();
        let keys: Vec<usize> =
            top["by_weight"].as_array().unwrap().iter().map(|entry| number(&entry["key"]) as usize).collect();
        assert!(keys.len() == real.len() && keys.iter().all(|key| real.contains(key)), "{keys:?}");
    }
    let out = &qkv!("top", input, "--batch", "1", "--query", "2").succeeded().out.clone();
    assert!(out.contains("may attend nothing"), "{out}");
    for padding in ["[]", "[[0, 7]", "7", "[[0, 7], [3, 9], [0, 9]]"] {
        let input = place.write_with("wrong.safetensors", &arrays, &[("padding", padding)]);
        qkv!("heads", input).refused(&["metadata padding"]);
    }
}

/// bertviz #101: a batch is asked for by its number, and the message says which there are.
#[test]
fn a_batch_or_head_that_does_not_exist_is_refused_with_what_there_is() {
    let place = Place::new();
    let input = data("minilm-layer3.safetensors");
    let output = place.path("map.png");
    qkv!("map", input, "--batch", "3", "-o", output).refused(&["--batch: got 3, want a number below 3"]);
    qkv!("map", input, "--head", "12", "-o", output).refused(&["--head: got 12, want a number below 12"]);
    qkv!("top", input, "--batch", "9", "--query", "0").refused(&["--batch: got 9"]);
    qkv!("top", input, "--query", "25").refused(&["--query: got 25, want a number below 25"]);
    qkv!("top", input, "--key", "25").refused(&["--key: got 25"]);
    qkv!("top", input).refused(&["--query"]);
    qkv!("heads", input, "--batch", "3").refused(&["--batch: got 3"]);
    qkv!("map", input, "--queries", "20:30", "-o", output).refused(&["--queries: got 20:30"]);
    qkv!("map", input, "--size", "0", "-o", output).refused(&["--size: got 0"]);
    qkv!("map", input, "-o", place.path("map.gif")).refused(&["map.gif", ".png or .svg"]);
    qkv!("map", input, "-o", place.path("none/map.png")).refused(&["none"]);
    assert!(place.files().is_empty());
    qkv!("map", input, "--batch", "2", "-o", output).succeeded();
    assert_eq!(place.files(), ["map.png"]);
}

/// tokenizers #1937: labels are shown as they are, and nothing in them is markup.
#[test]
fn labels_are_text() {
    let place = Place::new();
    let (q, k): (Array2<f32>, Array2<f32>) = (numbers((8, 4), 1), numbers((8, 4), 2));
    let tokens = ["<s>", "</script><b>", "a<b&c", "\n", "", " ", "שלום", "a<b&c"];
    let input = place.write_with(
        "labels.safetensors",
        &[("q", q.view().into()), ("k", k.view().into()), ("v", k.view().into())],
        &[("tokens", &serde_json::to_string(&tokens).unwrap())],
    );
    let (svg, png) = (place.path("map.svg"), place.path("map.png"));
    qkv!("map", input, "-o", svg).succeeded();
    qkv!("map", input, "-o", png).succeeded();
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("&lt;/script&gt;&lt;b&gt;") && !svg.contains("</script>"), "{svg}");
    // One for each query and each key, copies too.
    assert_eq!(svg.matches(">a&lt;b&amp;c<").count(), 4);
    assert!(std::fs::read(png).unwrap().starts_with(b"\x89PNG"));
    let csv = qkv!("top", input, "--query", "0", "--csv").succeeded().out.clone();
    assert!(csv.contains(",</script><b>,"), "{csv}");
}

#[test]
fn a_map_says_what_its_cells_stand_for() {
    let place = Place::new();
    let array: Array2<f32> = numbers((1500, 4), 1);
    let input = place.write("long.safetensors", &[("x", array.view().into())]);
    let output = place.path("map.svg");
    let ran = qkv!("map", input, "-o", output, "--causal", "--of", "influence");
    assert!(
        ran.succeeded().out.contains("1024 × 1024 cells, each the largest of up to 2 × 2 pairs"),
        "{}",
        ran.out
    );
    let svg = std::fs::read_to_string(&output).unwrap();
    assert!(svg.contains("Influence, head 0") && svg.contains("causal top-left"), "{svg}");
    for (of, pool, title) in [
        ("mask", "mean", "Who may attend whom"),
        ("scores", "max", "Scores"),
        ("scaled", "sum", "Scaled scores"),
        ("weights", "max", "Attention weights"),
    ] {
        let words = ["--of", of, "--pool", pool, "--queries", "100:200", "--keys", ":300", "--size", "60"];
        let mut command = common::command();
        command.arg("map").arg(&input).args(words).arg("-o").arg(&output);
        let ran = common::Ran::from(command.output().unwrap());
        assert!(ran.succeeded().out.contains("60 × 60 cells"), "{}", ran.out);
        let svg = std::fs::read_to_string(&output).unwrap();
        assert!(svg.contains(title), "{of}: {svg}");
    }
}

#[test]
fn two_runs_are_told_apart_head_by_head() {
    let place = Place::new();
    let one = file(&place, "one.safetensors", 3, &[("causal", "true")]);
    let same = qkv!("diff", one, one, "--json").json();
    for head in same["heads"].as_array().unwrap() {
        assert_eq!((number(&head["divergence"]), number(&head["weight"])), (0.0, 0.0));
        assert_eq!((&head["changed"], &head["queries"]), (&0.into(), &40.into()));
    }
    let halves = arrays(3).map(|array| array.mapv(|x| bf16::from_f32(x * 1.01)));
    let [q, k, v] = &halves;
    let arrays: [(&str, qkv_io::TensorView<'_>); 3] =
        [("q", q.view().into()), ("k", k.view().into()), ("v", v.view().into())];
    let other = place.write_with("other.safetensors", &arrays, &[("causal", "true")]);
    let picture = place.path("diff.svg");
    let diff = qkv!("diff", one, other, "--head", "1", "-o", picture, "--json").json();
    let head = &diff["heads"][0];
    let divergence = number(&head["divergence"]);
    assert!(divergence > 1e-9 && divergence < 1e-2 && number(&head["weight"]) > 1e-4, "{diff}");
    let most = number(&head["most"]);
    assert!(most >= divergence && number(&head["at"]) > 0.0, "{diff}");
    assert!(std::fs::read_to_string(picture).unwrap().contains("Difference of attention weights, head 1"));
    // The file is compared with itself under other options.
    let causal = qkv!("diff", one, other, "--causal=none", "--csv").succeeded().out.clone();
    assert!(causal.starts_with("head,divergence,most,at,weight,changed,queries\n0,"), "{causal}");
    qkv!("diff", one, data("minilm-layer3.safetensors")).refused(&["3 batches", "as", "has"]);
    qkv!("diff", one, recording(&place)).refused(&["A has no layers and B 2 layers"]);
    qkv!("diff", one, other, "-o", place.path("x.png")).refused(&["--head"]);
}

#[test]
fn the_lesson_can_be_drawn() {
    let place = Place::new();
    let picture = place.path("lesson.svg");
    let ran = qkv!("explain", "--causal", "-o", picture);
    assert!(ran.succeeded().out.contains("wrote"), "{}", ran.out);
    let svg = std::fs::read_to_string(&picture).unwrap();
    for words in [
        "before and after scaling",
        ">Scores<",
        ">Scaled scores<",
        ">Masked scores<",
        ">Weights<",
        "variance",
    ] {
        assert!(svg.contains(words), "no {words} in {svg}");
    }
    qkv!("explain", "-o", place.path("lesson.txt")).refused(&["lesson.txt"]);
    qkv!("explain", data("minilm-layer3.safetensors"), "-o", place.path("rows.png"), "--json").succeeded();
    assert_eq!(place.files(), ["lesson.svg", "rows.png"]);
}
