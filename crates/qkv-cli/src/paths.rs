//! The engine's paths against its two oracles.

use ndarray::{Array4, ArrayD, ArrayView4, IxDyn, s};
use qkv::{AttentionOutput, Path, Simd, error_limit};
use qkv_view::show;

use crate::audit::{ROWS_AT_ONCE, draw};
use crate::check::Check;
use crate::compare::{Gauge, distance, largest, lse_limit, sample_limit, widened};
use crate::machine::Threads;
use crate::progress::Progress;
use crate::request::{Extents, Number, Request, four_axes, view_four_axes};

/// Multiply-adds that the oracles are given, which do some 10^8 in a second; those for f64 far fewer.
const ORACLE_WORK: f64 = 5e8;
const ORACLE_WORK_F64: f64 = 3e7;
/// Rows that are drawn for the reference where not all are taken.
const DRAWN_ROWS: usize = 64;
/// Pairs up to which the weights are compared too.
const PAIRS_WITH_WEIGHTS: usize = 4_000_000;
/// How far a log-sum-exp may be from the reference: there is no plain one to measure by, and it carries the rounding
/// of its largest score.
const LSE_ULPS: f64 = 16.0;

/// Which rows are checked.
pub struct Scope {
    /// The first query of the rows that every path computes, all if 0.
    first: usize,
    /// Rows whose reference is computed, where not all are.
    pub drawn: Option<Vec<(usize, usize, usize)>>,
    weights: bool,
}

impl Scope {
    pub fn new<T: Number>(extents: &Extents, seed: u64) -> Self {
        let budget = if <T as qkv::Element>::NAME == "f64" { ORACLE_WORK_F64 } else { ORACLE_WORK };
        let row_work = extents.len_key as f64 * (extents.dim + extents.dim_value) as f64;
        let all_heads = (extents.batches * extents.heads) as f64 * row_work;
        let affordable = (budget / all_heads.max(1.0)).max(1.0);
        let first =
            if affordable >= extents.len_query as f64 { 0 } else { extents.len_query - affordable as usize };
        let pairs = extents.batches * extents.heads * (extents.len_query - first) * extents.len_key;
        let drawn = (first > 0).then(|| draw(extents, first, DRAWN_ROWS, seed));
        Self { first, drawn, weights: pairs <= PAIRS_WITH_WEIGHTS }
    }

    /// Whether so few rows are met that the plain error may be small by luck.
    pub fn is_sample(&self, extents: &Extents) -> bool {
        self.drawn.is_some() || extents.rows() < DRAWN_ROWS
    }

    pub fn words(&self, extents: &Extents) -> String {
        let last = extents.len_query - self.first;
        match &self.drawn {
            None => format!("all {} by each path and both oracles", extents.rows()),
            Some(drawn) => format!(
                "large, so not all: each path and the scalar oracle compute the last {} of each head, the reference \
                 {} drawn rows of these",
                show::count(last, "query"),
                drawn.len()
            ),
        }
    }
}

/// The checks of the paths, and what the checks of the file need.
pub struct Outcome<T: Number> {
    pub checks: Vec<Check>,
    /// The call as `attend` makes it, on all rows.
    pub whole: AttentionOutput<T, IxDyn>,
    pub plain: Plain,
}

/// The plain five steps against the reference.
pub struct Plain {
    /// Error, and largest number in the reference.
    pub output: Gauge,
    pub weights: Gauge,
}

/// One result of a path, on the rows of the scope.
struct Run<T: Number> {
    label: String,
    output: Array4<T>,
    against_reference: Gauge,
}

pub fn check<T: Number>(
    request: &Request<'_, T>,
    scope: &Scope,
    threads: &Threads,
    whole_weights: bool,
) -> anyhow::Result<Outcome<T>> {
    let explained = |error| request.explained(error);
    let variants = variants(request.simd, threads)?;
    let progress = Progress::new("checking");
    let total = variants.len() as u64 + 2;

    let attention = request.attention(0);
    let whole = threads.run(|| {
        let call = request.call(&attention).lse();
        if whole_weights { call.weights().run() } else { call.run() }
    });
    let whole = whole.map_err(explained)?;
    let _ = progress.report(1, total);
    let oracle = compute(request, scope, (Path::Scalar, None), threads)?;
    let _ = progress.report(2, total);

    let mut checks = Vec::new();
    let mut runs = Vec::new();
    for (done, variant) in variants.iter().enumerate() {
        let result = compute(request, scope, (variant.path, Some(variant.simd)), variant.threads(threads))?;
        checks.push(same_bits(&variant.label, &result, &oracle));
        runs.push(Run::new(variant.label.clone(), result.output, &request.extents)?);
        let _ = progress.report(done as u64 + 3, total);
    }
    if scope.first > 0 {
        let output = view_four_axes(&whole.output, &request.extents)?;
        let last = output.slice(s![.., .., scope.first.., ..]).to_owned();
        let same = same_numbers(last.iter(), oracle.output.iter());
        checks.push(bits_check("output", "all rows, as attend", same));
        runs.push(Run::new("all rows, as attend".to_string(), last.into_dyn(), &request.extents)?);
    }
    let mut truth = Truth::new(request, oracle)?;
    truth.compare(request, scope, &mut runs)?;
    let mut of_reference = truth.checks(&runs);
    of_reference.extend(checks);
    Ok(Outcome { checks: of_reference, whole, plain: truth.plain })
}

