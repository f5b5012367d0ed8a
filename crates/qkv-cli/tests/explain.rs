//! `qkv explain`: the lessons' very numbers, tokens of the reader's own, rows of a file, and what is refused.

mod common;

use common::{Place, data, numbers, read};
use ndarray::{ArrayD, Axis, IxDyn};
use qkv_view::matrix::Matrix;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

/// The values of a step.
fn step(object: &Value, name: &str) -> ArrayD<f64> {
    let steps = object["steps"].as_array().expect("steps");
    let step = steps.iter().find(|step| step["name"] == name).unwrap_or_else(|| panic!("no step {name}"));
    let shape: Vec<usize> = step["shape"]
        .as_array()
        .expect("a shape")
        .iter()
        .map(|n| n.as_u64().expect("a length") as usize)
        .collect();
    let mut flat = Vec::new();
    flatten(&step["values"], &mut flat);
    ArrayD::from_shape_vec(IxDyn(&shape), flat).expect("as many values as the shape says")
}

fn flatten(value: &Value, flat: &mut Vec<f64>) {
    match value {
        Value::Array(parts) => parts.iter().for_each(|part| flatten(part, flat)),
        Value::String(text) => flat.push(text.parse().expect("a number that JSON cannot hold")),
        number => flat.push(number.as_f64().expect("a number")),
    }
}

/// Equal, but for the last digit, which the tests' JSON reader may miss.
fn same(got: &ArrayD<f64>, wanted: &ArrayD<f64>) {
    assert_eq!(got.mapv(|x| x as f32), wanted.mapv(|x| x as f32));
}

fn names(object: &Value) -> Vec<&str> {
    let steps = object["steps"].as_array().expect("steps");
    steps.iter().map(|step| step["name"].as_str().expect("a name")).collect()
}

/// The largest difference from an array of a file.
fn apart(got: &ArrayD<f64>, file: &str, name: &str) -> f64 {
    let wanted: ArrayD<f32> = read(&data(file), name);
    assert_eq!(got.shape(), wanted.shape(), "{name}");
    let pairs = got.iter().zip(&wanted);
    pairs.fold(0.0, |largest, (&got, &wanted)| match got as f32 == wanted {
        true => largest,
        false => f64::max(largest, (got - f64::from(wanted)).abs()),
    })
}

#[test]
fn the_first_lesson_has_torchs_numbers_and_prints_them_as_torch_does() {
    let ran = qkv!("explain", "--plain");
    let out = &ran.succeeded().out;
    for row in ["[0.2175, 0.2407, 0.1645, 0.1497, 0.2276]", "[-2.1442,  0.1880, -1.0190]"] {
        assert!(out.contains(row), "no {row} in {out}");
    }
    let file = data("lesson-seed42.safetensors");
    for name in
        ["X", "W_q", "W_k", "W_v", "Q", "K", "V", "scores", "scaled_scores", "attention_weights", "output"]
    {
        let array = read::<f32>(&file, name).mapv(f64::from).into_dimensionality().expect("a matrix");
        let printed = Matrix::new(array.view()).lines().join("\n");
        assert!(out.contains(&printed), "{name} is not printed as\n{printed}\nin\n{out}");
    }
    assert_eq!(ran.err, "");
}

#[test]
fn json_has_the_settled_steps() {
    let object = qkv!("explain", "--json").succeeded().json();
    assert_eq!(names(&object), ["average", "q", "k", "v", "scores", "scaled", "masked", "weights", "output"]);
    for (name, of_file) in
        [("q", "Q"), ("scores", "scores"), ("scaled", "scaled_scores"), ("output", "output")]
    {
        let error = apart(&step(&object, name), "lesson-seed42.safetensors", of_file);
        assert!(error < 1e-6, "{name}: {error}");
    }
    let average = step(&object, "average");
    let mean = step(&object, "v").mean_axis(Axis(0)).expect("rows");
    assert!(average.rows().into_iter().all(|row| (&row - &mean).iter().all(|d| d.abs() < 1e-12)));
    let checks = object["checks"].as_array().expect("checks");
    assert!(checks.iter().all(|check| check["verdict"] == "pass"), "{checks:?}");
}

