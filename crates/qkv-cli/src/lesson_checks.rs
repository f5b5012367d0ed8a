//! What the lessons check at their end: the shape, the sums of rows, that nothing leaks from the future where there is
//! causal order, and that the fast path agrees with the five steps.

use ndarray::{ArrayD, ArrayViewD, Axis, Dimension, IxDyn, Slice};
use qkv::{Alignment, Attention, Real, Trace};
use qkv_view::{show, text};

use crate::audit::{against_reference, draw};
use crate::compare::widened;
use crate::request::{Number, Request, view_four_axes};

/// Places at which the future is spoilt, to see that nothing of it leaks, at most.
const SPOILT: usize = 8;

/// Something that a lesson promises.
pub struct Check {
    pub name: &'static str,
    /// What was found.
    pub what: String,
    pub passed: bool,
}

/// The checks of a lesson that was explained with these options, and whose trace this is.
pub fn checks<T: Number>(
    request: &Request<'_, T>,
    attention: &Attention<'_>,
    trace: &Trace<f64, IxDyn>,
) -> anyhow::Result<Vec<Check>> {
    let settings = &request.input.settings;
    let mut checks = vec![shape(request, trace)];
    // A sink takes its share of each row.
    if settings.sinks.is_none() {
        checks.push(row_sums(trace));
    }
    let plainly_causal =
        settings.causal == Some(Alignment::TopLeft) && settings.prefix.is_none() && settings.key_offset == 0;
    if plainly_causal && request.extents.len_key > 1 {
        checks.push(no_leak(request, attention, trace)?);
    }
    checks.push(fast_path(request, attention)?);
    Ok(checks)
}

fn shape<T: Number>(request: &Request<'_, T>, trace: &Trace<f64, IxDyn>) -> Check {
    let extents = &request.extents;
    let wanted = extents.shape(&[extents.len_query, extents.dim_value]);
    let got = trace.output.shape();
    let what = format!("the output is {}: for each query a row as long as a value", show::shape(got));
    Check { name: "shape", what, passed: got == wanted }
}

fn row_sums(trace: &Trace<f64, IxDyn>) -> Check {
    let rows = trace.weights.rows().into_iter().zip(trace.row_stats.sum.iter());
    let attending: Vec<f64> = rows.filter(|(_, sum)| **sum != 0.0).map(|(row, _)| row.sum()).collect();
    let error = attending.iter().fold(0.0, |error: f64, sum| error.max((sum - 1.0).abs()));
    // The sum of n powers is off by at most n - 1 roundings, each power and each weight by one more.
    let keys = trace.weights.shape().last().copied().unwrap_or(0) as f64;
    let limit = (keys + 1.0) * f64::from(f32::EPSILON);
    let what = match attending.len() {
        0 => "no row attends anything".to_string(),
        count => format!(
            "{} of weights, each sums to 1: largest error {}, limit {}",
            show::count(count, "row"),
            show::error(error),
            show::error(limit)
        ),
    };
    Check { name: "row sums", what, passed: error <= limit }
}

/// The weights of the future are 0, and keys and values of the future may be anything: with NaN in their place no bit of
/// the past changes.
fn no_leak<T: Number>(
    request: &Request<'_, T>,
    attention: &Attention<'_>,
    trace: &Trace<f64, IxDyn>,
) -> anyhow::Result<Check> {
    let is_future = |(index, _): &(IxDyn, &f64)| index[index.ndim() - 1] > index[index.ndim() - 2];
    let future: Vec<f64> =
        trace.weights.indexed_iter().filter(is_future).map(|(_, &weight)| weight).collect();
    let weighty = future.iter().filter(|&&weight| weight != 0.0).count();

    let [query, key, value] = request.arrays.each().map(|(_, array)| array.view());
    let forward = |key: ArrayViewD<'_, T>, value: ArrayViewD<'_, T>| {
        attention.forward(query.view(), key, value).map_err(|error| request.explained(error))
    };
    let whole = forward(key.view(), value.view())?;
    let (len, axis) = (request.extents.len_key, Axis(request.extents.rank - 2));
    let cuts = SPOILT.min(len - 1);
    let nan = T::round(<T as qkv::Element>::Accumulator::NAN);
    let spoilt = |array: &ArrayViewD<'_, T>, from: usize| {
        let mut array = array.to_owned();
        array.slice_axis_mut(axis, Slice::from(from..)).fill(nan);
        array
    };
    let mut changed = 0;
    for cut in (1..=cuts).map(|place| place * len / (cuts + 1)) {
        let output = forward(spoilt(&key, cut).view(), spoilt(&value, cut).view())?;
        let past = |output: &ArrayD<T>| {
            let queries = cut.min(output.len_of(axis));
            output.slice_axis(axis, Slice::from(..queries)).mapv(|x| widened(x).to_bits())
        };
        changed += usize::from(past(&output) != past(&whole));
    }
    let of = show::count(future.len(), "pair");
    let what = match (weighty, changed) {
        (0, 0) => format!(
            "the weights of all {of} of the future are exactly 0; and all keys and values from some place on replaced by \
             NaN leave the rows before it unchanged, to the bit ({} tried)",
            show::count(cuts, "place")
        ),
        _ => format!(
            "{weighty} of {of} of the future have weight; NaN in the future changed the past at {changed} places"
        ),
    };
    Ok(Check { name: "no leak", what, passed: weighty == 0 && changed == 0 })
}

fn fast_path<T: Number>(request: &Request<'_, T>, attention: &Attention<'_>) -> anyhow::Result<Check> {
    let explained = |error| request.explained(error);
    let path = request.call(attention).plan().map_err(explained)?.path;
    let output = request.call(attention).run().map_err(explained)?.output;
    let rows = draw(&request.extents, 0, usize::MAX, 0);
    let output = view_four_axes(&output, &request.extents)?;
    let measured = against_reference(request, attention, &rows, output)?;
    let (error, limit) = (measured.ours.error, measured.limit(request));
    let what = format!(
        "the engine's quick way ({path}) gives what the steps give in double precision: largest error {}, limit {}",
        show::error(error),
        show::error(limit)
    );
    Ok(Check { name: "fast path", what, passed: error.is_finite() && error <= limit })
}

/// The checks as text.
pub fn listed(checks: &[Check]) -> String {
    if checks.is_empty() {
        return String::new();
    }
    let lines = checks.iter().map(|check| {
        let verdict = if check.passed { "pass" } else { "FAIL" };
        text::hanging(&format!("{verdict}  {:<10}", check.name), &check.what)
    });
    format!("{}\n{}\n", text::heading("Checks"), lines.collect::<Vec<_>>().join("\n"))
}
