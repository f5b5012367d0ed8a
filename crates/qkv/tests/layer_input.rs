//! Layers that cannot be meant: each is refused with an error that names the array, the shape got and the shape wanted.
//! Shapes and the order of axes are those of the caller's array.

mod support;

use ndarray::ArrayD;
use qkv::{Attention, Error, Layer};
use support::grid;

/// A layer of zeros: arrays by name and shape.
fn layer(arrays: &[(&str, &[usize])], heads: Option<usize>) -> Result<Layer<f32>, Error> {
    let arrays: Vec<_> = arrays.iter().map(|(name, shape)| (*name, ArrayD::zeros(*shape))).collect();
    Layer::from_arrays(arrays.iter().map(|(name, array)| (*name, array.view())), heads)
}

/// 4 heads of 5 numbers and 3 values, 2 key heads, 12 numbers in and 13 out.
const FITS: [(&str, &[usize]); 4] =
    [("w_q", &[12, 20]), ("w_k", &[12, 10]), ("w_v", &[12, 6]), ("w_o", &[12, 13])];

#[track_caller]
fn refused(arrays: &[(&str, &[usize])], heads: Option<usize>, message: &str) {
    match layer(arrays, heads) {
        Ok(_) => panic!("served, but should say: {message}"),
        Err(error) => assert_eq!(error.to_string(), message),
    }
}

#[test]
fn missing_doubled_and_unsupported_arrays_are_named() {
    let wanted =
        "want w_q, w_k and w_v, or torch's in_proj_weight, or q_proj.weight, k_proj.weight and v_proj.weight";
    let (q, k, v) = (("w_q", &[6, 4][..]), ("w_k", &[6, 4][..]), ("w_v", &[6, 4][..]));
    refused(&[], None, &format!("layer: got no w_q and no w_k and no w_v, {wanted}"));
    refused(&[q, ("b_k", &[4])], None, &format!("layer: got no w_k and no w_v, {wanted}"));
    refused(&[q, v, ("w_o", &[4, 4])], None, &format!("layer: got no w_k, {wanted}"));
    let double = |one: &str, role: &str, first: &str| {
        let message = format!("{role}: got two arrays, `{first}` and `{one}`, want one");
        let shape: &[usize] = if one.contains("in_proj_weight") { &[12, 6] } else { &[6, 4] };
        refused(&[q, k, v, ("b_k", &[4]), (one, shape)], None, &message);
    };
    double("attn.q_proj.weight", "w_q", "w_q");
    double("W_Q", "w_q", "w_q");
    double("self_attn.in_proj_weight", "w_q", "w_q");
    double("v_proj_weight", "w_v", "w_v");
    double("key.bias", "b_k", "b_k");
    let added = "want none: torch's add_bias_kv is not supported";
    refused(&[q, k, v, ("bias_k", &[1, 1, 4])], None, &format!("bias_k: got the array `bias_k`, {added}"));
    let message = format!("bias_v: got the array `attn.bias_v`, {added}");
    refused(&[("attn.bias_v", &[1, 1, 4]), q, k, v], None, &message);
    refused(
        &[q, k, v, ("o.bias", &[4])],
        None,
        "b_o: got the array `o.bias` without w_o, want w_o beside it",
    );
}