#[test]
fn the_second_lesson_has_torchs_numbers_and_passes_its_four_checks() {
    let words = ["--batch", "2", "--heads", "4", "--dim", "8", "--seed", "0", "--causal"];
    let object = common::Ran::from(
        common::command().arg("explain").args(words).arg("--json").output().expect("the command starts"),
    );
    let object = object.succeeded().json();
    let file = "lesson-causal-seed0.safetensors";
    for (name, of_file, limit) in [
        ("q", "q", 0.0),
        ("k", "k", 0.0),
        ("v", "v", 0.0),
        ("weights", "weights", 1e-6),
        ("output", "expected", 1e-5),
    ] {
        let error = apart(&step(&object, name), file, of_file);
        assert!(error <= limit, "{name}: {error}");
    }
    let masked = step(&object, "masked");
    for (index, &score) in masked.indexed_iter() {
        assert_eq!(score == f64::NEG_INFINITY, index[3] > index[2], "{index:?}");
    }
    // Row 0 may read one value, row 1 two.
    let (average, value) = (step(&object, "average"), step(&object, "v"));
    assert_eq!(average[[1, 3, 0, 5]], value[[1, 3, 0, 5]]);
    let mean = (value[[1, 3, 0, 5]] + value[[1, 3, 1, 5]]) / 2.0;
    assert!((average[[1, 3, 1, 5]] - mean).abs() < 1e-15);
    let checks: Vec<_> =
        object["checks"].as_array().expect("checks").iter().map(|check| &check["name"]).collect();
    assert_eq!(checks, ["shape", "row sums", "no leak", "fast path"]);

    let out =
        common::Ran::from(common::command().arg("explain").args(words).output().expect("the command starts"));
    assert_eq!(out.succeeded().out.matches("\npass  ").count(), 4, "{}", out.out);
    // Another head is another matrix.
    let other =
        common::command().arg("explain").args(words).args(["--head", "3"]).output().expect("it starts");
    assert_ne!(common::Ran::from(other).succeeded().out, out.out);
}

#[test]
fn equal_words_are_equal_tokens() {
    let object = qkv!("explain", "--words", "the cat saw the dog", "--json").succeeded().json();
    let (query, output) = (step(&object, "q"), step(&object, "output"));
    assert_eq!(query.index_axis(Axis(0), 0), query.index_axis(Axis(0), 3));
    assert_eq!(output.index_axis(Axis(0), 0), output.index_axis(Axis(0), 3));
    assert_ne!(query.index_axis(Axis(0), 0), query.index_axis(Axis(0), 1));
    let out = qkv!("explain", "--words", "the cat saw the dog").out;
    assert!(out.contains("# 4 dog") && out.contains("query 0 (the)"), "{out}");
}

#[test]
fn embeddings_may_be_given() {
    let ran = qkv!("explain", "--x", "1 0; 0,1 ;1 1;");
    let wanted = "tensor([[1., 0.],\n        [0., 1.],\n        [1., 1.]])";
    assert!(ran.succeeded().out.contains(wanted), "{}", ran.out);
    // A projection of a sum is the sum of projections.
    let query = step(&qkv!("explain", "--x", "1 0; 0 1; 1 1", "--dim", "4", "--json").json(), "q");
    assert_eq!(query.shape(), [3, 4]);
    let sum = &query.index_axis(Axis(0), 0) + &query.index_axis(Axis(0), 1);
    assert!((&sum - &query.index_axis(Axis(0), 2)).iter().all(|d| d.abs() < 1e-6));
}

