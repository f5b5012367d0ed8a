//! The steps of attention told: each with its name, formula, shapes, numbers and a note on what to see in them.
//!
//! What they are told of is `scene.rs`'s, how they look `text.rs`'s.

use ndarray::{Array2, ArrayD, ArrayView1, ArrayView2, Axis};
use qkv::Trace;

use crate::measure::{entropy, variance};
use crate::scene::{Scale, Scene, group, planes};
use crate::show;

/// Vectors up to this long are written out in sums.
const SHORT: usize = 4;
/// Sums of up to so many keys are written out, others in part.
const FEW: usize = 6;

/// The steps by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepName {
    /// The plain average of the values that may be read.
    Average,
    /// The queries.
    Query,
    /// The keys.
    Key,
    /// The values.
    Value,
    /// `q · k`
    Scores,
    /// Times the scale.
    Scaled,
    /// Squeezed by the softcap.
    Softcapped,
    /// With biases added, and -∞ where masked.
    Masked,
    /// The softmax.
    Weights,
    /// The values' mean by weight.
    Output,
}

impl StepName {
    /// `average`, `q`, `k`, `v`, `scores`, `scaled`, `softcapped`, `masked`, `weights` or `output`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Average => "average",
            Self::Query => "q",
            Self::Key => "k",
            Self::Value => "v",
            Self::Scores => "scores",
            Self::Scaled => "scaled",
            Self::Softcapped => "softcapped",
            Self::Masked => "masked",
            Self::Weights => "weights",
            Self::Output => "output",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Average => "Step 0: the plain average",
            Self::Query => "Queries",
            Self::Key => "Keys",
            Self::Value => "Values",
            Self::Scores => "Step 1: scores",
            Self::Scaled => "Step 2: scale",
            Self::Softcapped => "Step 2b: softcap",
            Self::Masked => "Step 3: mask",
            Self::Weights => "Step 4: softmax",
            Self::Output => "Step 5: output",
        }
    }
}

/// What the rows and columns of a step's numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axes {
    /// A vector for each query.
    QueryVectors,
    /// A vector for each key.
    KeyVectors,
    /// A number for each pair of query and key.
    Pairs,
}

/// One step.
pub struct Step {
    /// Which one.
    pub name: StepName,
    /// With its number, if it has one.
    pub title: &'static str,
    /// `scores = Q · Kᵀ`
    pub formula: String,
    /// Shapes in and out.
    pub shapes: String,
    /// The part that is shown: of all batches and heads, where the trace has them.
    pub values: ArrayD<f64>,
    /// What its last two axes are.
    pub axes: Axes,
    /// What a projection multiplies by, where it is small enough to be read.
    pub weight: Option<Array2<f64>>,
    /// What to see.
    pub note: String,
}

/// All steps, from the plain average to the output.
pub fn steps(scene: &Scene<'_>) -> Vec<Step> {
    let teller = Teller::new(scene);
    let mut steps = vec![teller.average()];
    steps.extend(teller.projections());
    steps.extend([teller.scores(), teller.scaled()]);
    steps.extend(teller.softcapped());
    steps.extend([teller.masked(), teller.weights(), teller.output()]);
    steps
}

/// The mean of the values that each row may attend; 0 where there are none. Of the shape of the output.
fn plain_average(trace: &Trace<f64, ndarray::IxDyn>) -> ArrayD<f64> {
    let mut average = ArrayD::zeros(trace.output.shape());
    let (masked, values) = (planes(trace.masked.view()), planes(trace.value.view()));
    if average.is_empty() {
        return average;
    }
    let group = group(masked.len_of(Axis(0)), values.len_of(Axis(0)));
    let len_query = masked.len_of(Axis(1));
    for (index, mut average) in average.rows_mut().into_iter().enumerate() {
        let (plane, query) = (index / len_query, index % len_query);
        let values = values.index_axis(Axis(0), plane / group);
        let row = masked.index_axis(Axis(0), plane).index_axis_move(Axis(0), query);
        let visible = || row.iter().zip(values.rows()).filter(|(s, _)| **s != f64::NEG_INFINITY);
        visible().for_each(|(_, value)| average += &value);
        average /= visible().count().max(1) as f64;
    }
    average
}

/// A scene, and what every step asks of it.
struct Teller<'s, 'a> {
    scene: &'s Scene<'a>,
    /// How many pairs of the printed matrix are masked.
    hidden: usize,
    average: ArrayD<f64>,
    /// The query that notes speak of.
    query: usize,
}