/// A path on an instruction set and so many threads.
struct Variant {
    path: Path,
    simd: Simd,
    /// One thread, where the others are all.
    single: Option<Threads>,
    label: String,
}

impl Variant {
    fn threads<'t>(&'t self, all: &'t Threads) -> &'t Threads {
        self.single.as_ref().unwrap_or(all)
    }
}

fn variants(only: Option<Simd>, threads: &Threads) -> anyhow::Result<Vec<Variant>> {
    let all = threads.count();
    let mut variants = Vec::new();
    for path in [Path::Prefill, Path::Decode] {
        for simd in
            Simd::ALL.into_iter().filter(|&simd| only.map_or(simd.is_available(), |only| simd == only))
        {
            for count in if all > 1 { vec![1, all] } else { vec![1] } {
                let single = if count == 1 { Some(Threads::new(Some(1))?) } else { None };
                let label = format!("{path} {simd}, {}", show::count(count, "thread"));
                variants.push(Variant { path, simd, single, label });
            }
        }
    }
    Ok(variants)
}

/// The rows of the scope, by one path.
fn compute<T: Number>(
    request: &Request<'_, T>,
    scope: &Scope,
    (path, simd): (Path, Option<Simd>),
    threads: &Threads,
) -> anyhow::Result<AttentionOutput<T, IxDyn>> {
    let mut attention = request.attention(scope.first).path(path);
    if let Some(simd) = simd {
        attention = attention.simd(simd);
    }
    let queries = request.queries(scope.first);
    let arrays = &request.arrays;
    let result = threads.run(|| {
        let call = attention.call(queries.view(), arrays.key.view(), arrays.value.view()).lse();
        if scope.weights { call.weights().run() } else { call.run() }
    });
    result.map_err(|error| request.explained(error))
}

/// The largest difference, and whether all bits agree.
fn same_numbers<'n, O: qkv::Element>(
    got: impl Iterator<Item = &'n O>,
    wanted: impl Iterator<Item = &'n O>,
) -> (f64, bool) {
    got.zip(wanted).fold((0.0, true), |(error, same), (&got, &wanted)| {
        let (got, wanted) = (widened(got), widened(wanted));
        (distance(got, wanted).max(error), same && got.to_bits() == wanted.to_bits())
    })
}

fn same_bits<T: Number>(
    label: &str,
    result: &AttentionOutput<T, IxDyn>,
    oracle: &AttentionOutput<T, IxDyn>,
) -> Check {
    let both = |other: (f64, bool), (error, same): (f64, bool)| (other.0.max(error), other.1 && same);
    let mut name = "output".to_string();
    let mut same = same_numbers(result.output.iter(), oracle.output.iter());
    if let (Some(lse), Some(wanted)) = (&result.lse, &oracle.lse) {
        name += "+lse";
        same = both(same, same_numbers(lse.iter(), wanted.iter()));
    }
    if let (Some(weights), Some(wanted)) = (&result.weights, &oracle.weights) {
        name += "+weights";
        same = both(same, same_numbers(weights.iter(), wanted.iter()));
    }
    bits_check(&name, label, same)
}

fn bits_check(name: &str, label: &str, (max_error, passed): (f64, bool)) -> Check {
    Check {
        name: name.to_string(),
        path: label.to_string(),
        against: "scalar, bit for bit".to_string(),
        max_error,
        plain_error: None,
        limit: 0.0,
        passed,
    }
}

impl<T: Number> Run<T> {
    fn new(label: String, output: ArrayD<T>, extents: &Extents) -> anyhow::Result<Self> {
        Ok(Self { label, output: four_axes(output, extents)?, against_reference: Gauge::default() })
    }
}

/// The reference, met row by row.
struct Truth<T: Number> {
    oracle: Array4<T>,
    /// `(batch, head, query, 1)`
    oracle_lse: Option<Array4<T::Accumulator>>,
    oracle_weights: Option<Array4<T>>,
    output: Gauge,
    lse: Gauge,
    weights: Gauge,
    plain: Plain,
    /// What is allowed beside the error law, where few rows are met.
    sample: Option<Largest>,
}

/// The largest score met, and the largest value.
#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    score: f64,
    value: f64,
}

