//! One row as a weighted sum: which keys make it, and how much each moves it.

use ndarray::ArrayView2;

use crate::matrix::fitted;
use crate::scene::{Scene, token};
use crate::show;
use crate::text::{heading, wrapped};

/// Keys that are listed; more would leave the screen.
const LISTED: usize = 12;
/// Columns of the longest bar.
const BAR: usize = 20;

/// A key of one query.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its number.
    pub key: usize,
    /// Its token, if keys have such.
    pub token: Option<String>,
    /// The score that softmax got.
    pub score: f64,
    /// `exp(score - max) / sum`
    pub weight: f64,
    /// How far the output would move without this key.
    pub influence: f64,
}

/// One query's keys, those of most weight first; masked keys are left out.
pub struct Row {
    /// Its number.
    pub query: usize,
    /// The keys that are not masked.
    pub parts: Vec<Part>,
    /// How many keys are masked.
    pub masked: usize,
    /// The values' mean by weight.
    pub output: Vec<f64>,
}

impl Row {
    /// Of a query that is in the scene's trace. `influence` has a number for each key.
    pub fn new(scene: &Scene<'_>, query: usize, influence: &[f64]) -> Self {
        let row = query - scene.first_query;
        let of = |matrix: ArrayView2<'_, f64>| matrix.row(row).to_vec();
        let (masked, weights) =
            (of(scene.matrix(&scene.trace.masked)), of(scene.matrix(&scene.trace.weights)));
        let mut parts: Vec<Part> = masked
            .iter()
            .enumerate()
            .filter(|(_, score)| **score != f64::NEG_INFINITY)
            .map(|(key, &score)| Part {
                key,
                token: scene.tokens.as_ref().and_then(|tokens| tokens.get(key).cloned()),
                score,
                weight: weights[key],
                influence: influence[key],
            })
            .collect();
        parts.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let output = of(scene.matrix(&scene.trace.output));
        Self { query, masked: masked.len() - parts.len(), parts, output }
    }

    /// A section with a table, at most 80 columns wide.
    pub fn text(&self, scene: &Scene<'_>) -> String {
        let title = heading(&format!("One row: {}", scene.query_name(self.query)));
        if self.parts.is_empty() {
            return format!("{title}\nIt may attend nothing, so its output is 0.\n\n");
        }
        let length = self.output.iter().map(|y| y * y).sum::<f64>().sqrt();
        let formula = format!(
            "output[{}] = Σ weight · V[key], a vector of length {}",
            self.query,
            show::number(length)
        );
        let words = wrapped(
            "\"masked\" is the score that softmax got, scaled and after any mask. Influence is how far the output would \
             move if the key were deleted: the length of weight / (1 - weight) · (V[key] - output). It can be small where \
             the weight is large, if the value is near the output anyway.",
        );
        format!("{title}\n{formula}\n\n{}\n\n{words}\n\n", self.table(scene.tokens.is_some()))
    }

    fn table(&self, tokens: bool) -> String {
        let line = |[key, token, masked, weight, bar, influence]: [&str; 6]| {
            let token = if tokens { format!("  {}", fitted(token, 14)) } else { String::new() };
            format!("{key:>6}{token}  {masked:>10}  {weight:>9}  {bar:BAR$}  {influence:>9}")
        };
        let listed = &self.parts[..self.parts.len().min(LISTED)];
        let heaviest = listed[0].weight;
        let mut lines = vec![line(["key", "token", "masked", "weight", "", "influence"])];
        for part in listed {
            let share = if heaviest > 0.0 { part.weight / heaviest } else { 0.0 };
            let bar = "█".repeat((share * BAR as f64).round() as usize);
            let [masked, weight, influence] = [part.score, part.weight, part.influence].map(show::number);
            let name = part.token.as_deref().map(token).unwrap_or_default();
            lines.push(line([&part.key.to_string(), &name, &masked, &weight, &bar, &influence]));
        }
        let others = &self.parts[listed.len()..];
        if !others.is_empty() {
            let rest: f64 = others.iter().map(|part| part.weight).sum();
            lines.push(format!(
                "and {} of weight {} together",
                show::count(others.len(), "more key"),
                show::number(rest)
            ));
        }
        if self.masked > 0 {
            lines.push(format!("{} masked: weight 0", show::count(self.masked, "key")));
        }
        lines.join("\n")
    }
}