#[test]
fn a_range_of_a_file_is_the_part_of_the_whole() {
    let file = data("smollm2-layer14.safetensors");
    let words = ["--head", "5", "--queries", "100:103", "--keys", "98:104"];
    let ran =
        common::command().arg("explain").arg(&file).args(words).arg("--json").output().expect("it starts");
    let object = common::Ran::from(ran).succeeded().json();
    let place = Place::new();
    let out = place.path("out.safetensors");
    qkv!("attend", file, "--weights", "-o", out).succeeded();
    let part = |name: &str, columns: std::ops::Range<usize>| {
        let whole: ArrayD<f32> = read(&out, name);
        whole.slice(ndarray::s![0, 5, 100..103, columns]).mapv(f64::from).into_dyn()
    };
    same(&step(&object, "weights"), &part("weights", 98..104));
    same(&step(&object, "output"), &part("out", 0..64));
    // Query head 5 reads key head 1.
    let key: ArrayD<f32> = read(&file, "k");
    same(&step(&object, "k"), &key.slice(ndarray::s![0, 1, 98..104, ..]).mapv(f64::from).into_dyn());
    let text = common::command().arg("explain").arg(&file).args(words).output().expect("it starts");
    let text = common::Ran::from(text);
    for words in ["head 5 (which reads key head 1)", "queries 100:103 of 319", "-inf", "■", "·"] {
        assert!(text.succeeded().out.contains(words), "no {words:?} in {}", text.out);
    }
}

#[test]
fn one_row_is_a_sum_of_keys_by_weight() {
    let file = data("smollm2-layer14.safetensors");
    let object = qkv!("explain", file, "--head", "2", "--query", "35", "--json").succeeded().json();
    let keys = object["row"]["keys"].as_array().expect("keys");
    assert_eq!(keys.len(), 36);
    let weights: Vec<f64> = keys.iter().map(|key| key["weight"].as_f64().expect("a weight")).collect();
    assert!(weights.windows(2).all(|pair| pair[0] >= pair[1]), "{weights:?}");
    assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-6);
    assert!(
        keys.iter().all(|key| key["token"].is_string() && key["influence"].as_f64().is_some_and(|x| x > 0.0))
    );

    let out = qkv!("explain", file, "--head", "2", "--query", "35").out;
    for words in ["One row: query 35", "dedicated", "and 24 more keys", "283 keys masked"] {
        assert!(out.contains(words), "no {words:?} in {out}");
    }
}

#[test]
fn a_layers_file_is_explained_from_its_embeddings_on() {
    let file = data("torch-mha-causal.safetensors");
    let object =
        qkv!("explain", file, "--heads", "3", "--head", "1", "--batch", "1", "--json").succeeded().json();
    assert_eq!(step(&object, "q").shape(), [6, 8]);
    let out = qkv!("explain", file, "--heads", "3").out;
    for words in [
        "X, one row of numbers",
        "Q = X · W_q",
        "(2, 6, 24) · (24, 24) → (2, 6, 24)",
        "as heads (2, 3, 6, 8)",
        "The layer goes on",
    ] {
        assert!(out.contains(words), "no {words:?} in {out}");
    }
    qkv!("explain", file).refused(&["--heads", "torch-mha-causal"]);
}

#[test]
fn the_scale_is_shown_by_leaving_it_out() {
    let object = qkv!("explain", "--no-scale", "--json").succeeded().json();
    assert_eq!(step(&object, "scores"), step(&object, "scaled"));
    let rows = object["scale"].as_array().expect("comparisons");
    assert_eq!(rows[0]["name"], "this input");
    let number = |row: &Value, side: &str, what: &str| row[side][what].as_f64().expect("a number");
    // Variance is a square.
    let ratio = number(&rows[0], "without", "variance") / number(&rows[0], "with", "variance");
    assert!((ratio - 3.0).abs() < 1e-5, "{ratio}");
    let last = rows.last().expect("rows");
    assert!(number(last, "without", "gradient") < 0.1 && number(last, "with", "gradient") > 0.9, "{last}");
}

