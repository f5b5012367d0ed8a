//! Checks of a layer: that its projections are those of the file, and that its output keeps the error law. The law's truth
//! is the same layer in f64, by the same code: it says whether numbers are exact, not whether heads are cut rightly, which
//! is for what the file expects.

use std::collections::BTreeSet;

use anyhow::bail;
use ndarray::{ArrayD, ArrayViewD, IxDyn};
use qkv::{AttentionOutput, Layer, Projections, Real, error_limit};
use qkv_view::show;

use crate::audit::{ROWS_AT_ONCE, draw};
use crate::check::Check;
use crate::compare::{Gauge, tolerance, widened};
use crate::expected::{check, share};
use crate::input::Given;
use crate::machine::Threads;
use crate::options::AttentionOptions;
use crate::paths::Scope;
use crate::request::{Number, Request, layer, typed};
use crate::source::{Array, Arrays};

/// Embeddings and weights that stand in a file beside its queries, keys and values.
pub struct Embedding {
    x: Array,
    weights: Vec<(String, Array)>,
}

impl Embedding {
    pub fn take(arrays: &mut Arrays) -> anyhow::Result<Option<Self>> {
        if !arrays.bundle.names().any(qkv::is_layer_array) {
            return Ok(None);
        }
        let Some(x) = arrays.take(&["x"])? else { return Ok(None) };
        Ok(Some(Self { x, weights: arrays.take_layer() }))
    }

    /// A check of each projection against the file's own queries, keys and values.
    pub fn check<T: Number>(
        &self,
        request: &Request<'_, T>,
        options: &AttentionOptions,
    ) -> anyhow::Result<Vec<Check>> {
        let Given::Arrays(given) = &request.input.given else { return Ok(Vec::new()) };
        let layer = layer::<T>(&self.weights, options)?;
        let Projections { query, key, value } = layer.project(typed(&self.x.tensor)?.view())?;
        let of_file = given.each().into_iter().zip(request.arrays.each());
        let mut checks = Vec::new();
        for (((name, array), (_, wanted)), made) in of_file.zip([query, key, value]) {
            if made.shape() != wanted.shape() {
                let (made, wanted) = (show::shape(made.shape()), show::shape(wanted.shape()));
                bail!("{}: x and the weights make {name} of shape {made}, and it has {wanted}", array.origin);
            }
            let mut gauge = Gauge::default();
            gauge.push_all(made.iter().map(|&x| widened(x)), wanted.iter().map(|&x| widened(x)));
            let limit = share::<T>(array) * gauge.largest;
            checks.push(Check {
                path: "x times its weights".to_string(),
                ..check(name, array, gauge, None, limit)
            });
        }
        Ok(checks)
    }
}

/// A layer's output against the same layer in f64.
pub struct Outcome {
    ours: Gauge,
    /// The plain five steps between the same products.
    pub plain: Gauge,
    /// Whether `plain` is of some rows only.
    sampled: bool,
}

impl Outcome {
    /// Nothing where there is no layer.
    pub fn new<T: Number>(
        request: &Request<'_, T>,
        whole: &AttentionOutput<T, IxDyn>,
        scope: &Scope,
        threads: &Threads,
    ) -> anyhow::Result<Option<Self>> {
        let (Some(layer), Given::Layer { x, weights }) = (&request.layer, &request.input.given) else {
            return Ok(None);
        };
        let wide = |array: ArrayViewD<'_, T>| array.mapv(widened);
        let weights =
            weights.iter().map(|(name, array)| Ok((name.as_str(), wide(typed(&array.tensor)?.view()))));
        let weights = weights.collect::<anyhow::Result<Vec<_>>>()?;
        let views = weights.iter().map(|(name, array)| (*name, array.view()));
        let truth = Layer::<f64>::from_arrays(views, Some(layer.heads()))?;
        let attention = request.attention(0);
        let x = wide(typed(&x.tensor)?.view());
        let truth =
            threads.run(|| truth.forward(&attention, x.view())).map_err(|error| request.explained(error))?;

        let mut ours = Gauge::default();
        ours.push_all(
            threads.run(|| layer.output(whole.output.view()))?.iter().map(|&x| widened(x)),
            truth.iter().copied(),
        );
        let mut plain = Gauge::default();
        let width = layer.dim_output();
        let truth =
            truth.into_shape_with_order((request.extents.batches * request.extents.len_query, width))?;
        let queries: Vec<_> = queries(request, scope).into_iter().collect();
        for queries in queries.chunks((ROWS_AT_ONCE / request.extents.heads).max(1)) {
            let output = plain_rows(request, layer, queries)?;
            for (&(batch, query), output) in queries.iter().zip(output.rows()) {
                let truth = truth.row(batch * request.extents.len_query + query);
                plain.push_all(output.iter().map(|&x| widened(x)), truth.iter().copied());
            }
        }
        plain.largest = ours.largest;
        Ok(Some(Self { ours, plain, sampled: scope.is_sample(&request.extents) }))
    }

    pub fn check<T: Number>(&self) -> Check {
        let law = error_limit::<T>(self.plain.error, self.plain.largest);
        let limit = if self.sampled { law.max(tolerance::<T>() * self.plain.largest) } else { law };
        Check {
            name: "layer".to_string(),
            path: "as attend".to_string(),
            against: "the layer in f64".to_string(),
            max_error: self.ours.error,
            plain_error: Some(self.plain.error),
            limit,
            passed: self.ours.error.is_finite() && self.ours.error <= limit,
        }
    }
}

/// The batches and queries whose plain rows are computed.
fn queries<T: Number>(request: &Request<'_, T>, scope: &Scope) -> BTreeSet<(usize, usize)> {
    let all = || draw(&request.extents, 0, usize::MAX, 0);
    scope.drawn.clone().unwrap_or_else(all).into_iter().map(|(batch, _, query)| (batch, query)).collect()
}

/// Rows of the layer by the plain five steps: of all heads, since the output's weights mix them. `(1, queries, out)`.
fn plain_rows<T: Number>(
    request: &Request<'_, T>,
    layer: &Layer<T>,
    queries: &[(usize, usize)],
) -> anyhow::Result<ArrayD<T>> {
    let heads = request.extents.heads;
    let rows: Vec<_> =
        (0..heads).flat_map(|head| queries.iter().map(move |&(batch, query)| (batch, head, query))).collect();
    let attention = request.attention(0);
    let rows = request.call(&attention).reference(&rows).map_err(|error| request.explained(error))?;
    let rounded = |y: f64| T::round(<T as qkv::Element>::Accumulator::from_f64(y));
    let plain = rows.iter().flat_map(|row| &row.plain_output).map(|&y| rounded(y)).collect();
    let shape = [1, heads, queries.len(), request.extents.dim_value];
    Ok(layer.output(ArrayD::from_shape_vec(IxDyn(&shape), plain)?.view())?)
}
