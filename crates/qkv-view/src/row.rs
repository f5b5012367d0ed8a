//! One row as a weighted sum: which keys make it, and how much each moves it.

use ndarray::ArrayView2;

use crate::explain::{Scene, token};
use crate::matrix::fitted;
use crate::show;
use crate::text::{heading, wrapped};

/// Keys that are listed; more would leave the screen.
const LISTED: usize = 12;
/// Columns of the longest bar.
const BAR: usize = 24;

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

    /// A table of at most 80 columns.
    pub fn text(&self, scene: &Scene<'_>) -> String {
        let name = scene.query_name(self.query);
        let mut lines = vec![
            heading(&format!("One row: {name}")),
            format!("output[{}] = Σ weight · V[key]", self.query),
            String::new(),
        ];
        if self.parts.is_empty() {
            lines.push("It may attend nothing, so its output is 0.".to_string());
            return lines.join("\n") + "\n";
        }
        let listed = &self.parts[..self.parts.len().min(LISTED)];
        let token_of = |part: &Part| part.token.as_deref().map(token).unwrap_or_default();
        let tokens = scene.tokens.is_some();
        let heads = if tokens { format!("{:>6}  {:>14}", "key", "token") } else { format!("{:>6}", "key") };
        lines.push(format!("{heads}  {:>9}  {:>7}  {:BAR$}  {:>9}", "score", "weight", "", "influence"));
        let heaviest = listed[0].weight;
        for part in listed {
            let own = if tokens { format!("  {}", fitted(&token_of(part), 14)) } else { String::new() };
            let share = if heaviest > 0.0 { part.weight / heaviest } else { 0.0 };
            let bar = "█".repeat((share * BAR as f64).round() as usize);
            lines.push(format!(
                "{:>6}{own}  {:>9.4}  {:>7.4}  {bar:BAR$}  {:>9.4}",
                part.key, part.score, part.weight, part.influence
            ));
        }
        let others = &self.parts[listed.len()..];
        if !others.is_empty() {
            let rest: f64 = others.iter().map(|part| part.weight).sum();
            lines.push(format!("and {} of weight {rest:.4} together", show::count(others.len(), "more key")));
        }
        if self.masked > 0 {
            lines.push(format!("{} masked: weight 0", show::count(self.masked, "key")));
        }
        lines.push(String::new());
        lines.push(wrapped(
            "Influence is how far the output would move (the length of the difference) if the key were deleted. It can \
             be small where the weight is large: a value near the average moves little.",
        ));

        lines.join("\n") + "\n"
    }
}
