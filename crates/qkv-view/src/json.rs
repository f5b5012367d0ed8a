//! Numbers, arrays and steps as JSON.

use ndarray::ArrayViewD;
use serde_json::{Value, json};

use crate::explain::Step;

/// JSON has no infinities and no NaN; as texts, Python's `float` and JavaScript's `Number` read them.
pub fn number(x: f64) -> Value {
    match x {
        x if x.is_nan() => json!("NaN"),
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        x => json!(x),
    }
}

/// An array as lists in lists.
pub fn nested(array: ArrayViewD<'_, f64>) -> Value {
    match array.ndim() {
        0 => array.iter().map(|&x| number(x)).next().unwrap_or_default(),
        _ => array.outer_iter().map(nested).collect(),
    }
}

/// Steps in order, each `{name, formula, shape, values}`.
pub fn steps(steps: &[Step]) -> Value {
    let step = |step: &Step| {
        json!({
            "name": step.name.as_str(),
            "formula": step.formula,
            "shape": step.values.shape(),
            "values": nested(step.values.view()),
        })
    };
    steps.iter().map(step).collect()
}
