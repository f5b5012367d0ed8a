//! Gradients of one call: every fast path against the scalar program, and that against the textbook's.

use ndarray::{Array1, Array2, ArrayD, ArrayViewD, Axis, IxDyn};
use qkv::{Attention, AttentionOutput, Element, Gradients, Real, error_limit};

use super::{Rng, laid_out, same_bits};

/// All gradients of a call whose forward pass returned this.
pub fn gradients<T: Element>(
    attention: &Attention<'_>,
    [q, k, v]: [ArrayViewD<'_, T>; 3],
    forward: &AttentionOutput<T, IxDyn>,
    d_output: ArrayViewD<'_, T>,
    d_lse: Option<&ArrayD<T::Accumulator>>,
) -> Gradients<T, IxDyn> {
    let call = attention.call(q, k, v);
    let mut backward = call.backward(forward.output.view(), forward.row_stats.as_ref().unwrap(), d_output);
    if let Some(d_lse) = d_lse {
        backward = backward.d_lse(d_lse.view());
    }
    backward.query().key().value().biases().sinks().run().unwrap()
}

pub fn same_gradients<T: Element>(got: &Gradients<T, IxDyn>, want: &Gradients<T, IxDyn>) {
    for (what, got, want) in [
        ("d_query", &got.query, &want.query),
        ("d_key", &got.key, &want.key),
        ("d_value", &got.value, &want.value),
    ] {
        same_bits(what, got.as_ref().unwrap().view(), want.as_ref().unwrap().view());
    }
    let (got_biases, want_biases) = (got.biases.as_ref().unwrap(), want.biases.as_ref().unwrap());
    assert_eq!(got_biases.len(), want_biases.len());
    for (at, (got, want)) in got_biases.iter().zip(want_biases).enumerate() {
        same_bits(&format!("gradient of bias {at}"), got.view(), want.view());
    }
    let flat = |sinks: &Option<Vec<T::Accumulator>>| sinks.clone().map(Array1::from_vec);
    assert_eq!(got.sinks.is_some(), want.sinks.is_some());
    if let (Some(got), Some(want)) = (flat(&got.sinks), flat(&want.sinks)) {
        same_bits("d_sinks", got.into_dyn().view(), want.into_dyn().view());
    }
}

/// A gradient of the output, and at times of the log-sum-exp, are drawn.
pub fn assert_differentiated<T: Element>(
    (fast, scalar): (&Attention<'_>, &Attention<'_>),
    views: [ArrayViewD<'_, T>; 3],
    copies: [ArrayViewD<'_, T>; 3],
    forward: &AttentionOutput<T, IxDyn>,
    layout: usize,
    rng: &mut Rng,
) {
    let number = |rng: &mut Rng| T::round(Real::from_f64(rng.number()));
    let strided = laid_out(&forward.output.mapv(|_| number(rng)), layout);
    let d_output = strided.view().to_owned();
    let lse = forward.lse.as_ref().unwrap();
    let d_lse = (rng.below(3) == 0).then(|| lse.mapv(|_| Real::from_f64(rng.number())));
    let want = gradients(scalar, copies.clone(), forward, d_output.view(), d_lse.as_ref());
    let got = gradients(fast, views.clone(), forward, strided.view(), d_lse.as_ref());
    same_gradients(&got, &want);
    // Whatever else is asked for, and so on whatever schedule.
    let call = || {
        let [q, k, v] = views.clone();
        let call = fast.call(q, k, v);
        let backward =
            call.backward(forward.output.view(), forward.row_stats.as_ref().unwrap(), strided.view());
        match &d_lse {
            Some(d_lse) => backward.d_lse(d_lse.view()),
            None => backward,
        }
    };
    let query = call().query().run().unwrap();
    same_bits("d_query alone", query.query.unwrap().view(), want.query.as_ref().unwrap().view());
    assert!(query.key.is_none() && query.value.is_none() && query.biases.is_none() && query.sinks.is_none());
    let key = call().key().run().unwrap().key.unwrap();
    same_bits("d_key alone", key.view(), want.key.as_ref().unwrap().view());
    let value = call().value().run().unwrap().value.unwrap();
    same_bits("d_value alone", value.view(), want.value.as_ref().unwrap().view());
    assert_law(scalar, copies, &want, &d_output, d_lse.as_ref());
}

/// Sums over heads and batches that share something: the truth, the plain steps, and the sizes of what is summed.
struct Sum([ArrayD<f64>; 3]);

impl Sum {
    fn new(shape: &[usize]) -> Self {
        Self([(); 3].map(|()| ArrayD::zeros(shape)))
    }

    /// The matrix that a batch and head has, counted over batch axes of these extents.
    fn add(&mut self, batch_axes: &[usize], (batch, head): (usize, usize), parts: [&Array2<f64>; 3]) {
        for (sum, part) in self.0.iter_mut().zip(parts) {
            let lead = sum.ndim() - 2;
            let mut view = sum.view_mut();
            let mut rest = batch;
            let mut at = vec![0; batch_axes.len() + 1];
            *at.last_mut().unwrap() = head;
            for (place, &extent) in at[..batch_axes.len()].iter_mut().zip(batch_axes).rev() {
                *place = rest % extent;
                rest /= extent;
            }
            // Right-aligned, and an axis of 1 serves all.
            for axis in 0..lead {
                let at = at[at.len() - lead + axis];
                let extent = view.len_of(Axis(0));
                view = view.index_axis_move(Axis(0), if extent == 1 { 0 } else { at });
            }
            let mut view = view.into_dimensionality::<ndarray::Ix2>().unwrap();
            let (rows, columns) = view.dim();
            for ((row, column), &x) in part.indexed_iter() {
                view[[if rows == 1 { 0 } else { row }, if columns == 1 { 0 } else { column }]] += x;
            }
        }
    }

    /// `T` is what the arrays of the call are of: its rounding of the output is in every gradient, whatever that leaves in.
    fn assert_law<T: Element, O: Element>(&self, what: &str, luck: f64, got: ArrayViewD<'_, O>) {
        let (mut worst, mut plain_worst, mut largest) = (0.0f64, 0.0f64, 0.0f64);
        let [truth, plain, sizes] = &self.0;
        for (((got, &truth), &plain), &size) in got.iter().zip(truth).zip(plain).zip(sizes) {
            let got = got.widen().to_f64();
            assert_eq!(truth.is_finite(), got.is_finite(), "{what}: truth {truth}, got {got}");
            if truth.is_finite() {
                worst = worst.max((got - truth).abs());
                plain_worst = plain_worst.max((plain - truth).abs());
                largest = largest.max(size);
            }
        }
        let luck = if got.len() < 64 { luck.max(4.0 * T::EPSILON) } else { luck };
        let limit = error_limit::<T>(plain_worst, largest) + luck * largest;
        assert!(
            worst <= limit,
            "{what}: error {worst:e}, plain {plain_worst:e}, limit {limit:e}, {}",
            T::NAME
        );
    }
}

fn assert_law<T: Element>(
    attention: &Attention<'_>,
    [q, k, v]: [ArrayViewD<'_, T>; 3],
    got: &Gradients<T, IxDyn>,
    d_output: &ArrayD<T>,
    d_lse: Option<&ArrayD<T::Accumulator>>,
) {
    let (axes, heads) = (d_output.ndim(), q.shape()[q.ndim() - 3]);
    let batch_axes = &d_output.shape()[..axes - 3];
    let group = heads.checked_div(k.shape()[k.ndim() - 3]).unwrap_or(1).max(1);
    let [mut query, mut key, mut value] = [&q, &k, &v].map(|array| Sum::new(array.shape()));
    let biases = got.biases.as_ref().unwrap();
    let mut of_biases: Vec<_> = biases.iter().map(|bias| Sum::new(&two_axes(bias.shape()))).collect();
    let mut sinks = Sum::new(&[heads, 1, 1]);
    let luck = luck::<T>(attention, [&q, &k, &v], d_output);
    for batch in 0..batch_axes.iter().product() {
        for head in 0..heads {
            let plane = batch * heads + head;
            let (rows, columns) = (d_output.shape()[axes - 2], d_output.shape()[axes - 1]);
            let flat = d_output.iter().copied().skip(plane * rows * columns).take(rows * columns);
            let d_output = Array2::from_shape_vec((rows, columns), flat.collect()).unwrap();
            let d_lse =
                d_lse.map(|d_lse| d_lse.iter().copied().skip(plane * rows).take(rows).collect::<Array1<_>>());
            let call = attention.call(q.clone(), k.clone(), v.clone());
            let d_lse = d_lse.as_ref().map(|d_lse| d_lse.view());
            let reference = call.reference_backward((batch, head), d_output.view(), d_lse).unwrap();
            let all = [&reference.exact, &reference.plain, &reference.sizes];
            query.add(batch_axes, (batch, head), all.map(|one| &one.query));
            key.add(batch_axes, (batch, head / group), all.map(|one| &one.key));
            value.add(batch_axes, (batch, head / group), all.map(|one| &one.value));
            for bias in &mut of_biases {
                bias.add(batch_axes, (batch, head), all.map(|one| &one.scores));
            }
            let of_sinks = all.map(|one| Array2::from_elem((1, 1), one.sink));
            sinks.add(&[], (batch, head), of_sinks.each_ref());
        }
    }
    query.assert_law::<T, T>("d_query", luck, got.query.as_ref().unwrap().view());
    key.assert_law::<T, T>("d_key", luck, got.key.as_ref().unwrap().view());
    value.assert_law::<T, T>("d_value", luck, got.value.as_ref().unwrap().view());
    for (sum, got) in of_biases.iter().zip(biases) {
        sum.assert_law::<T, T::Accumulator>("gradient of a bias", luck, got.view());
    }
    if let Some(got) = &got.sinks {
        sinks.assert_law::<T, T::Accumulator>(
            "d_sinks",
            luck,
            Array1::from_vec(got.clone()).into_dyn().view(),
        );
    }
}

/// A few rows of the plain steps may be right by luck: what the rounding of their scores explains passes too, as a share of what
/// is summed (NUMERICS.md).
fn luck<T: Element>(
    attention: &Attention<'_>,
    [q, k, v]: [&ArrayViewD<'_, T>; 3],
    d_output: &ArrayD<T>,
) -> f64 {
    let (axes, shape) = (d_output.ndim(), d_output.shape());
    let batches: usize = shape[..axes - 3].iter().product();
    let rows: Vec<_> = (0..batches * shape[axes - 3] * shape[axes - 2])
        .map(|row| {
            (
                row / shape[axes - 2] / shape[axes - 3],
                row / shape[axes - 2] % shape[axes - 3],
                row % shape[axes - 2],
            )
        })
        .collect();
    if rows.len() >= 64 {
        return 0.0;
    }
    let reference = attention.call(q.clone(), k.clone(), v.clone()).reference(&rows).unwrap();
    let largest_score = reference.iter().flat_map(|row| &row.scaled).fold(0.0f64, |max, s| max.max(s.abs()));
    4.0 * T::EPSILON * (1.0 + largest_score)
}

/// A bias may be given with fewer axes than a matrix has.
fn two_axes(shape: &[usize]) -> Vec<usize> {
    let missing = 2usize.saturating_sub(shape.len());
    std::iter::repeat_n(1, missing).chain(shape.iter().copied()).collect()
}
