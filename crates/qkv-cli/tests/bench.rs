//! `qkv bench`: names, what is printed, and what is refused. How fast anything is, no test says.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{Ran, command};

fn names(list: &str) -> Vec<&str> {
    list.lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .take_while(|&word| word != "shape:")
        .collect()
}

#[test]
fn json_has_the_machine_and_each_case_in_the_order_asked_for() {
    let json =
        qkv!("bench", "tiny", "padding", "--json", "--rounds", "1", "--threads", "2").succeeded().json();
    let keys =
        |value: &serde_json::Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&json), ["cases", "machine"]);
    let machine = &json["machine"];
    assert_eq!(keys(machine), ["fma_peak_gflops", "read_gbps", "simd", "threads"]);
    assert_eq!(machine["threads"], 2);
    assert_eq!(machine["simd"], qkv::Simd::best().name());
    let cases = json["cases"].as_array().expect("cases");
    assert_eq!(cases.iter().map(|case| &case["name"]).collect::<Vec<_>>(), ["tiny", "padding"]);

    let number = |value: &serde_json::Value| value.as_f64().filter(|&x| x > 0.0).expect("a number above 0");
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    number(&machine["fma_peak_gflops"]);
    number(&machine["read_gbps"]);
    // Visible pairs, and queries, keys, values and output in f32.
    let work = [(2 * 4 * 25, 16, 4 * 2 * 4 * 5), (12 * 512 * 1280, 128, 2 * 12 * (2048 + 1280))];
    for (case, (pairs, dims, rows)) in cases.iter().zip(work) {
        assert_eq!(keys(case), ["gbps", "gflops", "name", "of_limit", "seconds"]);
        let seconds = number(&case["seconds"]);
        let gflop = f64::from(2 * pairs * dims) / 1e9;
        let gigabytes = f64::from(4 * rows * dims / 2) / 1e9;
        near(number(&case["gflops"]), gflop / seconds);
        near(number(&case["gbps"]), gigabytes / seconds);
        // By limits of its own round, which are not printed.
        number(&case["of_limit"]);
    }
}

#[test]
fn the_table_names_the_instruction_set_and_the_threads() {
    let ran = command()
        .args(["bench", "tiny", "--rounds", "1", "--threads", "1"])
        .env("QKV_SIMD", "portable")
        .output();
    let ran = Ran::from(ran.expect("the command starts"));
    let out = &ran.succeeded().out;
    assert!(out.starts_with("machine  portable on 1 thread\n"), "{out}");
    assert!(out.contains("the median of 1 round;"), "{out}");
    let line = out.lines().last().expect("a line");
    assert!(line.starts_with("tiny ") && line.contains(" % of "), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    assert_eq!(ran.err, "");
}

#[test]
fn the_list_has_every_name_once_and_measures_nothing() {
    let ran = qkv!("bench", "--list");
    let names = names(&ran.succeeded().out);
    for name in ["full", "causal-1024", "decode-bf16", "window-dense", "softcap", "tiny"] {
        assert_eq!(names.iter().filter(|&&listed| listed == name).count(), 1, "{name}: {}", ran.out);
    }
    assert!(ran.out.lines().all(|line| line.chars().count() <= 80), "{}", ran.out);
    assert!(ran.out.contains("1, 32/8, 1, 8192, 128"), "{}", ran.out);
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is() {
    qkv!("bench", "tiny", "fastest").refused(&["fastest", "tiny", "window-dense"]);
    qkv!("bench", "tiny", "--rounds", "0").refused(&["--rounds", "at least 1"]);
    qkv!("bench", "tiny", "--threads", "0").refused(&["--threads", "at least 1"]);
    qkv!("bench", "tiny", "--threads", "100000").refused(&["--threads", "100000", "1024"]);
    qkv!("bench", "--list", "--json").refused(&["--list", "--json"]);
    let ran = command().args(["bench", "tiny"]).env("QKV_SIMD", "avx9").output().expect("the command starts");
    Ran::from(ran).refused(&["QKV_SIMD", "avx9", "portable"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_130() {
    let mut command = command();
    let mut child = command
        .args(["bench", "tiny", "--rounds", "1000000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut first = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut first).expect("text");
    assert!(first.starts_with("machine "), "{first}");
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("a signal");
    assert_eq!(child.wait().expect("an end").code(), Some(130));
}
