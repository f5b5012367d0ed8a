//! An explanation as JSON.

use qkv_view::explain::Step;
use qkv_view::json::{self, number};
use qkv_view::row::Row;
use qkv_view::scale::{Comparison, Measure};
use serde_json::{Value, json};

use crate::lesson_checks::Check;

/// One object: the steps, and what else there is.
pub fn object(steps: &[Step], row: Option<&Row>, comparisons: &[Comparison], checks: &[Check]) -> Value {
    let mut object = json!({ "steps": json::steps(steps) });
    if let Some(row) = row {
        object["row"] = of_row(row);
    }
    if !comparisons.is_empty() {
        object["scale"] = comparisons.iter().map(comparison).collect();
    }
    if !checks.is_empty() {
        object["checks"] = checks.iter().map(check).collect();
    }
    object
}

fn of_row(row: &Row) -> Value {
    let keys = row.parts.iter().map(|part| {
        json!({
            "key": part.key,
            "token": part.token,
            "masked": number(part.score),
            "weight": number(part.weight),
            "influence": number(part.influence),
        })
    });
    json!({
        "query": row.query,
        "keys": keys.collect::<Vec<_>>(),
        "output": row.output.iter().map(|&y| number(y)).collect::<Vec<_>>(),
    })
}

fn comparison(Comparison { name, both: [with, without] }: &Comparison) -> Value {
    json!({ "name": name, "with": measure(with), "without": measure(without) })
}

fn measure(measure: &Measure) -> Value {
    json!({
        "keys": measure.keys,
        "variance": number(measure.variance),
        "entropy": number(measure.entropy),
        "gradient": number(measure.gradient),
    })
}

fn check(check: &Check) -> Value {
    let verdict = if check.passed { "pass" } else { "fail" };
    json!({ "name": check.name, "what": check.what, "verdict": verdict })
}
