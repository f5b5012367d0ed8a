//! `qkv random`: torch's numbers in every format and type, names, and what is refused.

mod common;

use std::process::Stdio;

use common::{Place, data, read};
use ndarray::ArrayD;
use qkv::{Element, Generator, Real, bf16, f16};

fn bits(array: &ArrayD<f32>) -> (Vec<usize>, Vec<u32>) {
    (array.shape().to_vec(), array.iter().map(|x| x.to_bits()).collect())
}

#[test]
fn the_lessons_are_drawn_as_torch_draws_them() {
    let place = Place::new();
    let out = place.path("out.safetensors");
    qkv!("random", "2,4,5,8", "2,4,5,8", "2,4,5,8", "-o", out).succeeded();
    let lesson = data("lesson-causal-seed0.safetensors");
    for name in ["q", "k", "v"] {
        assert_eq!(bits(&read(&out, name)), bits(&read(&lesson, name)), "{name}");
    }
    qkv!("random", "5,3", "--kind", "rand", "--seed", "42", "-o", out).succeeded();
    let lesson = data("lesson-seed42.safetensors");
    assert_eq!(bits(&read(&out, "x")), bits(&read(&lesson, "X")));
}

#[test]
fn it_says_what_was_drawn_and_written() {
    let place = Place::new();
    let out = place.path("out.npz");
    let ran = qkv!("random", "2, 3", "4", "5,0,1", "-o", out, "--seed", "18446744073709551615");
    let wanted = format!(
        "q        (2, 3)  f32, randn, seed 18446744073709551615\n\
         k        (4,)  f32, randn, seed 18446744073709551615\n\
         v        (5, 0, 1)  f32, randn, seed 18446744073709551615\n\
         wrote    {}: q (2, 3), k (4,), v (5, 0, 1)\n",
        out.display()
    );
    assert_eq!((ran.succeeded().out.as_str(), ran.err.as_str()), (wanted.as_str(), ""));
    let ran = qkv!("random", "7", "-o", out, "--kind", "rand", "--dtype", "bf16");
    assert!(ran.succeeded().out.starts_with("x        (7,)  bf16, rand, seed 0\n"), "{}", ran.out);
}

/// The arrays of one file in one type are the numbers of one generator, rounded.
fn drawn<T: Element + qkv_io::Element>(kind: &str, draw: fn(&mut Generator, &[usize]) -> ArrayD<f32>) {
    let place = Place::new();
    for format in ["npy", "npz", "safetensors"] {
        let out = place.path(&format!("out.{format}"));
        let name = <T as Element>::NAME;
        let mut generator = Generator::new(9);
        let mut wanted = |shape: &[usize]| {
            draw(&mut generator, shape).mapv(|x| T::round(T::Accumulator::from_f64(x.into())))
        };
        let first = wanted(&[3, 3]);
        if format == "npy" {
            qkv!("random", "3,3", "-o", out, "--seed", "9", "--kind", kind, "--dtype", name).succeeded();
            let bundle = qkv_io::read(&out, &qkv_io::ReadOptions::new().void_as_bf16(true)).expect("a file");
            let array = bundle.arrays[0].1.data::<T>().expect("its type").view().to_owned();
            assert_eq!(array, first);
            continue;
        }
        let names = ["--names", "one,Two,3"];
        let words = ["--seed", "9", "--kind", kind, "--dtype", name];
        let mut command = common::command();
        command.args(["random", "3,3", "4,5", "1"]).args(names).args(words).arg("-o").arg(&out);
        common::Ran::from(command.output().expect("the command starts")).succeeded();
        assert_eq!(read::<T>(&out, "one"), first, "{format} {name}");
        assert_eq!(read::<T>(&out, "Two"), wanted(&[4, 5]), "{format} {name}");
        assert_eq!(read::<T>(&out, "3"), wanted(&[1]), "{format} {name}");
    }
}

#[test]
fn every_type_and_format_holds_the_draws() {
    let randn = |generator: &mut Generator, shape: &[usize]| generator.randn(shape).expect("memory");
    let rand = |generator: &mut Generator, shape: &[usize]| generator.rand(shape).expect("memory");
    drawn::<f32>("randn", randn);
    drawn::<f64>("randn", randn);
    drawn::<f16>("randn", randn);
    drawn::<bf16>("randn", randn);
    drawn::<f32>("rand", rand);
    drawn::<f16>("rand", rand);
}

#[test]
fn what_it_writes_can_be_attended() {
    let place = Place::new();
    let out = place.path("out.safetensors");
    qkv!("random", "1,2,5,8", "1,2,7,8", "1,2,7,4", "-o", out).succeeded();
    assert!(qkv!("attend", out).succeeded().out.contains("(1, 2, 7, 4)"));
    qkv!("random", "1,2,5,8", "-o", out).succeeded();
    qkv!("attend", out).succeeded();
}

