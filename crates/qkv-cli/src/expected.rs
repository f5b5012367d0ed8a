//! What a file expects of its own arrays, and whether it comes out. Layers are `projected.rs`'s.

use anyhow::bail;
use ndarray::ArrayD;
use qkv::{Stage, error_limit, ulp};
use qkv_io::Dtype;
use qkv_view::show;

use crate::check::Check;
use crate::compare::{Gauge, largest, lse_limit, tolerance, widened};
use crate::machine::Threads;
use crate::mask::as_f64;
use crate::paths;
use crate::projected::{self, Embedding};
use crate::request::{Number, Request};
use crate::source::{Array, Arrays};

/// The arrays of a file that results are compared with.
pub struct Expected {
    output: Option<Array>,
    lse: Option<Array>,
    pub weights: Option<Array>,
    scores: Option<Array>,
    scaled_scores: Option<Array>,
    /// What the file's own queries, keys and values were made from.
    pub embedding: Option<Embedding>,
}

impl Expected {
    pub fn take(arrays: &mut Arrays) -> anyhow::Result<Self> {
        Ok(Self {
            output: arrays.take(&["expected", "output"])?,
            weights: arrays.take(&["weights", "attention_weights"])?,
            lse: arrays.take(&["expected_lse"])?,
            scores: arrays.take(&["scores"])?,
            scaled_scores: arrays.take(&["scaled_scores"])?,
            embedding: Embedding::take(arrays)?,
        })
    }

    /// Said where there is nothing to compare with.
    pub fn note(&self) -> Option<String> {
        let all = [&self.output, &self.lse, &self.weights, &self.scores, &self.scaled_scores];
        let none = all.iter().all(|array| array.is_none()) && self.embedding.is_none();
        none.then(|| {
            "the file expects nothing (it has no array named expected, output, expected_lse, weights …)"
                .to_string()
        })
    }

    /// Refuses arrays that cannot be compared, before anything is computed.
    pub fn check_shapes<T: Number>(&self, request: &Request<'_, T>) -> anyhow::Result<()> {
        let extents = &request.extents;
        let with = |last: &[usize]| extents.shape(last);
        let output = match &request.layer {
            Some(layer) => {
                let rows = [extents.len_query, layer.dim_output()];
                extents.batch_axes.iter().copied().chain(rows).collect()
            }
            None => request.layout.restored(&with(&[extents.len_query, extents.dim_value])),
        };
        let (lse, scores) = (with(&[extents.len_query]), with(&[extents.len_query, extents.len_key]));
        let pairs = [
            (&self.output, &output),
            (&self.lse, &lse),
            (&self.weights, &scores),
            (&self.scores, &scores),
            (&self.scaled_scores, &scores),
        ];
        for (array, wanted) in pairs {
            let Some(array) = array else { continue };
            let (got, dtype) = (array.tensor.shape(), array.tensor.dtype());
            if got != wanted {
                bail!(
                    "{}: got shape {}, want {}, as the result has",
                    array.origin,
                    show::shape(got),
                    show::shape(wanted)
                );
            }
            if !matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64) {
                bail!("{}: elements are {dtype}; want f32, f64, f16 or bf16", array.origin);
            }
        }
        Ok(())
    }

    /// A check for each array that is there, of the call as `attend` makes it.
    pub fn check<T: Number>(
        &self,
        request: &Request<'_, T>,
        paths::Outcome { whole, plain, .. }: &paths::Outcome<T>,
        layer: Option<&projected::Outcome>,
        threads: &Threads,
    ) -> anyhow::Result<Vec<Check>> {
        let mut checks = Vec::new();
        if let Some(array) = &self.output {
            let gauge = gauge(threads.run(|| request.leave(whole.output.view()))?.iter().copied(), array);
            let (plain, largest) = match layer {
                Some(layer) => (layer.plain, layer.plain.largest),
                None => (plain.output, largest(request.arrays.value.iter().copied())),
            };
            let law = error_limit::<T>(plain.error, plain.largest);
            let limit = (share::<T>(array) * largest).max(law);
            checks.push(check("output", array, gauge, Some(plain.error), limit));
        }
        if let (Some(array), Some(lse)) = (&self.lse, &whole.lse) {
            let gauge = gauge(lse.iter().copied(), array);
            checks.push(check("lse", array, gauge, None, lse_limit::<T>(gauge.largest, 4.0)));
        }
        if let (Some(array), Some(weights)) = (&self.weights, &whole.weights) {
            let gauge = gauge(weights.iter().copied(), array);
            let limit = share::<T>(array).max(error_limit::<T>(plain.weights.error, plain.weights.largest));
            checks.push(check("weights", array, gauge, Some(plain.weights.error), limit));
        }
        for (name, array, stage) in
            [("scores", &self.scores, Stage::Raw), ("scaled_scores", &self.scaled_scores, Stage::Scaled)]
        {
            let Some(array) = array else { continue };
            let gauge = gauge(scores(request, stage, threads)?.iter().copied(), array);
            let limit = (share::<T>(array) * gauge.largest).max(2.0 * ulp::<T::Accumulator>(gauge.largest));
            checks.push(check(name, array, gauge, None, limit));
        }
        Ok(checks)
    }
}

fn scores<T: Number>(
    request: &Request<'_, T>,
    stage: Stage,
    threads: &Threads,
) -> anyhow::Result<ArrayD<T::Accumulator>> {
    let attention = request.attention(0);
    let scores = threads.run(|| request.call(&attention).scores(stage));
    scores.map_err(|error| request.explained(error))
}

/// The share of the largest number that an error may be; the coarser type of the two decides.
pub fn share<T: Number>(array: &Array) -> f64 {
    let own = match array.tensor.dtype() {
        Dtype::F16 => tolerance::<qkv::f16>(),
        Dtype::Bf16 => tolerance::<qkv::bf16>(),
        Dtype::F32 => tolerance::<f32>(),
        _ => tolerance::<f64>(),
    };
    own.max(tolerance::<T>())
}

/// The error of numbers that should be the expected ones.
fn gauge<O: qkv::Element>(got: impl Iterator<Item = O>, expected: &Array) -> Gauge {
    let mut gauge = Gauge::default();
    gauge.push_all(got.map(widened), as_f64(&expected.tensor.view()));
    gauge
}

/// A comparison with an array of the file.
pub fn check(name: &str, array: &Array, gauge: Gauge, plain_error: Option<f64>, limit: f64) -> Check {
    let own_name = array.origin.rsplit(':').next().unwrap_or(&array.origin);
    Check {
        name: name.to_string(),
        path: "as attend".to_string(),
        against: format!("the file's {own_name}"),
        max_error: gauge.error,
        plain_error,
        limit,
        passed: gauge.error <= limit,
    }
}