impl<'s, 'a> Teller<'s, 'a> {
    fn new(scene: &'s Scene<'a>) -> Self {
        let masked = scene.matrix(&scene.trace.masked);
        let hidden = masked.iter().filter(|&&s| s == f64::NEG_INFINITY).count();
        // With a mask the first query may see but one key.
        let query = if hidden == 0 { scene.queries.start } else { scene.queries.end - 1 };
        Self { scene, hidden, average: plain_average(scene.trace), query }
    }

    /// The row that notes speak of.
    fn row<'m>(&self, array: &'m ArrayD<f64>) -> ArrayView1<'m, f64> {
        self.scene.matrix(array).index_axis_move(Axis(0), self.query - self.scene.first_query)
    }

    /// The key of this row that fits best, of those that are not masked; the first of equals.
    fn best_key(&self) -> Option<usize> {
        let (masked, scores) = (self.row(&self.scene.trace.masked), self.row(&self.scene.trace.scores));
        let visible =
            (0..masked.len()).filter(|&key| masked[key] != f64::NEG_INFINITY && !scores[key].is_nan());
        visible.reduce(|best, key| if scores[key] > scores[best] { key } else { best })
    }

    fn step(&self, name: StepName, values: ArrayD<f64>, axes: Axes) -> Step {
        let (title, formula, shapes, note) = (name.title(), String::new(), String::new(), String::new());
        Step { name, title, formula, shapes, values, axes, weight: None, note }
    }

    fn pairs(&self, name: StepName, array: &ArrayD<f64>) -> Step {
        let shape = self.scene.shapes.scores();
        let shapes = format!("{shape} → {shape}");
        Step { shapes, ..self.step(name, self.scene.pairs_of(array), Axes::Pairs) }
    }

    fn average(&self) -> Step {
        let scene = self.scene;
        let rows = scene.rows_of(&self.average);
        let shown = scene.matrix(&rows);
        let alike = shown.rows().into_iter().all(|row| row == shown.row(0));
        let equal = if shown.nrows() == 1 {
            ""
        } else if alike {
            "All rows are alike: no query has a say yet."
        } else {
            "Rows differ only in which values a query may read."
        };
        Step {
            formula: "average = mean of the rows of V that a query may read".to_string(),
            shapes: format!("{} → {}", scene.shapes.value(), scene.shapes.output()),
            note: format!(
                "Attention is a weighted average of the values. This is the plainest one: each value that a query may \
                 read counts the same. {equal} Steps 1 to 4 make the weights, step 5 averages with them."
            ),
            ..self.step(StepName::Average, rows, Axes::QueryVectors)
        }
    }

    fn projections(&self) -> [Step; 3] {
        let (scene, shapes) = (self.scene, &self.scene.shapes);
        let heads = |lead: &[usize]| lead.last().copied().unwrap_or(1);
        let (query_heads, key_heads) = (heads(&shapes.lead), heads(&shapes.key_lead));
        let query = self.step(StepName::Query, scene.rows_of(&scene.trace.query), Axes::QueryVectors);
        let key = self.step(StepName::Key, scene.keys_of(&scene.trace.key), Axes::KeyVectors);
        let value = self.step(StepName::Value, scene.keys_of(&scene.trace.value), Axes::KeyVectors);
        [
            self.projected(query, 0, shapes.query(), query_heads * shapes.dim),
            self.projected(key, 1, shapes.key(), key_heads * shapes.dim),
            self.projected(value, 2, shapes.value(), key_heads * shapes.dim_value),
        ]
    }

    /// Query, key or value, the `index`-th of the three, with its formula.
    fn projected(&self, step: Step, index: usize, shape: String, width: usize) -> Step {
        let letter = step.name.as_str();
        let name = letter.to_uppercase();
        let note = [
            "A query is what a token looks for, in the tokens that it may read, itself included.",
            "A key is what a token can be found by.",
            "A value is what a token passes on to those that find it.",
        ][index];
        let Some(embedding) = &self.scene.embedding else {
            return Step {
                formula: format!("{name}, as given"),
                shapes: shape,
                note: note.to_string(),
                ..step
            };
        };
        let x = &embedding.x_shape;
        let (lead, dim_model) = (&x[..x.len() - 1], x[x.len() - 1]);
        let bias = if embedding.biased[index] { format!(" + b_{letter}") } else { String::new() };
        let packed = show::shape(&[lead, &[width]].concat());
        let split = if packed == shape { String::new() } else { format!(", as heads {shape}") };
        let weight = embedding.weights[index].clone();
        let wide =
            if weight.is_none() { format!(" (W_{letter} is too wide to print.)") } else { String::new() };
        Step {
            formula: format!("{name} = X · W_{letter}{bias}"),
            shapes: format!("{} · ({dim_model}, {width}) → {packed}{split}", show::shape(x)),
            note: format!("{note}{wide}"),
            weight,
            ..step
        }
    }

    fn scores(&self) -> Step {
        let (scene, trace) = (self.scene, self.scene.trace);
        let best = self.best_key().map_or(String::new(), |key| {
            let (query, score) = (self.row(&trace.query), self.row(&trace.scores)[key]);
            let keys = scene.matrix(&trace.key);
            let products = query
                .iter()
                .zip(keys.row(key))
                .map(|(q, k)| format!("{}·{}", show::number(*q), show::number(*k)));
            let products: Vec<_> = products.collect();
            let sum = if (1..=SHORT).contains(&products.len()) {
                format!("{} ≈ {}", products.join(" + ").replace("+ -", "- "), show::number(score))
            } else {
                show::number(score)
            };
            let name = scene.query_name(self.query);
            let among = match self.hidden {
                0 => "Of all keys".to_string(),
                _ => format!("Of the keys that {name} may read (step 3 has the mask)"),
            };
            format!(" {among}, {} fits {name} best: {sum}.", scene.key_name(key))
        });
        let shapes = &scene.shapes;
        Step {
            formula: "scores = Q · Kᵀ".to_string(),
            shapes: format!("{} · {} → {}", shapes.query(), shapes.key_transposed(), shapes.scores()),
            note: format!(
                "Every query meets every key: row i, column j is the dot product of query i and key j, large where both \
                 are long and point the same way, below 0 where the angle between them is over 90°.{best}"
            ),
            ..self.pairs(StepName::Scores, &trace.scores)
        }
    }

    fn scaled(&self) -> Step {
        let (scene, trace) = (self.scene, self.scene.trace);
        // Without numbers there is nothing to divide by.
        let dim = scene.shapes.dim.max(1);
        let masked = scene.matrix(&trace.masked);
        let visible = |scores| {
            let pairs = scene.matrix(scores).into_iter().zip(masked);
            variance(pairs.filter(|(_, masked)| **masked != f64::NEG_INFINITY).map(|(s, _)| *s))
        };
        let [before, after] = [&trace.scores, &trace.scaled].map(|scores| show::number(visible(scores)));
        let count = masked.len() - self.hidden;
        let whole = masked.nrows() == scene.shapes.len_query;
        let of = match (whole, self.hidden) {
            (true, 0) => format!("of all {}", show::count(count, "score")),
            (true, _) => format!("of the {} that step 3 does not hide", show::count(count, "score")),
            (false, _) => format!("of the {} of the queries shown", show::count(count, "score")),
        };
        let example = self.best_key().map_or(String::new(), |key| {
            let [score, scaled] = [&trace.scores, &trace.scaled].map(|scores| self.row(scores)[key]);
            format!(" {} / √{dim} ≈ {}.", show::number(score), show::number(scaled))
        });
        // One score has no variance.
        let changed = match count {
            0 | 1 => String::new(),
            _ => format!(": here from {before} to {after} ({of}; n - 1 in the variance, as in torch.var)"),
        };
        let (formula, note) = match scene.scale {
            Scale::Default => (
                format!("scaled = scores / √{dim}"),
                format!(
                    "A dot product is a sum of d products, so its variance tends to grow like d and its size like √d; \
                     scores far apart would make softmax pick one key and forget the others. Dividing each score by \
                     √{dim} divides the variance by {dim}{changed}. Which key fits best stays as it was.{example}"
                ),
            ),
            Scale::Given(scale) => (
                format!("scaled = scores · {}", show::number(scale)),
                format!(
                    "The variance was {before} and is {after} ({of}). The usual scale is 1/√d, here {:.4}.",
                    1.0 / (dim as f64).sqrt()
                ),
            ),
            Scale::LeftOut => (
                "scaled = scores".to_string(),
                format!("The scale is left out: the scores keep their variance, {before} ({of})."),
            ),
        };
        Step { formula, note, ..self.pairs(StepName::Scaled, &trace.scaled) }
    }

    fn softcapped(&self) -> Option<Step> {
        let cap = show::number(self.scene.softcap?);
        Some(Step {
            formula: format!("softcapped = {cap} · tanh(scaled / {cap})"),
            note: format!(
                "No score can leave (-{cap}, {cap}): small ones hardly change, large ones are squeezed."
            ),
            ..self.pairs(StepName::Softcapped, &self.scene.trace.softcapped)
        })
    }

    fn masked(&self) -> Step {
        let scene = self.scene;
        let before = if scene.softcap.is_some() { "softcapped" } else { "scaled" };
        let bias = if scene.biased { " + bias" } else { "" };
        let hidden = if self.hidden > 0 { ", and -∞ where hidden" } else { "" };
        let values = scene.pairs_of(&scene.trace.masked);
        let words = scene.masks.join(" ");
        let note = if self.hidden > 0 {
            let none_here = scene.matrix(&values).iter().all(|&s| s != f64::NEG_INFINITY);
            let here = if none_here { ", none of them among those shown" } else { " (·)" };
            format!(
                "{words} {} of {} of query and key are hidden{here}: the score becomes -∞ (-inf), and as e to the power of \
                 -∞ is 0, the weight will be exactly 0. The engine skips these pairs, since 0 times NaN would be NaN: \
                 whatever a hidden key or value holds, nothing of it comes through.",
                self.hidden,
                show::count(scene.matrix(&scene.trace.masked).len(), "pair")
            )
        } else if scene.masks.is_empty() {
            "There is no mask: every query may attend every key (■), and the scores stay as they are."
                .to_string()
        } else {
            format!("{words} Nothing is hidden: every query may attend every key (■).")
        };
        Step {
            formula: format!("masked = {before}{bias}{hidden}"),
            note,
            ..self.pairs(StepName::Masked, &scene.trace.masked)
        }
    }

    fn weights(&self) -> Step {
        let (scene, trace) = (self.scene, self.scene.trace);
        let row = self.row(&trace.weights);
        let name = scene.query_name(self.query);
        let largest =
            (0..row.len()).filter(|&key| row[key] > 0.0).reduce(|a, b| if row[b] > row[a] { b } else { a });
        let entropy = entropy(row.iter().copied());
        let most = match largest {
            Some(key) => format!(
                "{} attends {} most: {}. The entropy of its weights p, -Σ p ln p, is {entropy:.4}; e^{entropy:.4} ≈ {:.1}: it is \
                 as if {:.1} keys had equal weight.",
                capitalized(&name),
                scene.key_name(key),
                self.share(key),
                libm::exp(entropy),
                libm::exp(entropy),
            ),
            None if row.iter().any(|weight| weight.is_nan()) => {
                format!("{} is not a number.", capitalized(&name))
            }
            None => format!("{} may attend nothing: its weights are all 0.", capitalized(&name)),
        };
        Step {
            formula: "weights = e^masked / sum of e^masked along the row".to_string(),
            note: format!(
                "This is softmax: no weight is below 0, a higher score has more weight, and {}. {most}{}",
                row_sums(scene.matrix(&trace.weights)),
                self.unseen()
            ),
            ..self.pairs(StepName::Weights, &trace.weights)
        }
    }

    /// `e^0.4804 / 6.7154 = 0.2407`
    fn share(&self, key: usize) -> String {
        let trace = self.scene.trace;
        let (score, weight) = (self.row(&trace.masked)[key], self.row(&trace.weights)[key]);
        let power = libm::exp(score);
        // Beyond this the engine's shift by the row's maximum is what makes it possible at all.
        if power.is_finite() && (1e-3..1e3).contains(&power) && weight > 0.0 {
            let sum = power / weight;
            format!("e^{score:.4} / {sum:.4} ≈ {weight:.4}, where {sum:.4} is the sum along its row")
        } else {
            format!("{weight:.4}")
        }
    }

    /// How much weight keys have that are not shown.
    fn unseen(&self) -> String {
        let scene = self.scene;
        let (keys, all) = (&scene.keys, scene.shapes.len_key);
        if keys.len() == all {
            return String::new();
        }
        let row = self.row(&scene.trace.weights);
        let rest: f64 = (0..all).filter(|key| !keys.contains(key)).map(|key| row[key]).sum();
        format!(
            " {} not shown here: {rest:.4} of this row's weight is on them.",
            match all - keys.len() {
                1 => "1 key is".to_string(),
                more => format!("{more} keys are"),
            }
        )
    }

    fn output(&self) -> Step {
        let (scene, trace) = (self.scene, self.scene.trace);
        let [output, average] = [&trace.output, &self.average].map(|array| self.row(array));
        let short = (1..=SHORT).contains(&output.len());
        let vector = |row: ArrayView1<'_, f64>| {
            let numbers: Vec<_> = row.iter().map(|&y| show::number(y)).collect();
            format!("[{}]", numbers.join(", "))
        };
        let (result, plain) = match short {
            true => (format!(" ≈ {}", vector(output)), format!(" Step 0 had {} here.", vector(average))),
            false => (String::new(), " Compare it with step 0.".to_string()),
        };
        let more = scene.embedding.as_ref().filter(|embedding| embedding.has_output);
        let more = more.map_or("", |_| {
            " The layer goes on: it puts the outputs of its heads side by side, multiplies by W_o, which mixes them, and adds \
             its bias if it has one (not shown here)."
        });
        Step {
            formula: "output = weights · V".to_string(),
            shapes: format!(
                "{} · {} → {}",
                scene.shapes.scores(),
                scene.shapes.value(),
                scene.shapes.output()
            ),
            note: format!(
                "Each row is the average of the rows of V, weighted by its row of step 4. Row {}: {}{result}.{plain}{more}",
                self.query,
                weighted_sum(self.row(&trace.weights)),
            ),
            ..self.step(StepName::Output, scene.rows_of(&trace.output), Axes::QueryVectors)
        }
    }
}

