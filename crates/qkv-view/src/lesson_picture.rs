//! A lesson in one picture: scores before and after scaling, in one scale of colours, and the weights that come of them.

use std::ops::Range;

use ndarray::{ArrayD, ArrayView2};

use crate::measure::variance;
use crate::picture::{Axis, Colours, Heatmap, Panels};
use crate::scene::{Scale, Scene};
use crate::show;

/// All steps of a lesson of five tokens stand on one line.
const WIDTH: usize = 2000;

/// The shown queries and keys of a scene, as SVG.
pub fn svg(scene: &Scene<'_>) -> String {
    let trace = scene.trace;
    let [scores, scaled, masked, weights] =
        [&trace.scores, &trace.scaled, &trace.masked, &trace.weights].map(|array| scene.pairs_of(array));
    let panel = |title: &str, array: &ArrayD<f64>| {
        let numbers = scene.matrix(array).to_owned();
        (title.to_string(), numbers)
    };
    let (by_scale, masks) = (
        formula(scene.scale, scene.shapes.dim),
        scene.softcap.is_some() || scene.biased || !scene.masks.is_empty(),
    );
    let mut steps = vec![panel("Scores", &scores), panel("Scaled scores", &scaled)];
    let mut formulas = vec![by_scale];
    if masks {
        steps.push(panel("Masked scores", &masked));
        formulas.push("mask".to_string());
    }
    let weights = scene.matrix(&weights).to_owned();
    let axes = |heatmap| axes(scene, heatmap);
    let mut panels = Panels::new()
        .title("Attention, before and after scaling")
        .subtitle(format!("{}; equal numbers have equal colours before softmax", scene.shapes.scores()))
        .width(WIDTH)
        .shared_scale();
    for (index, (title, numbers)) in steps.iter().enumerate() {
        if let Some(formula) = index.checked_sub(1).map(|before| formulas[before].clone()) {
            panels = panels.arrow(formula);
        }
        let heatmap =
            Heatmap::new(numbers.view()).title(title).quantity("score").colours(Colours::diverging());
        panels = panels.panel(axes(heatmap.caption(varied(numbers.view()))));
    }
    let heatmap = Heatmap::new(weights.view()).title("Weights").quantity("weight");
    let heatmap = heatmap.colours(Colours::sequential().range(0.0, 1.0)).caption("Each row sums to 1.");
    panels.arrow("softmax").panel(axes(heatmap)).svg()
}

fn formula(scale: Scale, dim: usize) -> String {
    match scale {
        Scale::Default => {
            let root = (dim as f64).sqrt();
            let equal = if root.fract() == 0.0 { format!("{root}") } else { format!("{root:.2}") };
            format!("/ √{dim} = {equal}")
        }
        Scale::Given(scale) => format!("× {}", show::number(scale).replace('-', "−")),
        Scale::LeftOut => "× 1".to_string(),
    }
}

fn varied(numbers: ArrayView2<'_, f64>) -> String {
    format!("variance {}", show::number(variance(numbers.iter().copied())))
}

fn axes<'h>(scene: &'h Scene<'_>, heatmap: Heatmap<'h>) -> Heatmap<'h> {
    let axis = |name, range: &Range<usize>, tokens: Option<&'h Vec<String>>| {
        let axis = Axis::new(name, range.clone());
        match tokens {
            Some(tokens) => axis.labels(tokens),
            None => axis,
        }
    };
    heatmap.queries(axis("query", &scene.queries, scene.query_tokens())).keys(axis(
        "key",
        &scene.keys,
        scene.tokens.as_ref(),
    ))
}
