//! What is refused, how it is said, and that nothing is left behind.

mod common;

use std::process::Stdio;

use common::{Place, data, numbers};
use ndarray::Array2;

#[test]
fn usage_is_refused_in_one_line() {
    qkv!("attend", "--no-such-option").refused(&["--no-such-option"]);
    qkv!("attend", "--scale", "fast").refused(&["fast", "--scale"]);
    qkv!("attend", "--window", "3").refused(&["LEFT,RIGHT"]);
    qkv!("attend", "--threads", "0").refused(&["--threads"]);
    qkv!("attend", "--threads", "100000").refused(&["--threads", "100000", "1024"]);
    qkv!("attend", "--key-offset", "-1").refused(&["--key-offset", "-1"]);
    qkv!("attend", "--softcap", "0").refused(&["--softcap", "above 0"]);
    qkv!("attend", "--scale", "nan").refused(&["--scale", "finite"]);
    qkv!("attend", "--key-lengths", "17").refused(&["--key-lengths", "17", "16"]);
    qkv!("check").refused(&["INPUT"]);
    qkv!("fly").refused(&["fly"]);
    assert_eq!(qkv!("--help").status, Some(0));
    assert!(qkv!("attend", "--help").out.contains("--causal"));
}

#[test]
fn two_places_for_the_queries_are_refused() {
    for alignment in ["--causal=top-left", "--causal=bottom-right"] {
        qkv!("attend", alignment, "--query-offset", "3").refused(&[alignment, "--query-offset"]);
    }
    qkv!("attend", "--causal=none", "--prefix", "3").refused(&["--prefix"]);
    qkv!("attend", "--causal=diagonal").refused(&["diagonal"]);
}

#[test]
fn an_unknown_instruction_set_is_refused() {
    for command in [vec!["attend"], vec!["check", "no-such-file"]] {
        let ran =
            common::command().args(command).env("QKV_SIMD", "avx9").output().expect("the command starts");
        common::Ran::from(ran).refused(&["QKV_SIMD", "avx9", "portable"]);
    }
    let ran = common::command().arg("--").env("QKV_SIMD", "portable").output().expect("the command starts");
    assert!(common::Ran::from(ran).succeeded().out.contains("portable on"));
}

#[test]
fn outputs_that_cannot_be_written_are_refused_before_the_input_is_read() {
    let place = Place::new();
    let input = place.path("missing.npz");
    qkv!("attend", input, "-o", place.path("out.txt")).refused(&["out.txt", ".safetensors"]);
    qkv!("attend", input, "-o", place.path("out")).refused(&["out", ".npz"]);
    qkv!("attend", input, "-o", place.path("out.npy"), "--lse").refused(&["out.npy", "--lse"]);
    qkv!("attend", input, "-o", place.path("out.npy"), "--weights").refused(&["out.npy", ".npz"]);
    qkv!("attend", input, "-o", place.path("none/out.npy")).refused(&["out.npy", "none", "directory"]);
    qkv!("attend", input, "-o", place.path("out.npz")).refused(&["missing.npz", "no such file"]);
    assert!(place.files().is_empty());
}

/// It never ends, so it must not be read to its end.
#[cfg(target_os = "linux")]
#[test]
fn a_device_that_holds_no_arrays_is_refused_at_once() {
    qkv!("attend", "/dev/zero").refused(&["/dev/zero", ".safetensors"]);
}

#[test]
fn a_failed_write_leaves_nothing() {
    let place = Place::new();
    std::fs::create_dir(place.path("out.npy")).expect("a directory");
    let ran = qkv!("attend", "-o", place.path("out.npy"));
    assert_eq!(ran.status, Some(2), "{}", ran.err);
    assert!(ran.err.contains("is a directory"), "{}", ran.err);
    assert_eq!(place.files(), ["out.npy"]);
}

#[test]
fn damaged_files_are_refused() {
    let place = Place::new();
    let whole = std::fs::read(data("lesson-causal-seed0.safetensors")).expect("data");
    for length in [0, 4, 8, 100, whole.len() - 1] {
        let path = place.path("cut.safetensors");
        std::fs::write(&path, &whole[..length]).expect("written");
        qkv!("attend", path, "-o", place.path("out.npz")).refused(&["cut.safetensors"]);
        qkv!("check", path).refused(&["cut.safetensors"]);
    }
    assert_eq!(place.files(), ["cut.safetensors"]);
}

#[test]
fn mixed_types_are_named() {
    let place = Place::new();
    let x = numbers((1, 2, 3, 4), 1);
    let wide = x.mapv(f64::from);
    let arrays = [("q", x.view().into()), ("k", wide.view().into()), ("v", x.view().into())];
    let input = place.write("in.npz", &arrays);
    qkv!("attend", input).refused(&["q is f32", "k is f64", "v is f32"]);
    let integers = x.mapv(|x| x as i32);
    let input = place.write("integers.npz", &[("x", integers.view().into())]);
    qkv!("attend", input).refused(&["integers.npz:x", "i32"]);
}

#[test]
fn missing_and_doubtful_arrays_are_named() {
    let place = Place::new();
    let x = numbers((1, 2, 3, 4), 1);
    let view = || x.view().into();
    let input = place.write("two.npz", &[("q", view()), ("k", view())]);
    qkv!("attend", input).refused(&["two.npz", "no v", "it has q, k"]);
    let input = place.write("doubt.npz", &[("q", view()), ("Query", view()), ("k", view()), ("v", view())]);
    qkv!("attend", input).refused(&["q and Query"]);
    qkv!("attend", "-q", input).refused(&["q and Query"]);
    let q = format!("{}:nothing", input.display());
    qkv!("attend", "-q", q, "-k", input, "-v", input).refused(&["no array \"nothing\""]);
    let q = format!("{}:q", input.display());
    qkv!("attend", "-q", q).refused(&["no k, no v", "-k"]);
}