impl<T: Number> Truth<T> {
    fn new(request: &Request<'_, T>, oracle: AttentionOutput<T, IxDyn>) -> anyhow::Result<Self> {
        let extents = &request.extents;
        let lse = oracle.lse.map(|lse| four_axes(lse.insert_axis(ndarray::Axis(extents.rank - 1)), extents));
        Ok(Self {
            oracle: four_axes(oracle.output, extents)?,
            oracle_lse: lse.transpose()?,
            oracle_weights: oracle.weights.map(|weights| four_axes(weights, extents)).transpose()?,
            output: Gauge::default(),
            lse: Gauge::default(),
            weights: Gauge::default(),
            plain: Plain { output: Gauge::default(), weights: Gauge::default() },
            sample: None,
        })
    }

    fn compare(
        &mut self,
        request: &Request<'_, T>,
        scope: &Scope,
        runs: &mut [Run<T>],
    ) -> anyhow::Result<()> {
        let all = || draw(&request.extents, 0, usize::MAX, 0);
        let rows = scope.drawn.clone().unwrap_or_else(all);
        let value = || largest(request.arrays.value.iter().copied());
        self.sample = scope.is_sample(&request.extents).then(|| Largest { score: 0.0, value: value() });
        let attention = request.attention(0);
        let call = request.call(&attention);
        let progress = Progress::new("reference");
        for (index, rows_at_once) in rows.chunks(ROWS_AT_ONCE).enumerate() {
            let _ = progress.report((index * ROWS_AT_ONCE) as u64, rows.len() as u64);
            let references = call.reference(rows_at_once).map_err(|error| request.explained(error))?;
            for (&(batch, head, query), reference) in rows_at_once.iter().zip(references) {
                let at = (batch, head, query - scope.first);
                if let Some(Largest { score, .. }) = &mut self.sample {
                    *score = score.max(largest(reference.masked.iter().copied()));
                }
                for run in &mut *runs {
                    push_row(&mut run.against_reference, run.output.view(), at, &reference.output);
                }
                push_row(&mut self.output, self.oracle.view(), at, &reference.output);
                if let Some(lse) = &self.oracle_lse {
                    push_row(&mut self.lse, lse.view(), at, &[reference.lse]);
                }
                if let Some(weights) = &self.oracle_weights {
                    push_row(&mut self.weights, weights.view(), at, &reference.weights);
                }
                self.plain.output.push_all(reference.plain_output, reference.output);
                self.plain.weights.push_all(reference.plain_weights, reference.weights);
            }
        }
        Ok(())
    }

    fn checks(&self, runs: &[Run<T>]) -> Vec<Check> {
        let check = |name: &str, path: &str, gauge: &Gauge, plain: Option<&Gauge>, limit: f64| Check {
            name: name.to_string(),
            path: path.to_string(),
            against: "reference".to_string(),
            max_error: gauge.error,
            plain_error: plain.map(|plain| plain.error),
            limit,
            passed: gauge.error.is_finite() && gauge.error <= limit,
        };
        let by_law = |name: &str, path: &str, gauge: &Gauge, plain: &Gauge, value: f64| {
            let law = error_limit::<T>(plain.error, gauge.largest);
            let limit = self.sample.map_or(law, |sample| sample_limit::<T>(law, sample.score, value));
            check(name, path, gauge, Some(plain), limit)
        };
        let value = self.sample.map_or(0.0, |sample| sample.value);
        let mut checks = vec![by_law("output", "scalar", &self.output, &self.plain.output, value)];
        if self.oracle_lse.is_some() {
            let limit = lse_limit::<T>(self.lse.largest, LSE_ULPS);
            checks.push(check("lse", "scalar", &self.lse, None, limit));
        }
        if self.oracle_weights.is_some() {
            checks.push(by_law("weights", "scalar", &self.weights, &self.plain.weights, 1.0));
        }
        let of_runs = runs
            .iter()
            .map(|run| by_law("output", &run.label, &run.against_reference, &self.plain.output, value));
        checks.extend(of_runs);
        checks
    }
}

fn push_row<O: qkv::Element>(
    gauge: &mut Gauge,
    got: ArrayView4<'_, O>,
    (batch, head, query): (usize, usize, usize),
    wanted: &[f64],
) {
    let got = got.slice(s![batch, head, query, ..]);
    gauge.push_all(got.iter().map(|&x| widened(x)), wanted.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_is_a_difference() {
        let ours = [1.0f32, f32::NAN, 0.0];
        assert_eq!(same_numbers(ours.iter(), ours.iter()), (0.0, true));
        assert_eq!(same_numbers(ours.iter(), [1.0, f32::NAN, -0.0].iter()), (0.0, false));
        assert_eq!(same_numbers(ours.iter(), [1.5, f32::NAN, 0.0].iter()), (0.5, false));
        assert_eq!(same_numbers(ours.iter(), [1.0, 2.0, 0.0].iter()), (f64::INFINITY, false));
    }
}
