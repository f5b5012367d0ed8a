//! `qkv attend`: results in every format and layout, options, and what is said about them.

mod common;

use common::{Place, data, numbers, read};
use ndarray::{Array1, Array2, ArrayD, Axis, array, s};
use qkv::{Alignment, Attention, bf16, f16};

/// The sample's output, with what differs from run to run and machine to machine taken out.
fn masked(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_whitespace().next() {
        Some("time") => "time     […]".to_string(),
        Some("path") => "path     […]".to_string(),
        Some("work") => "work     […]".to_string(),
        _ => line.to_string(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn without_words_it_shows_the_sample() {
    let ran = qkv!();
    insta::assert_snapshot!("sample", masked(&ran.succeeded().out));
    assert_eq!(ran.err, "");
    assert_eq!(masked(&qkv!("attend").out), masked(&ran.out));
}

#[test]
fn json_has_the_settled_fields_and_stands_alone() {
    let ran = qkv!("attend", data("minilm-layer3.safetensors"), "--json", "--threads", "2");
    let object = ran.succeeded().json();
    let mut fields: Vec<_> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    fields.sort_unstable();
    let settled = [
        "audit",
        "causal",
        "dtype",
        "gflops",
        "inputs",
        "masks",
        "output",
        "peak_bytes",
        "plan",
        "scale",
        "seconds",
        "shapes",
    ];
    assert_eq!(fields, settled);
    assert_eq!(object["shapes"]["q"], serde_json::json!([3, 12, 25, 32]));
    assert_eq!(object["dtype"], "f32");
    assert_eq!(object["causal"], serde_json::Value::Null);
    assert_eq!(object["masks"][0]["kind"], "boolean");
    assert_eq!(object["masks"][0]["meaning"], "boolean: true = may attend");
    let axes = serde_json::json!(["3 batches", "every head", "every query", "25 keys"]);
    assert_eq!(object["masks"][0]["axes"], axes);
    assert_eq!(object["plan"]["path"], "prefill");
    assert!(object["plan"]["tiles"]["full"].is_u64() && object["plan"]["scratch_bytes"].is_u64());
    assert_eq!(object["audit"]["rows"], 16);
    assert!(object["audit"]["max_error"].as_f64().is_some_and(|error| error < 1e-5));
    assert_eq!(object["output"], serde_json::Value::Null);
}

#[test]
fn the_model_comes_out_as_expected() {
    let place = Place::new();
    let file = data("smollm2-layer14.safetensors");
    let out = place.path("out.safetensors");
    let ran = qkv!("attend", file, "--lse", "-o", out);
    let words = [
        "9 query heads, 3 key heads: 3 query heads share one",
        "causal top-left",
        "metadata scale 0.125; causal true",
    ];
    for word in words {
        assert!(ran.succeeded().out.contains(word), "no {word:?} in {}", ran.out);
    }
    let largest = |array: &ArrayD<f32>| array.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let apart = |a: &ArrayD<f32>, b: &ArrayD<f32>| largest(&(a - b));
    let limit = 2e-6 * largest(&read(&file, "v"));
    assert!(apart(&read(&out, "out"), &read(&file, "expected")) <= limit);
    assert!(apart(&read(&out, "lse"), &read(&file, "expected_lse")) <= 1e-5);
}

#[test]
fn a_layer_is_projected_attended_and_put_together() {
    let place = Place::new();
    let [x, w_q, w_k, w_v, w_o] =
        [(2, 5, 6), (0, 6, 8), (0, 6, 4), (0, 6, 6), (0, 12, 3)].map(|(batch, rows, columns)| {
            let shape = if batch > 0 { vec![batch, rows, columns] } else { vec![rows, columns] };
            numbers(ndarray::IxDyn(&shape), (rows * columns) as u32)
        });
    let b_v = numbers(ndarray::IxDyn(&[6]), 9);
    let named = [("x", &x), ("W_q", &w_q), ("W_k", &w_k), ("W_v", &w_v), ("W_o", &w_o), ("b_v", &b_v)];
    let arrays: Vec<_> = named.iter().map(|(name, array)| (*name, array.view().into())).collect();
    let input = place.write("layer.safetensors", &arrays);
    let out = place.path("out.npy");
    // 4 heads of 2 numbers; 2 key heads of 2 numbers, with values of 3.
    let ran = qkv!("attend", input, "--heads", "4", "--causal", "-o", out);
    for words in
        ["embeddings, projected", "4 query heads, 2 key heads", "W_o (12, 3)", "b_v (6,)", "out (2, 5, 3)"]
    {
        assert!(ran.succeeded().out.contains(words), "no {words:?} in {}", ran.out);
    }
    let weights = named[1..].iter().map(|(name, array)| (*name, array.view()));
    let layer = qkv::Layer::from_arrays(weights, Some(4)).expect("it fits");
    let wanted = layer.forward(&Attention::new().causal(Alignment::TopLeft), x.view()).expect("it fits");
    same(&out, "out", wanted);
    let object = qkv!("attend", input, "--heads", "4", "--json").succeeded().json();
    assert_eq!(
        object["shapes"],
        serde_json::json!({ "q": [2, 4, 5, 2], "k": [2, 2, 5, 2], "v": [2, 2, 5, 3], "out": [2, 5, 3] })
    );
    assert!(object["inputs"]["W_o"].is_string(), "{object}");
}

fn same<T: qkv_io::Element>(path: &std::path::Path, name: &str, wanted: ArrayD<T>) {
    assert_eq!(read::<T>(path, name), wanted, "{name} of {}", path.display());
}

/// A file of q, k and v of one type, its output by the engine, and the output that comes back.
macro_rules! round_trip {
    ($($element:ident),*) => {
        $(#[test]
        fn $element() {
            let convert = |salt| numbers((1, 2, 5, 8), salt).mapv(|x| <$element as FromF32>::of(x));
            let [q, k, v] = [1, 2, 3].map(convert);
            let place = Place::new();
            let arrays = [("q", q.view().into()), ("k", k.view().into()), ("v", v.view().into())];
            let attention = Attention::new().causal(Alignment::TopLeft);
            let wanted = attention.call(q.view(), k.view(), v.view()).lse().weights().run().expect("it fits");
            for format in ["npz", "safetensors"] {
                let input = place.write(&format!("in.{format}"), &arrays);
                for to in ["npy", "npz", "safetensors"] {
                    let out = place.path(&format!("out.{to}"));
                    let as_bf16 = ["--as", "bf16"];
                    if to == "npy" {
                        qkv!("attend", input, "--causal", as_bf16[0], as_bf16[1], "-o", out).succeeded();
                    } else {
                        qkv!("attend", input, "--causal", as_bf16[0], as_bf16[1], "--lse", "--weights", "-o", out).succeeded();
                        same(&out, "lse", wanted.lse.clone().expect("asked for").into_dyn());
                        same(&out, "weights", wanted.weights.clone().expect("asked for").into_dyn());
                    }
                    same(&out, "out", wanted.output.clone().into_dyn());
                }
            }
        })*
    };
}

trait FromF32 {
    fn of(x: f32) -> Self;
}

macro_rules! from_f32 {
    ($($element:ident: $convert:expr),*) => {
        $(impl FromF32 for $element {
            fn of(x: f32) -> Self {
                $convert(x)
            }
        })*
    };
}

from_f32!(f32: f32::from, f64: f64::from, f16: f16::from_f32, bf16: bf16::from_f32);

mod round_trips {
    use super::*;

    round_trip!(f32, f64, f16, bf16);
}

#[test]
fn arrays_of_single_files_and_by_name() {
    let place = Place::new();
    let [q, k, v] = [1, 2, 3].map(|salt| numbers((2, 5, 8), salt));
    let q_file = place.write("q.npy", &[("q", q.view().into())]);
    let both = place.write("kv.npz", &[("Key", k.view().into()), ("values", v.view().into())]);
    let out = place.path("out.npy");
    let v_file = format!("{}:values", both.display());
    qkv!("attend", "-q", q_file, "-k", both, "-v", v_file, "-o", out).succeeded();
    let wanted = Attention::new().forward(q.view(), k.view(), v.view()).expect("it fits");
    same(&out, "out", wanted.into_dyn());

    let x = place.write("x.safetensors", &[("X", q.view().into())]);
    qkv!("attend", x, "-o", out).succeeded();
    let wanted = Attention::new().forward(q.view(), q.view(), q.view()).expect("it fits");
    same(&out, "out", wanted.clone().into_dyn());
    qkv!("attend", q_file, "-o", out).succeeded();
    same(&out, "out", wanted.into_dyn());
}

#[test]
fn layouts_change_only_the_order_of_axes() {
    let place = Place::new();
    let q = numbers((2, 6, 4, 8), 1);
    let [k, v] = [2, 3].map(|salt| numbers((2, 7, 2, 8), salt));
    let out = place.path("out.npy");
    let swapped = |array: &ndarray::Array4<f32>| array.clone().permuted_axes([0, 2, 1, 3]);
    let wanted = Attention::new()
        .forward(swapped(&q).view(), swapped(&k).view(), swapped(&v).view())
        .expect("it fits");
    let wanted = swapped(&wanted);

    let arrays = [("q", q.view().into()), ("k", k.view().into()), ("v", v.view().into())];
    let bshd = place.write("bshd.safetensors", &arrays);
    qkv!("attend", bshd, "--layout", "bshd", "-o", out).succeeded();
    same(&out, "out", wanted.clone().into_dyn());
    // Read the other way around it does not fit, and what is odd is said.
    let odd = numbers((1, 9, 2, 4), 1);
    let odd = place.write("odd.safetensors", &[("x", odd.view().into())]);
    assert!(qkv!("attend", odd).err.contains("qkv: warning: k (1, 9, 2, 4) is read as 9 heads of 2 keys"));

    let packed = |array: &ndarray::Array4<f32>| {
        let (b, l, h, e) = array.dim();
        array.to_shape((b, l, h * e)).expect("contiguous").to_owned()
    };
    let [q, k, v] = [&q, &k, &v].map(packed);
    let arrays = [("q", q.view().into()), ("k", k.view().into()), ("v", v.view().into())];
    let file = place.write("packed.safetensors", &arrays);
    let ran = qkv!("attend", file, "--heads", "4", "-o", out);
    assert!(
        ran.succeeded().out.contains("4 query heads, 2 key heads: 2 query heads share one"),
        "{}",
        ran.out
    );
    same(&out, "out", packed(&wanted.as_standard_layout().to_owned()).into_dyn());
    // A file in Fortran order is viewed, not copied, and comes to the same.
    let fortran = |array: &ndarray::Array3<f32>| {
        let mut other = ndarray::Array3::zeros(ndarray::ShapeBuilder::f(array.dim()));
        other.assign(array);
        other
    };
    write_fortran_npy(&place.path("q.npy"), &fortran(&q));
    let [k_file, v_file] = [format!("{}:k", file.display()), format!("{}:v", file.display())];
    qkv!("attend", "-q", place.path("q.npy"), "-k", k_file, "-v", v_file, "--heads", "4", "-o", out)
        .succeeded();
    same(&out, "out", packed(&wanted.as_standard_layout().to_owned()).into_dyn());
}

fn write_fortran_npy(path: &std::path::Path, array: &ndarray::Array3<f32>) {
    let (a, b, c) = array.dim();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': True, 'shape': ({a}, {b}, {c}), }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    let numbers = array.as_slice_memory_order().expect("contiguous");
    bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(path, bytes).expect("written");
}

/// The output for q (1, 2, 3, 8), k and v (1, 2, 5, 8) with these words, or the engine's with these options.
struct Case {
    place: Place,
    input: std::path::PathBuf,
    arrays: [ndarray::Array4<f32>; 3],
}

impl Case {
    fn new() -> Self {
        let place = Place::new();
        let arrays = [numbers((1, 2, 3, 8), 1), numbers((1, 2, 5, 8), 2), numbers((1, 2, 5, 8), 3)];
        let [q, k, v] = &arrays;
        let named = [("q", q.view().into()), ("k", k.view().into()), ("v", v.view().into())];
        let input = place.write("in.safetensors", &named);
        Self { place, input, arrays }
    }

    fn run(&self, words: &[&str]) -> (common::Ran, ArrayD<f32>) {
        let out = self.place.path("out.npy");
        let ran: common::Ran = common::command()
            .arg("attend")
            .arg(&self.input)
            .args(words)
            .arg("-o")
            .arg(&out)
            .output()
            .expect("the command starts")
            .into();
        ran.succeeded();
        (ran, read(&out, "out"))
    }

    fn equals(&self, words: &[&str], attention: &Attention<'_>) -> String {
        let [q, k, v] = &self.arrays;
        let (ran, got) = self.run(words);
        let wanted = attention.forward(q.view(), k.view(), v.view()).expect("it fits");
        assert_eq!(got, wanted.into_dyn(), "{words:?}");
        ran.out
    }
}

#[test]
fn options_mean_what_the_engine_means() {
    let case = Case::new();
    let new = Attention::new;
    let said = case.equals(&["--causal"], &new().causal(Alignment::TopLeft));
    assert!(said.contains("causal top-left") && said.contains("query 0 stands at position 0"), "{said}");
    case.equals(&["--causal=top-left"], &new().causal(Alignment::TopLeft));
    let said = case.equals(&["--causal=bottom-right"], &new().causal(Alignment::BottomRight));
    assert!(said.contains("query 0 stands at position 2"), "{said}");
    case.equals(&["--causal", "--query-offset", "1"], &new().causal(Alignment::Offset(1)));
    case.equals(&["--causal", "--query-offset", "-1"], &new().causal(Alignment::Offset(-1)));
    case.equals(&["--prefix", "2"], &new().causal(Alignment::TopLeft).prefix([2]));
    case.equals(&["--prefix", "2", "--query-offset", "1"], &new().causal(Alignment::Offset(1)).prefix([2]));
    case.equals(
        &["--causal=bottom-right", "--prefix", "4"],
        &new().causal(Alignment::BottomRight).prefix([4]),
    );
    case.equals(&["--window", "1,0"], &new().window(Some(1), Some(0)));
    case.equals(&["--window", "-,0", "--query-offset", "2"], &new().window(None, Some(0)).query_offset(2));
    case.equals(&["--window=1,-"], &new().window(Some(1), None));
    case.equals(&["--key-lengths", "3"], &new().key_lengths([3]));
    case.equals(&["--alibi", "--key-offset", "2"], &new().alibi(qkv::Alibi::Paper).key_offset(2));
    case.equals(&["--softcap", "2.5"], &new().softcap(2.5));
    case.equals(&["--scale", "-0.5"], &new().scale(-0.5));
    case.equals(&["--scale", "0"], &new().scale(0.0));
    case.equals(&["--threads", "3"], &new());
}

#[test]
fn sinks_and_segments_come_from_files() {
    let case = Case::new();
    let sinks = Array1::from(vec![0.5f32, -1.0]);
    let file = case.place.write("sinks.npy", &[("sinks", sinks.view().into())]);
    let file = file.to_str().expect("text");
    case.equals(&["--sinks", file], &Attention::new().sinks([0.5, -1.0]));

    let (query, key) = (array![[1i32, 1, 2]], array![[1i32, 2, 2, 1, 3]]);
    let file = case.place.write("ids.npz", &[("query", query.view().into()), ("key", key.view().into())]);
    let (query, key) = (query.mapv(i64::from), key.mapv(i64::from));
    case.equals(
        &["--segments", file.to_str().expect("text")],
        &Attention::new().segments(query.view(), key.view()),
    );
    // One array serves queries and keys that are as many.
    let x = numbers((1, 2, 5, 8), 4);
    let input = case.place.write("same.npz", &[("x", x.view().into())]);
    let file = case.place.write("key.npy", &[("key", key.index_axis(Axis(0), 0).into())]);
    let out = case.place.path("out.npy");
    qkv!("attend", input, "--segments", file, "-o", out).succeeded();
    let wanted = Attention::new().segments(key.view(), key.view());
    let wanted = wanted.forward(x.view(), x.view(), x.view()).expect("it fits");
    same(&out, "out", wanted.into_dyn());
}

#[test]
fn masks_mean_what_was_said() {
    let case = Case::new();
    let ones = Array2::from_shape_fn((3, 5), |(i, j)| if j <= i { 1.0f32 } else { 0.0 });
    let file = case.place.write("ones.npy", &[("ones", ones.view().into())]);
    let file = file.to_str().expect("text");
    qkv!("attend", case.input, "--mask", file).refused(&[
        "ones.npy",
        "(3, 5)",
        "--mask-as allow",
        "--mask-as additive",
        "leak",
    ]);
    let allow = ones.mapv(|x| x != 0.0);
    let said = case.equals(&["--mask", file, "--mask-as", "allow"], &Attention::new().mask(allow.view()));
    assert!(said.contains("blocks where 0"), "{said}");
    case.equals(&["--mask", file, "--mask-as", "additive"], &Attention::new().bias(ones.view()));

    let integers = ones.mapv(|x| x as i64);
    let file = case.place.write("integers.npy", &[("mask", integers.view().into())]);
    let file = file.to_str().expect("text");
    qkv!("attend", case.input, "--mask", file).refused(&["i64", "--mask-as"]);
    case.equals(&["--mask", file, "--mask-as", "allow"], &Attention::new().mask(allow.view()));
    case.equals(&["--mask", file, "--mask-as", "additive"], &Attention::new().bias(ones.view()));

    let zeros = Array2::<f32>::zeros((3, 5));
    let file = case.place.write("zeros.npy", &[("mask", zeros.view().into())]);
    case.equals(&["--mask", file.to_str().expect("text")], &Attention::new());
    let added = numbers((2, 1, 5), 7);
    let file = case.place.write("added.npy", &[("mask", added.view().into())]);
    let said = case.equals(&["--mask", file.to_str().expect("text")], &Attention::new().bias(added.view()));
    assert!(
        said.contains("(2, 1, 5) is every batch, 2 heads, every query, 5 keys")
            || said.contains("1 batch, 2 heads"),
        "{said}"
    );
    let file = case.place.write("bool.npy", &[("mask", allow.view().into())]);
    let file = file.to_str().expect("text");
    let said = case.equals(&["--mask", file], &Attention::new().mask(allow.view()));
    assert!(said.contains("boolean: true = may attend"), "{said}");
    qkv!("attend", case.input, "--mask", file, "--mask-as", "additive").refused(&["boolean"]);
    qkv!("attend", case.input, "--mask-as", "allow").refused(&["--mask-as", "no mask"]);
}

#[test]
fn metadata_is_a_default_that_options_override() {
    let place = Place::new();
    let [q, k, v] = [numbers((1, 2, 3, 8), 1), numbers((1, 2, 5, 8), 2), numbers((1, 2, 5, 8), 3)];
    let allow = Array2::from_shape_fn((3, 5), |(i, j)| (i + j) % 2 == 0);
    let mask = allow.mapv(|allowed| if allowed { 1.0f32 } else { 0.0 });
    let arrays = [
        ("q", q.view().into()),
        ("k", k.view().into()),
        ("v", v.view().into()),
        ("MASK", mask.view().into()),
    ];
    let texts = [("scale", "0.5"), ("causal", "bottom-right"), ("mask-as", "allow")];
    let input = place.write_with("in.safetensors", &arrays, &texts);
    let out = place.path("out.npy");
    let comes_out = |attention: Attention<'_>| {
        let wanted = attention.forward(q.view(), k.view(), v.view()).expect("it fits");
        same(&out, "out", wanted.into_dyn());
    };
    let ran = qkv!("attend", input, "-o", out);
    assert!(ran.succeeded().out.contains("scale 0.5; causal bottom-right; mask-as allow"), "{}", ran.out);
    comes_out(Attention::new().scale(0.5).causal(Alignment::BottomRight).mask(allow.view()));

    let ran = qkv!("attend", input, "-o", out, "--scale", "2", "--causal", "--mask-as", "additive");
    let words = [
        "scale 0.5 is replaced by --scale 2",
        "causal bottom-right is replaced by --causal",
        "mask-as allow, replaced by --mask-as additive",
    ];
    for word in words {
        assert!(ran.succeeded().out.contains(word), "no {word:?} in {}", ran.out);
    }
    comes_out(Attention::new().scale(2.0).causal(Alignment::TopLeft).bias(mask.view()));

    qkv!("attend", input, "-o", out, "--causal=none").succeeded();
    comes_out(Attention::new().scale(0.5).mask(allow.view()));
    qkv!("attend", input, "-o", out, "--query-offset", "1").succeeded();
    comes_out(Attention::new().scale(0.5).causal(Alignment::Offset(1)).mask(allow.view()));

    // The option's mask replaces the file's, and its numbers mean what is said about it, not about the file's.
    let other = place.write("other.npy", &[("other", mask.view().into())]);
    qkv!("attend", input, "--mask", other).refused(&["other.npy", "--mask-as"]);
    let all = Array2::from_elem((3, 5), true);
    let all = place.write("all.npy", &[("all", all.view().into())]);
    let ran = qkv!("attend", input, "-o", out, "--mask", all);
    assert!(
        ran.succeeded().out.contains("in.safetensors:MASK is not used: --mask replaces it"),
        "{}",
        ran.out
    );
    comes_out(Attention::new().scale(0.5).causal(Alignment::BottomRight));
}

#[test]
fn empty_axes_are_no_error() {
    let place = Place::new();
    for (name, q, k) in [
        ("batch", (0, 2, 3, 4), (0, 2, 3, 4)),
        ("queries", (1, 2, 0, 4), (1, 2, 3, 4)),
        ("keys", (1, 2, 3, 4), (1, 2, 0, 4)),
    ] {
        let (q, k) = (numbers(q, 1), numbers(k, 2));
        let arrays = [("q", q.view().into()), ("k", k.view().into()), ("v", k.view().into())];
        let input = place.write(&format!("{name}.safetensors"), &arrays);
        let ran = qkv!("attend", input, "--lse");
        assert!(ran.succeeded().out.contains("out = tensor("), "{}", ran.out);
        qkv!("check", input).succeeded();
    }
}

#[test]
fn a_nan_that_is_seen_passes_the_audit() {
    let place = Place::new();
    let mut x = numbers((1, 2, 5, 8), 1);
    x.slice_mut(s![0, 0, 2, ..]).fill(f32::NAN);
    let input = place.write("x.npz", &[("x", x.view().into())]);
    let ran = qkv!("attend", input, "--causal");
    assert!(ran.succeeded().out.contains("nan"), "{}", ran.out);
}

#[test]
fn tokens_are_shown_only_where_they_fit() {
    let place = Place::new();
    let x = numbers((1, 1, 2, 4), 1);
    let arrays = [("x", x.view().into())];
    let good = place.write_with("good.safetensors", &arrays, &[("tokens", r#"["\n", "b"]"#)]);
    assert!(qkv!("attend", good).succeeded().out.contains("\"\\n\" →"));
    let long = place.write_with("long.safetensors", &arrays, &[("tokens", r#"["a", "b", "c"]"#)]);
    assert!(!qkv!("attend", long).succeeded().out.contains('→'));
    let bad = place.write_with("bad.safetensors", &arrays, &[("tokens", "a, b")]);
    assert!(qkv!("attend", bad).succeeded().err.contains("warning"));
}