#[test]
fn every_line_fits_80_columns_and_no_pipe_sees_colours() {
    let files = ["smollm2-layer14", "minilm-layer3", "lesson-causal-seed0"];
    let mut runs = vec![
        vec!["--x", "20000 0; 0 20000", "--no-scale"],
        vec!["--scale", "1e-30"],
        vec!["--softcap", "1e-30"],
    ];
    runs.extend([vec![], vec!["--causal"], vec!["--no-scale"], vec!["--tokens", "30", "--dim", "40"]]);
    runs.push(vec!["--batch", "2", "--heads", "4", "--causal", "--softcap", "2", "--alibi"]);
    runs.push(vec!["--words", "supercalifragilisticexpialidocious understanding 注意力 é \u{301}"]);
    let paths = files.map(|file| data(&format!("{file}.safetensors")).display().to_string());
    for path in &paths {
        runs.push(vec![path]);
        runs.push(vec![path, "--query", "3"]);
        runs.push(vec![path, "--alibi", "--keys", "3:4"]);
    }
    for words in runs {
        let output = common::command().env("CLICOLOR_FORCE", "1").arg("explain").args(&words).output();
        let ran = common::Ran::from(output.expect("the command starts"));
        assert!(!ran.succeeded().out.contains('\u{1b}'), "{words:?}");
        // A path may be long, and may stand on a line of its own.
        let folder = data("").display().to_string();
        for line in ran.out.lines().filter(|line| !line.contains(&folder)) {
            assert!(line.width() <= 80, "{words:?}: {} columns: {line}", line.width());
        }
    }
}

#[test]
fn rows_that_may_attend_nothing_and_numbers_that_are_none_are_shown_as_such() {
    let place = Place::new();
    let mut x = numbers((4, 3), 1);
    x[[3, 0]] = f32::NAN;
    let input = place.write("in.npz", &[("x", x.view().into())]);
    let ran = qkv!("explain", input, "--causal=bottom-right", "--key-lengths", "2");
    for words in ["to 0", "0.0000", "nan"] {
        assert!(ran.succeeded().out.contains(words), "no {words:?} in {}", ran.out);
    }
    let object = qkv!("explain", input, "--json").succeeded().json();
    assert!(step(&object, "output").iter().all(|y| y.is_nan()));
    let alone = qkv!("explain", input, "--causal=bottom-right", "--key-lengths", "2", "--query", "0");
    assert!(alone.succeeded().out.contains("may attend nothing"), "{}", alone.out);
}

#[test]
fn a_failed_check_of_the_lesson_is_one_of_status_1() {
    // Scores beyond f32 leave no number to agree on.
    let ran = qkv!("explain", "--x", "1e30 0; 0 1e30");
    assert_eq!(ran.status, Some(1), "{} {}", ran.out, ran.err);
    assert!(ran.out.contains("\nFAIL  fast path"), "{}", ran.out);
    let checks = qkv!("explain", "--x", "1e30 0; 0 1e30", "--json").json()["checks"].clone();
    assert!(checks.as_array().expect("checks").iter().any(|check| check["verdict"] == "fail"), "{checks}");
}

#[test]
fn sinks_large_scores_and_odd_layouts_are_no_failure() {
    let place = Place::new();
    let sinks = place.write("sinks.npy", &[("sinks", numbers(1, 3).view().into())]);
    let ran = qkv!("explain", "--sinks", sinks, "--causal");
    assert!(ran.succeeded().out.contains("the sink's"), "{}", ran.out);
    // In columns, as Fortran has it; and with axes of length 0.
    let weights = numbers((4, 4), 2);
    let layer = |x: ndarray::ArrayViewD<'_, f32>| {
        let w = || weights.view().into();
        place.write("layer.npz", &[("x", x.into()), ("w_q", w()), ("w_k", w()), ("w_v", w())])
    };
    let x = numbers((2, 3, 4), 1);
    let columns = x.view().reversed_axes().as_standard_layout().into_owned().reversed_axes();
    let wanted = qkv!("explain", layer(x.view().into_dyn()), "--batch", "1").succeeded().out.clone();
    assert_eq!(qkv!("explain", layer(columns.view().into_dyn()), "--batch", "1").succeeded().out, wanted);
    let empty = numbers((2, 0, 4), 1);
    qkv!("explain", layer(empty.view().into_dyn()), "--batch", "1").refused(&["layer.npz", "no query"]);
    for seed in ["6", "7", "8"] {
        // With few rows the plain steps may be exact by luck.
        qkv!("explain", "--tokens", "5", "--dim", "64", "--seed", seed).succeeded();
    }
}

