//! Influence: what deleting a key does, held against doing it.

mod support;

use ndarray::{Array2, Array4, array, s};
use qkv::{Alignment, Attention};

/// The length of the difference of a row's output with all keys and without one.
fn by_deleting(
    attention: &Attention<'_>,
    [q, k, v]: [&Array4<f64>; 3],
    row: (usize, usize, usize),
) -> Vec<f64> {
    let output = |attention: &Attention<'_>| {
        let output = attention.forward(q.view(), k.view(), v.view()).unwrap();
        output.slice(s![row.0, row.1, row.2, ..]).to_owned()
    };
    let whole = output(attention);
    let deleted = |key| {
        let others = Array2::from_shape_fn((q.dim().2, k.dim().2), |(_, j)| j != key);
        let moved = &whole - &output(&attention.clone().mask(others.view()));
        moved.iter().map(|d| d * d).sum::<f64>().sqrt()
    };
    (0..k.dim().2).map(deleted).collect()
}

#[test]
fn it_is_what_deleting_the_key_does() {
    let query = support::grid::<f64>(&[2, 4, 5, 8], 1).into_dimensionality().unwrap();
    let key = support::grid::<f64>(&[2, 2, 7, 8], 2).into_dimensionality().unwrap();
    let value: Array4<f64> = support::grid::<f64>(&[2, 2, 7, 3], 3).into_dimensionality().unwrap();
    for attention in [
        Attention::new(),
        Attention::new().causal(Alignment::TopLeft).scale(1.5),
        // One key has nearly all the weight.
        Attention::new().scale(40.0),
        Attention::new().scale(3.0).sinks([1.0, f64::NEG_INFINITY, 9.0, -2.0]).window(Some(1), Some(1)),
    ] {
        for row in [(0, 0, 0), (1, 3, 4), (1, 2, 1)] {
            let influence = attention.call(query.view(), key.view(), value.view()).influence(row).unwrap();
            for (key, (&got, want)) in
                influence.iter().zip(by_deleting(&attention, [&query, &key, &value], row)).enumerate()
            {
                // Both are sums of a few f64 products of numbers up to 1.
                let limit = 64.0 * f64::EPSILON * (1.0 + want);
                assert!((got - want).abs() <= limit, "{row:?}, key {key}: {got}, {want}");
            }
        }
    }
}

#[test]
fn a_key_that_others_hide_behind_still_has_an_exact_influence() {
    // The weights of the others, e^-60, are lost beside 1; deleting the first key brings out their plain mean.
    let query = array![[1.0f64]];
    let key = array![[60.0], [0.0], [0.0]];
    let value = array![[5.0, 0.0], [1.0, 2.0], [3.0, 0.0]];
    let influence =
        Attention::new().call(query.view(), key.view(), value.view()).influence((0, 0, 0)).unwrap();
    assert!((influence[0] - 10f64.sqrt()).abs() < 1e-12, "{influence:?}");
    assert!(influence[1] > 0.0 && influence[1] < 1e-24, "{influence:?}");
}

#[test]
fn deleting_the_only_key_leaves_the_zero_row_and_masked_keys_have_none() {
    let query = array![[1.0f32, 2.0], [0.5, -1.0]];
    let value = array![[3.0f32, 4.0], [f32::NAN, 1.0]];
    let causal = Attention::new().causal(Alignment::TopLeft);
    let influence = |row| causal.call(query.view(), query.view(), value.view()).influence((0, 0, row));
    assert_eq!(influence(0).unwrap(), [5.0, 0.0]);
    assert!(influence(1).unwrap().iter().all(|moved| moved.is_nan()));
    assert!(influence(2).unwrap_err().to_string().contains("row: got (0, 0, 2)"));
}
