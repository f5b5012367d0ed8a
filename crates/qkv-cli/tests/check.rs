//! `qkv check`: verdicts on real data, on data with a fault, and where not all rows are checked.

mod common;

use common::{Place, data, numbers};
use ndarray::ArrayD;

#[test]
fn real_data_passes() {
    for file in ["minilm-layer3", "smollm2-layer14", "lesson-causal-seed0", "lesson-seed42"] {
        let ran = qkv!("check", data(&format!("{file}.safetensors")));
        assert!(ran.succeeded().out.contains("\nverdict  pass: "), "{}", ran.out);
        assert!(!ran.out.contains("FAIL"), "{}", ran.out);
    }
}

#[test]
fn a_layer_of_torch_passes_and_keeps_the_error_law() {
    for (file, heads) in [("torch-mha", "4"), ("torch-mha-causal", "3")] {
        let ran = qkv!("check", data(&format!("{file}.safetensors")), "--heads", heads);
        for words in ["the layer in f64", "the file's expected", "\nverdict  pass: "] {
            assert!(ran.succeeded().out.contains(words), "no {words:?} in {}", ran.out);
        }
    }
    // Other heads, or no causal order, are another layer.
    let causal = data("torch-mha-causal.safetensors");
    for words in [["--heads", "4", "--causal=top-left"], ["--heads", "3", "--causal=none"]] {
        let ran = qkv!("check", causal, words[0], words[1], words[2]);
        assert_eq!(ran.status, Some(1), "{} {}", ran.out, ran.err);
        assert!(ran.out.contains("\nverdict  FAIL: 1 of "), "{}", ran.out);
    }
}

#[test]
fn projections_of_the_lesson_are_checked() {
    let file = data("lesson-seed42.safetensors");
    let out = qkv!("check", file).out;
    assert_eq!(out.matches("x times its weights").count(), 3, "{out}");
    let place = Place::new();
    let arrays: Vec<(&str, ArrayD<f32>)> = ["X", "W_q", "W_k", "W_v", "Q", "K", "V"]
        .map(|name| {
            let mut array: ArrayD<f32> = common::read(&file, name);
            if name == "W_k" {
                array[[2, 1]] += 1e-4;
            }
            (name, array)
        })
        .into();
    let views: Vec<_> = arrays.iter().map(|(name, array)| (*name, array.view().into())).collect();
    let ran = qkv!("check", place.write("fault.npz", &views));
    assert_eq!(ran.status, Some(1));
    let failed: Vec<_> = ran.out.lines().filter(|line| line.ends_with("FAIL")).collect();
    assert!(
        failed.len() == 1 && failed[0].starts_with("k ") && failed[0].contains("the file's K"),
        "{}",
        ran.out
    );
    // Without Q, K and V they are made, and the layer as a whole is held against f64.
    let out = qkv!("check", place.write("made.npz", &views[..4])).out;
    assert!(out.contains("the layer in f64") && out.contains("embeddings, projected"), "{out}");
}

#[test]
fn a_large_layer_is_checked_on_some_rows() {
    let place = Place::new();
    let [x, w] = [numbers((2000, 64), 1), numbers((64, 64), 2).mapv(|w| w / 8.0)];
    let arrays = [
        ("x", x.view().into()),
        ("w_q", w.view().into()),
        ("w_k", w.view().into()),
        ("w_v", w.view().into()),
    ];
    let ran = qkv!("check", place.write("large.npz", &arrays), "--heads", "4", "--causal");
    assert!(ran.succeeded().out.contains("large, so not all"), "{}", ran.out);
    assert!(ran.out.contains("the layer in f64"), "{}", ran.out);
}

#[test]
fn json_names_each_path_and_oracle() {
    let ran = qkv!("check", data("lesson-seed42.safetensors"), "--json", "--threads", "2");
    let object = ran.succeeded().json();
    assert_eq!(object["verdict"], "pass");
    let checks = object["checks"].as_array().expect("a list");
    for check in checks {
        let mut fields: Vec<_> = check.as_object().expect("an object").keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(fields, ["against", "limit", "max_error", "name", "path", "plain_error", "verdict"]);
        assert_eq!(check["verdict"], "pass");
    }
    let is_there = |name: &str, path: &str, against: &str| {
        let has = |check: &serde_json::Value, field: &str, words: &str| {
            check[field].as_str().is_some_and(|text| text.contains(words))
        };
        let found = checks.iter().any(|check| {
            has(check, "name", name) && has(check, "path", path) && has(check, "against", against)
        });
        assert!(found, "no check of {name} by {path} against {against}");
    };
    for path in ["prefill", "decode"] {
        for threads in ["portable, 1 thread", "portable, 2 threads"] {
            is_there("output", &format!("{path} {threads}"), "reference");
            is_there("output+lse+weights", &format!("{path} {threads}"), "scalar");
        }
    }
    for expected in ["output", "attention_weights", "scores", "scaled_scores"] {
        is_there("", "attend", expected);
    }
}