#[test]
fn the_number_of_heads_must_be_told_and_divide_the_weights() {
    let says = |name: &str| {
        format!("heads: got none, want the number of heads: torch's state (`{name}`) does not tell it")
    };
    refused(&[("a.in_proj_weight", &[12, 4])], None, &says("a.in_proj_weight"));
    let three = [("q_proj_weight", &[4, 6][..]), ("k_proj_weight", &[4, 6]), ("v_proj_weight", &[4, 6])];
    refused(&three, None, &says("q_proj_weight"));
    let lesson = |widths: [usize; 3], heads, message: &str| {
        let [q, k, v] = widths.map(|width| [6, width]);
        refused(&[("w_q", &q), ("w_k", &k), ("w_v", &v)], heads, message);
    };
    lesson([8, 8, 8], Some(0), "heads: got 0, want at least 1");
    lesson([8, 8, 8], Some(3), "w_q: got shape (6, 8), want (6, a multiple of 3): 3 heads");
    lesson([0, 8, 8], Some(2), "w_q: got shape (6, 0), want (6, a multiple of 2): 2 heads");
    lesson([0, 8, 8], None, "w_q: got shape (6, 0), want (6, 1 or more): 1 head");
    lesson([8, 6, 8], None, "w_k: got shape (6, 6), want (6, 8): w_q gives 1 head of 8");
    lesson([8, 16, 16], None, "w_k: got shape (6, 16), want (6, 8): w_q gives 1 head of 8");
    let wanted = "want (6, 2 · a number that divides 4): w_q gives 4 heads of 2";
    for width in [0, 1, 3, 6, 16] {
        lesson([8, width, 8], Some(4), &format!("w_k: got shape (6, {width}), {wanted}"));
    }
    let message = "w_v: got shape (6, 7), want (6, a multiple of 2): w_k gives 2 heads";
    lesson([8, 4, 7], Some(4), message);
    refused(
        &[("a.q.weight", &[8, 6]), ("a.k.weight", &[6, 6]), ("a.v.weight", &[8, 6])],
        Some(4),
        "w_k: got shape (6, 6), want (2 · a number that divides 4, 6): w_q gives 4 heads of 2 \
         (`a.k.weight`, which is (out, in))",
    );
    refused(
        &[("in_proj_weight", &[24, 8])],
        Some(3),
        "w_q: got shape (8, 8), want (a multiple of 3, 8): 3 heads (first third of `in_proj_weight`, which is (out, in))",
    );
}

#[test]
fn weights_and_biases_must_fit_one_another() {
    let (q, k, v) = (("w_q", &[6, 8][..]), ("w_k", &[6, 4][..]), ("w_v", &[6, 6][..]));
    let of = |arrays: &[(&str, &[usize])], message: &str| refused(arrays, Some(4), message);
    of(&[("w_q", &[8]), k, v], "w_q: got shape (8,), want (in, out)");
    of(
        &[q, k, ("v.weight", &[1, 6, 6])],
        "w_v: got shape (1, 6, 6), want (out, in) (`v.weight`, which is (out, in))",
    );
    of(&[q, ("w_k", &[5, 4]), v], "w_k: got shape (5, 4), want (6, out): w_q takes 6 numbers");
    of(&[q, k, ("W_v", &[7, 6])], "w_v: got shape (7, 6), want (6, out): w_q takes 6 numbers");
    let wanted = "want (12, out): 4 heads of 3 values side by side";
    of(&[q, k, v, ("w_o", &[6, 8])], &format!("w_o: got shape (6, 8), {wanted}"));
    of(
        &[q, k, v, ("o_proj.weight", &[12, 6])],
        "w_o: got shape (12, 6), want (out, 12): 4 heads of 3 values side by side \
         (`o_proj.weight`, which is (out, in))",
    );
    of(&[q, k, v, ("b_q", &[4])], "b_q: got shape (4,), want (8,): w_q gives as many numbers");
    of(&[q, k, v, ("b_k", &[4, 1])], "b_k: got shape (4, 1), want (4,): w_k gives as many numbers");
    of(&[q, k, v, ("V.bias", &[])], "b_v: got shape (), want (6,): w_v gives as many numbers (`V.bias`)");
    let output = ("w_o", &[12, 5][..]);
    of(&[q, k, v, output, ("b_o", &[12])], "b_o: got shape (12,), want (5,): w_o gives as many numbers");
    let thirds = "query, key and value";
    let message = format!("in_proj_weight: got shape (8, 6), want (3 · out, in): {thirds}");
    of(&[("in_proj_weight", &[8, 6])], &message);
    let message = format!("in_proj_weight: got shape (), want (3 · out, in): {thirds} (`a.in_proj_weight`)");
    of(&[("a.in_proj_weight", &[])], &message);
    let message = format!("in_proj_bias: got shape (3, 8), want (3 · out,): {thirds}");
    of(&[q, k, v, ("in_proj_bias", &[3, 8])], &message);
    let packed = ("in_proj_weight", &[24, 6][..]);
    of(
        &[packed, ("in_proj_bias", &[18])],
        "b_q: got shape (6,), want (8,): w_q gives as many numbers (first third of `in_proj_bias`)",
    );
}