#[test]
fn texts_of_files_cannot_command_a_terminal() {
    let place = Place::new();
    let x = numbers((2, 3), 1);
    let arrays = [("x", x.view().into()), ("evil\u{1b}[31m", x.view().into())];
    let tokens = "[\"a\\u001b[31m\", \"\\u202eb\"]";
    let input = place.write_with("in.safetensors", &arrays, &[("tokens", tokens), ("scale", "0.5\u{9b}")]);
    for command in ["attend", "explain", "check"] {
        let ran = qkv!(command, input);
        for text in [&ran.out, &ran.err] {
            assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
        }
    }
    let long = "x".repeat(70_000);
    let input = place.write_with("long.npz", &[("x", x.view().into())], &[]);
    qkv!("attend", input).succeeded();
    let input = place.write_with(
        "long.safetensors",
        &[("x", x.view().into())],
        &[("tokens", &format!("[\"{long}\", \"b\"]"))],
    );
    for command in ["attend", "explain"] {
        let ran = qkv!(command, input);
        assert!(ran.succeeded().out.lines().all(|line| line.width() <= 140), "{}", ran.out);
    }
    // Tokens of another length are said to be left out.
    let input = place.write_with("short.safetensors", &[("x", x.view().into())], &[("tokens", "[\"a\"]")]);
    assert!(qkv!("explain", input).succeeded().out.contains("shown"));
    assert!(qkv!("explain", input).err.contains("tokens"), "no warning");
}

#[test]
fn what_cannot_be_explained_is_refused() {
    let file = data("minilm-layer3.safetensors");
    qkv!("explain", "no-such-file.npz").refused(&["no-such-file.npz"]);
    qkv!("explain", file, "--tokens", "4").refused(&["--tokens"]);
    qkv!("explain", file, "--words", "the cat").refused(&["--words"]);
    qkv!("explain", file, "--head", "12").refused(&["--head", "12"]);
    qkv!("explain", file, "--batch", "3").refused(&["--batch", "3"]);
    qkv!("explain", file, "--query", "25").refused(&["--query", "25"]);
    qkv!("explain", file, "--queries", "3:26").refused(&["--queries", "3:26", "0:25"]);
    qkv!("explain", file, "--keys", "3:3").refused(&["--keys", "3:3", "not empty"]);
    qkv!("explain", file, "--keys", "a:3").refused(&["A:B"]);
    qkv!("explain", "--words", "  ").refused(&["--words", "no word"]);
    qkv!("explain", "--x", "1 2; 3").refused(&["--x", "2, 1"]);
    qkv!("explain", "--x", "1 fish").refused(&["fish"]);
    qkv!("explain", "--x", "1 inf").refused(&["inf", "finite"]);
    qkv!("explain", "--x", "1 0", "--heads", "2").refused(&["--heads"]);
    qkv!("explain", "--tokens", "0").refused(&["--tokens", "0"]);
    qkv!("explain", "--tokens", "1000000").refused(&["--tokens 1000000", "want at most"]);
    qkv!("explain", "--heads", "18446744073709551615")
        .refused(&["--heads 18446744073709551615", "want at most"]);
    qkv!("explain", "--tokens", "-1").refused(&["--tokens", "-1"]);
    qkv!("explain", "--layout", "bshd").refused(&["--layout"]);
    qkv!("explain", file, "--query", "1", "--keys", "0:2").refused(&["--query", "--keys"]);
    qkv!("explain", "--no-scale", "--scale", "2").refused(&["--scale"]);
    qkv!("explain", "--query", "1", "--queries", "1:2").refused(&["--quer"]);
}