/// A copy of the lesson in which one number of an array is moved.
fn with_fault(place: &Place, name: &str, fault: f32) -> std::path::PathBuf {
    let arrays: Vec<(&str, ArrayD<f32>)> = ["q", "k", "v", "mask", "expected", "weights"]
        .map(|own| {
            let mut array: ArrayD<f32> = common::read(&data("lesson-causal-seed0.safetensors"), own);
            if own == name {
                *array.last_mut().expect("not empty") += fault;
            }
            (own, array)
        })
        .into();
    let views: Vec<_> = arrays.iter().map(|(name, array)| (*name, array.view().into())).collect();
    place.write_with("fault.safetensors", &views, &[("mask-as", "allow")])
}

#[test]
fn a_fault_in_the_file_fails_and_is_shown() {
    let place = Place::new();
    for name in ["expected", "weights"] {
        let ran = qkv!("check", with_fault(&place, name, 1e-3));
        assert_eq!(ran.status, Some(1), "{} {}", ran.out, ran.err);
        assert!(ran.out.contains("\nverdict  FAIL: 1 of "), "{}", ran.out);
        let line = ran.out.lines().find(|line| line.ends_with("FAIL")).expect("a line");
        assert!(line.contains(&format!("the file's {name}")) && line.contains("1.0e-3"), "{line}");
        let object = qkv!("check", with_fault(&place, name, f32::NAN), "--json").json();
        assert_eq!(object["verdict"], "fail");
    }
    // Half the limit is let pass, twice the limit is not: 2e-6 of the largest value, some 3.
    qkv!("check", with_fault(&place, "expected", 3e-6)).succeeded();
    assert_eq!(qkv!("check", with_fault(&place, "expected", 1.2e-5)).status, Some(1));
}

#[test]
fn options_count_in_a_check() {
    // Without its causal order the model's output is another.
    assert_eq!(qkv!("check", data("smollm2-layer14.safetensors"), "--causal=none").status, Some(1));
    let ran = qkv!("check", data("minilm-layer3.safetensors"), "--window", "3,-", "--alibi", "--json");
    assert_eq!(ran.status, Some(1));
    let object = ran.json();
    for check in object["checks"].as_array().expect("a list") {
        let of_file = check["against"].as_str().is_some_and(|against| against.contains("file"));
        assert_eq!(check["verdict"], if of_file { "fail" } else { "pass" }, "{check}");
    }
}

#[test]
fn expected_arrays_of_another_shape_are_refused() {
    let place = Place::new();
    let (x, short) = (numbers((1, 2, 3, 4), 1), numbers((1, 2, 3, 3), 2));
    let input = place.write("in.npz", &[("x", x.view().into()), ("expected", short.view().into())]);
    qkv!("check", input).refused(&["in.npz:expected", "(1, 2, 3, 3)", "(1, 2, 3, 4)"]);
}

#[test]
fn expected_output_is_in_the_layout_of_the_input() {
    let place = Place::new();
    let x = numbers((1, 6, 2, 4), 1);
    let input = place.write("in.safetensors", &[("x", x.view().into())]);
    let out = place.path("out.npy");
    for words in [["--layout", "bshd"], ["--causal=none", "--alibi"]] {
        qkv!("attend", input, words[0], words[1], "-o", out).succeeded();
        let expected: ArrayD<f32> = common::read(&out, "out");
        let both =
            place.write("both.safetensors", &[("x", x.view().into()), ("expected", expected.view().into())]);
        qkv!("check", both, words[0], words[1]).succeeded();
    }
}

#[test]
fn a_large_input_is_checked_on_some_rows_and_says_so() {
    let place = Place::new();
    let x = numbers((2, 400, 64), 1).mapv(f64::from);
    let input = place.write("large.npz", &[("x", x.view().into())]);
    for words in [
        ["--causal", "--alibi"],
        ["--causal=bottom-right", "--key-lengths=390"],
        ["--window=3,3", "--query-offset=5"],
    ] {
        let ran = qkv!("check", input, words[0], words[1]);
        assert!(ran.succeeded().out.contains("large, so not all"), "{}", ran.out);
        assert!(ran.out.contains("all rows, as attend"), "{}", ran.out);
    }
}

#[test]
fn two_arrays_for_one_expectation_are_refused() {
    let place = Place::new();
    let [x, out] = [numbers((3, 4), 1), numbers((3, 4), 2)];
    let arrays = [("x", x.view().into()), ("expected", out.view().into()), ("output", out.view().into())];
    qkv!("check", place.write("both.npz", &arrays)).refused(&["expected", "output", "keep one"]);
}