#[test]
fn shapes_that_are_none_are_refused() {
    let place = Place::new();
    let out = place.path("out.npz");
    qkv!("random", "-o", out).refused(&["SHAPE"]);
    for shape in ["", " ", ",", "2,", "2,x", "2,-1", "-1", "1.5", "2;3", "(2,3)", "2 3"] {
        qkv!("random", shape, "-o", out).refused(&["SHAPE", &format!("'{shape}'"), "as in 2,4,5,8"]);
    }
    qkv!("random", "-1,2", "-o", out).refused(&["-1"]);
    for shape in
        ["99999999999999999999", "4294967296,4294967296", "9223372036854775808", "0,9999999999,9999999999"]
    {
        qkv!("random", "1", "1", shape, "-o", out).refused(&["SHAPE", shape, "memory holds"]);
    }
    let words = ["SHAPE", "no memory", "(1000000000000, 1000000)"];
    qkv!("random", "1000000000000,1000000", "-o", out).refused(&words);
    assert!(place.files().is_empty());
}

#[test]
fn names_that_do_not_fit_are_refused() {
    let place = Place::new();
    let out = place.path("out.npz");
    qkv!("random", "1", "2", "-o", out).refused(&[
        "SHAPE",
        "got 2",
        "1 (the array x)",
        "3 (q, k, v)",
        "--names",
    ]);
    qkv!("random", "1", "2", "3", "4", "-o", out).refused(&["got 4", "--names with 4 names"]);
    qkv!("random", "1", "2", "3", "-o", out, "--names", "a,b").refused(&[
        "--names a,b",
        "2 names",
        "3 shapes",
    ]);
    qkv!("random", "1", "-o", out, "--names", "a,b").refused(&["--names a,b", "2 names", "1 shape"]);
    qkv!("random", "1", "2", "-o", out, "--names", "a,a").refused(&["--names a,a", "a twice"]);
    qkv!("random", "1", "2", "-o", out, "--names", "a,").refused(&["--names", "\"a,\"", "empty name"]);
    qkv!("random", "1", "-o", out, "--names", "").refused(&["--names", "empty name"]);
    assert!(place.files().is_empty());
}

#[test]
fn options_that_mean_nothing_are_refused() {
    let place = Place::new();
    let out = place.path("out.npz");
    qkv!("random", "1", "-o", out, "--kind", "normal").refused(&["--kind", "normal", "randn, rand"]);
    qkv!("random", "1", "-o", out, "--dtype", "i32").refused(&["--dtype", "i32", "f32, f64, f16, bf16"]);
    for seed in ["-1", "x", "1.5", "18446744073709551616"] {
        qkv!("random", "1", "-o", out, "--seed", seed).refused(&["--seed", seed]);
    }
    assert!(place.files().is_empty());
}

#[test]
fn outputs_that_cannot_be_written_are_refused() {
    let place = Place::new();
    qkv!("random", "1").refused(&["--output"]);
    // So many numbers that drawing them first would be an error of memory, or take long.
    const MANY: &str = "1000000000000,1000000";
    qkv!("random", MANY, "-o", place.path("out.txt")).refused(&[
        "-o",
        "out.txt",
        ".npy",
        ".npz",
        ".safetensors",
    ]);
    qkv!("random", MANY, "-o", place.path("none/out.npz")).refused(&["-o", "out.npz", "none", "directory"]);
    qkv!("random", MANY, "1", "1", "-o", place.path("out.npy")).refused(&[
        "-o",
        "out.npy",
        "one array",
        "3",
        ".npz",
    ]);
    std::fs::create_dir(place.path("out.npz")).expect("a directory");
    qkv!("random", MANY, "-o", place.path("out.npz")).refused(&["-o", "out.npz", "is a directory"]);
    assert_eq!(place.files(), ["out.npz"]);
}

#[test]
fn a_file_that_was_there_outlives_a_failure() {
    let place = Place::new();
    let out = place.path("out.safetensors");
    qkv!("random", "3", "-o", out).succeeded();
    let before = std::fs::read(&out).expect("a file");
    qkv!("random", "3", "-o", out, "--seed", "1", "--names", "__metadata__").refused(&["__metadata__"]);
    assert_eq!(std::fs::read(&out).expect("a file"), before);
    assert_eq!(place.files(), ["out.safetensors"]);
}

#[test]
fn the_file_is_written_though_nobody_reads_the_words() {
    let place = Place::new();
    let out = place.path("out.npy");
    let words = ["random".as_ref(), "3".as_ref(), "-o".as_ref(), out.as_ref()];
    assert_eq!(common::unread(&words), (Some(0), String::new()));
    assert_eq!(place.files(), ["out.npy"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_while_writing_ends_with_130_and_no_file() {
    let place = Place::new();
    let mut child = common::command()
        .args(["random", "60000000", "--kind", "rand", "-o"])
        .arg(place.path("out.npz"))
        .stdout(Stdio::null())
        .spawn()
        .expect("the command starts");
    // Once a file has bytes, it is being written.
    let is_writing = || {
        let mut names = place.files().into_iter();
        names.any(|name| std::fs::metadata(place.path(&name)).is_ok_and(|file| file.len() > 0))
    };
    while !is_writing() {
        assert_eq!(child.try_wait().expect("a state"), None, "it ended before it could be interrupted");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("a signal");
    assert_eq!(child.wait().expect("an end").code(), Some(130));
    assert!(place.files().is_empty(), "{:?}", place.files());
}