#[test]
fn an_x_or_attended_that_does_not_fit_is_refused() {
    let layer = layer(&FITS, Some(4)).unwrap();
    for (shape, shown) in
        [(&[][..], "()"), (&[12], "(12,)"), (&[5, 11], "(5, 11)"), (&[2, 12, 5], "(2, 12, 5)")]
    {
        let x = ArrayD::zeros(shape);
        let message = format!("x: got shape {shown}, want (…, len, 12): w_q takes 12 numbers");
        assert_eq!(layer.project(x.view()).unwrap_err().to_string(), message);
        assert_eq!(layer.forward(&Attention::new(), x.view()).unwrap_err().to_string(), message);
    }
    for (shape, shown) in [
        (&[][..], "()"),
        (&[3], "(3,)"),
        (&[5, 3], "(5, 3)"),
        (&[2, 5, 3], "(2, 5, 3)"),
        (&[5, 4, 3], "(5, 4, 3)"),
        (&[1, 4, 5, 5], "(1, 4, 5, 5)"),
    ] {
        let error = layer.output(ArrayD::zeros(shape).view()).unwrap_err();
        assert_eq!(error.to_string(), format!("attended: got shape {shown}, want (…, 4, len, 3)"));
    }
    let one = self::layer(&[("w_q", &[12, 5]), ("w_k", &[12, 5]), ("w_v", &[12, 3])], None).unwrap();
    let error = one.output(ArrayD::zeros(vec![2, 5, 3]).view()).unwrap_err();
    assert_eq!(error.to_string(), "attended: got shape (2, 5, 3), want (len, 3) or (…, 1, len, 3)");
    // The options of attention are checked too.
    let x = ArrayD::zeros(vec![5, 12]);
    let error = layer.forward(&Attention::new().scale(f64::NAN), x.view()).unwrap_err();
    assert_eq!(error.to_string(), "scale: got NaN, want a finite f32");
}

#[test]
fn what_memory_cannot_hold_is_an_error() {
    const MANY: usize = 1 << 46;
    let layer = layer(&FITS[..3], Some(4)).unwrap();
    let (x, attended) = (grid::<f32>(&[1, 12], 0), grid::<f32>(&[4, 1, 3], 0));
    let error = layer.project(x.broadcast(vec![MANY, 12]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), format!("query: no memory for an array of shape ({MANY}, 20)"));
    let error = layer.output(attended.broadcast(vec![4, MANY, 3]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), format!("output: no memory for an array of shape ({MANY}, 4, 3)"));
    let wide = grid::<f32>(&[1, 1], 0);
    let wide = wide.broadcast(vec![4, MANY]).unwrap().into_dyn();
    let names = ["w_q", "w_k", "w_v"].map(|name| (name, wide.clone()));
    let error = Layer::from_arrays(names, None).unwrap_err();
    assert_eq!(error.to_string(), format!("w_q: no memory for an array of shape (4, {MANY})"));
    // Weights without numbers may be as wide as an index can count.
    let none = ArrayD::<f32>::zeros(vec![0, 1 << 62]);
    let layer =
        Layer::from_arrays(["w_q", "w_k", "w_v"].map(|name| (name, none.view())), Some(1 << 62)).unwrap();
    let error = layer.project(ArrayD::zeros(vec![1, 0]).view()).unwrap_err();
    assert!(matches!(error, Error::Memory { what: "query", .. }), "{error}");
}