/// What the rows of weights sum to, in words.
fn row_sums(weights: ArrayView2<'_, f64>) -> String {
    let sums: Vec<f64> = weights.rows().into_iter().map(|row| row.sum()).collect();
    // What is printed as 1.0000.
    let is_one = |sum: f64| (sum - 1.0).abs() < 0.5e-4;
    let empty = sums.iter().filter(|&&sum| sum == 0.0).count();
    if sums.iter().all(|&sum| is_one(sum)) {
        "each row sums to 1.0000".to_string()
    } else if sums.iter().all(|&sum| sum == 0.0 || is_one(sum)) {
        format!(
            "each row sums to 1.0000, or to 0 where it may attend nothing ({})",
            show::count(empty, "row")
        )
    } else {
        let [low, high] = [f64::min, f64::max].map(|pick| sums.iter().copied().reduce(pick).unwrap_or(0.0));
        format!("the rows sum to {low:.4} up to {high:.4} (the rest is the sink's, or lost to rounding)")
    }
}

/// `0.2175·V[0] + 0.2407·V[1] + …`: all keys if they are few, else those of most weight.
fn weighted_sum(weights: ArrayView1<'_, f64>) -> String {
    let mut terms: Vec<(usize, f64)> =
        weights.iter().copied().enumerate().filter(|term| term.1 != 0.0).collect();
    let count = terms.len();
    if count == 0 {
        return "0, for it may attend nothing".to_string();
    }
    if count > FEW {
        terms.sort_by(|a, b| b.1.total_cmp(&a.1));
        terms.truncate(FEW / 2);
    }
    let more =
        if count > terms.len() { format!(" + … ({} more)", count - terms.len()) } else { String::new() };
    let terms: Vec<_> = terms.iter().map(|(key, weight)| format!("{weight:.4}·V[{key}]")).collect();
    terms.join(" + ") + &more
}