#[test]
fn layers_that_do_not_fit_are_explained() {
    let place = Place::new();
    let [x, wide, w, packed] =
        [numbers((3, 4), 1), numbers((3, 5), 1), numbers((4, 4), 2), numbers((12, 4), 3)];
    let half = w.mapv(qkv::f16::from_f32);
    let layer = |name: &str, x: &Array2<f32>, value: &str| {
        let half = [("W_v", half.view().into())];
        let value = if value == "half" { &half } else { &[(value, w.view().into())] };
        let [w_q, w_k] = ["W_q", "W_k"].map(|name| (name, w.view().into()));
        place.write(name, &[&[("X", x.view().into()), w_q, w_k], &value[..]].concat())
    };
    let torch =
        place.write("torch.safetensors", &[("x", x.view().into()), ("in_proj_weight", packed.view().into())]);
    qkv!("attend", torch).refused(&["torch.safetensors", "--heads", "in_proj_weight"]);
    qkv!("attend", torch, "--heads", "3").refused(&["in_proj_weight", "3 heads"]);
    qkv!("attend", torch, "--heads", "2", "--layout", "bshd").refused(&["--layout bshd", "no head axis"]);
    qkv!("attend", layer("part.npz", &x, "b_q")).refused(&["part.npz", "w_v"]);
    qkv!("check", layer("wide.npz", &wide, "W_v")).refused(&["wide.npz", "x", "(3, 5)"]);
    qkv!("check", layer("half.npz", &x, "half")).refused(&["W_v is f16", "one dtype"]);
    qkv!("explain", layer("mask.npz", &x, "W_v"), "--key-lengths", "4").refused(&["--key-lengths", "4"]);
}

#[test]
fn shapes_that_do_not_fit_are_explained() {
    let place = Place::new();
    let (q, k) = (numbers((2, 4, 3, 8), 1), numbers((2, 3, 5, 8), 2));
    let input =
        place.write("heads.npz", &[("q", q.view().into()), ("k", k.view().into()), ("v", k.view().into())]);
    qkv!("attend", input).refused(&["heads.npz:k", "(2, 3, 5, 8)", "divides the 4 query heads"]);
    let x = numbers((3, 2, 4, 8), 1);
    let mask = ndarray::Array3::from_elem((3, 4, 4), true);
    let input = place.write("mask.npz", &[("x", x.view().into()), ("mask", mask.view().into())]);
    qkv!("attend", input).refused(&["mask.npz:mask", "(3, 4, 4)", "(3, 2, 4, 4)", "unsqueeze(1)"]);
    let wide = Array2::<f32>::from_elem((4, 9), 0.5);
    let wide = place.write("wide.npy", &[("wide", wide.view().into())]);
    qkv!("attend", input, "--mask", wide).refused(&["wide.npy", "(4, 9)"]);
    let flat = numbers((3, 4, 10), 1);
    let input = place.write("flat.npz", &[("x", flat.view().into())]);
    qkv!("attend", input, "--heads", "3").refused(&["--heads 3", "(3, 4, 10)"]);
    qkv!("attend", input, "--heads", "0").refused(&["--heads 0"]);
    qkv!("attend", input, "--layout", "bshd").refused(&["--layout bshd", "4 axes"]);
    let vector = numbers(5, 1);
    let input = place.write("vector.npz", &[("x", vector.view().into())]);
    qkv!("attend", input).refused(&["vector.npz:x", "(5,)"]);
}

#[test]
fn texts_that_mean_nothing_are_refused() {
    let place = Place::new();
    let x = numbers((1, 2, 3, 4), 1);
    for (key, text) in [("causal", "maybe"), ("scale", "large"), ("mask-as", "block")] {
        let input = place.write_with("in.safetensors", &[("x", x.view().into())], &[(key, text)]);
        qkv!("attend", input).refused(&["in.safetensors", key, text]);
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let place = Place::new();
    let out = place.path("out.npz");
    for words in [&["attend".as_ref()][..], &["attend".as_ref(), "-o".as_ref(), out.as_ref()]] {
        assert_eq!(common::unread(words), (Some(0), String::new()));
    }
    // The file is written though nobody read the words.
    assert_eq!(place.files(), ["out.npz"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_stdout_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let ran = common::command().stdout(full).output().expect("the command starts");
    assert_eq!(ran.status.code(), Some(2));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_130_and_no_file() {
    let place = Place::new();
    // Far more work than the time it is given.
    let x = numbers((1, 8, 20_000, 64), 1);
    let input = place.write("in.npy", &[("x", x.view().into())]);
    let mut child = common::command()
        .arg("attend")
        .arg(&input)
        .arg("-o")
        .arg(place.path("out.npz"))
        .stdout(Stdio::piped())
        .env("QKV_SIMD", "portable")
        .spawn()
        .expect("the command starts");
    // The plan is printed last before the work begins.
    let mut out = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.starts_with("work") {
        line.clear();
        assert_ne!(std::io::BufRead::read_line(&mut out, &mut line).expect("text"), 0);
    }
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("a signal");
    assert_eq!(child.wait().expect("an end").code(), Some(130));
    assert_eq!(place.files(), ["in.npy"]);
}