pub(crate) fn capitalized(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use ndarray::Array;
    use qkv::{Alignment, Attention};

    use super::*;

    #[test]
    fn the_average_is_that_of_the_values_of_the_own_key_head() {
        let query = Array::from_shape_fn((2, 4, 3, 2), |(b, h, i, e)| (b + 2 * h + i * e) as f64 / 8.0);
        let value =
            Array::from_shape_fn((2, 2, 3, 2), |(b, h, j, e)| (100 * b + 10 * h + j) as f64 + e as f64 / 4.0);
        let causal = Attention::new().causal(Alignment::TopLeft);
        let trace = causal.trace(query.view(), value.view(), value.view()).unwrap().widened();
        let average = plain_average(&trace);
        for ((b, h, i, e), query) in query.indexed_iter().map(|(at, _)| (at, at.2)) {
            // Rows 0 to i of the key head that two query heads share.
            let wanted = (100 * b + 10 * (h / 2)) as f64 + query as f64 / 2.0 + e as f64 / 4.0;
            assert_eq!(average[[b, h, i, e]], wanted, "{:?}", (b, h, i, e));
        }
    }

    #[test]
    fn sums_of_many_keys_are_written_in_part() {
        let few = ndarray::array![0.5, 0.0, 0.5];
        assert_eq!(weighted_sum(few.view()), "0.5000·V[0] + 0.5000·V[2]");
        let many = ndarray::array![0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.3];
        assert_eq!(weighted_sum(many.view()), "0.3000·V[6] + 0.2000·V[1] + 0.1000·V[0] + … (4 more)");
        assert_eq!(weighted_sum(ndarray::array![0.0].view()), "0, for it may attend nothing");
    }
}
