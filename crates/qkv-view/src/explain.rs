//! The steps of attention, each with its name, formula, shapes, numbers and a note on what to see in them.
//!
//! A [`Scene`] is a trace and what is known about it; [`steps`] tells it. How steps look is for `text.rs`.

use std::ops::Range;

use ndarray::{Array2, ArrayD, ArrayView2, ArrayView3, ArrayViewD, Axis, Ix3, IxDyn, Slice};
use qkv::Trace;

use crate::show;

/// A call to be explained: its numbers, widened, and what they belong to.
pub struct Scene<'a> {
    /// Of the whole call, or of some queries of one head.
    pub trace: &'a Trace<f64, IxDyn>,
    /// Of the whole call.
    pub shapes: Shapes,
    /// Which matrix of the trace is printed: batch · heads + head of those that are in it.
    pub plane: usize,
    /// The number of the trace's first query.
    pub first_query: usize,
    /// Which queries and keys are shown, by their numbers.
    pub queries: Range<usize>,
    /// See `queries`.
    pub keys: Range<usize>,
    /// Where queries, keys and values come from, if they were projected.
    pub embedding: Option<Embedding>,
    /// What scores are multiplied by.
    pub scale: Scale,
    /// The softcap, if there is one.
    pub softcap: Option<f64>,
    /// Masks and biases in words, a line each.
    pub masks: Vec<String>,
    /// A name for each key; and for each query, where there are as many.
    pub tokens: Option<Vec<String>>,
}

/// The shapes of the whole call.
#[derive(Clone, Debug)]
pub struct Shapes {
    /// Batch axes and heads.
    pub lead: Vec<usize>,
    /// Batch axes and key heads.
    pub key_lead: Vec<usize>,
    /// Queries of a head.
    pub len_query: usize,
    /// Keys of a head.
    pub len_key: usize,
    /// Numbers of a query and of a key.
    pub dim: usize,
    /// Numbers of a value.
    pub dim_value: usize,
}

/// Embeddings, and the weights that make queries, keys and values of them.
pub struct Embedding {
    /// `(len, dim_model)`, of the batch that is shown
    pub x: Array2<f64>,
    /// `(…, len, dim_model)`, the whole.
    pub x_shape: Vec<usize>,
    /// `w_q`, `w_k`, `w_v` as `(dim_model, heads · dim)`, where they are small enough to be read.
    pub weights: Option<[Array2<f64>; 3]>,
    /// Whether a bias is added.
    pub biased: bool,
}

/// What scores are multiplied by, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// `1/√dim`
    Default,
    /// Another number.
    Given(f64),
    /// None at all, to see what it is for.
    LeftOut,
}

/// One step.
pub struct Step {
    /// `average`, `q`, `k`, `v`, `scores`, `scaled`, `softcapped`, `masked`, `weights` or `output`.
    pub name: &'static str,
    /// With its number, if it has one.
    pub title: &'static str,
    /// `scores = Q · Kᵀ`
    pub formula: String,
    /// Shapes in and out.
    pub shapes: String,
    /// The part that is shown: of all batches and heads, where the trace has them.
    pub values: ArrayD<f64>,
    /// Whether columns are keys; else they are the numbers of a vector.
    pub columns_are_keys: bool,
    /// Whether rows are queries; else they are keys.
    pub rows_are_queries: bool,
    /// What to see.
    pub note: String,
}

impl Shapes {
    pub(crate) fn query(&self) -> String {
        with(&self.lead, [self.len_query, self.dim])
    }

    pub(crate) fn key(&self) -> String {
        with(&self.key_lead, [self.len_key, self.dim])
    }

    fn key_transposed(&self) -> String {
        with(&self.key_lead, [self.dim, self.len_key])
    }

    pub(crate) fn value(&self) -> String {
        with(&self.key_lead, [self.len_key, self.dim_value])
    }

    fn scores(&self) -> String {
        with(&self.lead, [self.len_query, self.len_key])
    }

    fn output(&self) -> String {
        with(&self.lead, [self.len_query, self.dim_value])
    }

    /// How many matrices of queries share one of keys, given how many of either there are in a trace.
    fn group(&self, planes: usize) -> usize {
        let all: usize = self.lead.iter().product();
        if planes == all || planes == 0 { 1 } else { all / planes }
    }
}

fn with(lead: &[usize], last: [usize; 2]) -> String {
    show::shape(&[lead, &last].concat())
}

/// All steps, from the plain average to the output.
pub fn steps(scene: &Scene<'_>) -> Vec<Step> {
    let mut steps = vec![average(scene)];
    steps.extend(projections(scene));
    steps.extend([scores(scene), scaled(scene)]);
    steps.extend(softcapped(scene));
    steps.extend([masked(scene), weights(scene), output(scene)]);
    steps
}

fn average(scene: &Scene<'_>) -> Step {
    let equal = if scene.sees_all() {
        "All rows are alike: no query has a say yet."
    } else {
        "Rows differ only in which values they may read."
    };
    Step {
        name: "average",
        title: "Step 0: the plain average",
        formula: "average = mean of the rows of V that may be read".to_string(),
        shapes: format!("{} → {}", scene.shapes.value(), scene.shapes.output()),
        values: scene.rows_of(&plain_average(scene.trace)),
        columns_are_keys: false,
        rows_are_queries: true,
        note: format!(
            "Attention is an average of the values, and this is the simplest one: all keys count the same. {equal} The \
             steps below change the weights of this average, and nothing else."
        ),
    }
}

/// The mean of the values that each row may attend; 0 where there are none.
fn plain_average(trace: &Trace<f64, IxDyn>) -> ArrayD<f64> {
    let mut average = ArrayD::zeros(trace.output.shape());
    let (masked, values) = (planes(trace.masked.view()), planes(trace.value.view()));
    let (len_query, dim_value) = (masked.len_of(Axis(1)), values.len_of(Axis(2)));
    if average.is_empty() {
        return average;
    }
    // Query heads may share key heads.
    let group = masked.len_of(Axis(0)) / values.len_of(Axis(0)).max(1);
    let mut rows = average.rows_mut().into_iter();
    for (plane, masked) in masked.outer_iter().enumerate() {
        let values = values.index_axis(Axis(0), plane / group.max(1));
        for (row, mut average) in masked.rows().into_iter().zip(rows.by_ref().take(len_query)) {
            let visible = || row.iter().zip(values.rows()).filter(|(s, _)| **s != f64::NEG_INFINITY);
            let count = visible().count().max(1) as f64;
            for column in 0..dim_value {
                average[column] = visible().map(|(_, value)| value[column]).sum::<f64>() / count;
            }
        }
    }
    average
}

/// An array of any rank as a stack of matrices.
fn planes(array: ArrayViewD<'_, f64>) -> ArrayView3<'_, f64> {
    let [rows, columns] = [2, 1].map(|from_end| array.shape()[array.ndim() - from_end]);
    let count = array.shape()[..array.ndim() - 2].iter().product::<usize>();
    array
        .into_shape_with_order((count, rows, columns))
        .and_then(|array| array.into_dimensionality::<Ix3>())
        .expect("a trace's arrays are contiguous")
}

fn projections(scene: &Scene<'_>) -> [Step; 3] {
    let shapes = &scene.shapes;
    let made = |name: &str, from: &str, shape: &str, heads: usize, width: usize| match &scene.embedding {
        None => (format!("{name}, as given"), shape.to_string()),
        Some(embedding) => {
            let (x, bias) = (&embedding.x_shape, if embedding.biased { " + b" } else { "" });
            let dim_model = x.last().copied().unwrap_or(0);
            let out = heads * width;
            let split = if heads > 1 { format!(", in {heads} heads {shape}") } else { String::new() };
            let mut packed = x.clone();
            packed.pop();
            packed.push(out);
            (
                format!("{name} = X · W_{from}{bias}"),
                format!("{} · ({dim_model}, {out}) → {}{split}", show::shape(x), show::shape(&packed)),
            )
        }
    };
    let heads = |lead: &[usize]| lead.last().copied().unwrap_or(1);
    let (query_heads, key_heads) = (heads(&shapes.lead), heads(&shapes.key_lead));
    let step = |name, title, (formula, shapes), values, rows_are_queries, note: &str| Step {
        name,
        title,
        formula,
        shapes,
        values,
        columns_are_keys: false,
        rows_are_queries,
        note: note.to_string(),
    };
    [
        step(
            "q",
            "Queries",
            made("Q", "q", &shapes.query(), query_heads, shapes.dim),
            scene.rows_of(&scene.trace.query),
            true,
            "A query is what a token looks for in the others.",
        ),
        step(
            "k",
            "Keys",
            made("K", "k", &shapes.key(), key_heads, shapes.dim),
            scene.keys_of(&scene.trace.key, 2),
            false,
            "A key is what a token can be found by.",
        ),
        step(
            "v",
            "Values",
            made("V", "v", &shapes.value(), key_heads, shapes.dim_value),
            scene.keys_of(&scene.trace.value, 2),
            false,
            "A value is what a token passes on to those that find it.",
        ),
    ]
}

fn scores(scene: &Scene<'_>) -> Step {
    let matrix = scene.matrix(&scene.trace.scores);
    let query = scene.noted_query();
    let fits = largest_of_row(&matrix, query - scene.first_query);
    let best = fits.map_or(String::new(), |(key, score)| {
        format!(" Of all keys, {} fits {} best: {score:.4}.", scene.key_name(key), scene.query_name(query))
    });
    Step {
        name: "scores",
        title: "Step 1: scores",
        formula: "scores = Q · Kᵀ".to_string(),
        shapes: format!(
            "{} · {} → {}",
            scene.shapes.query(),
            scene.shapes.key_transposed(),
            scene.shapes.scores()
        ),
        values: scene.pairs_of(&scene.trace.scores),
        columns_are_keys: true,
        rows_are_queries: true,
        note: format!(
            "Every query meets every key: row i, column j is the dot product of query i and key j, large where the two \
             point the same way and below 0 where they point apart.{best}"
        ),
    }
}

fn scaled(scene: &Scene<'_>) -> Step {
    let [before, after] =
        [&scene.trace.scores, &scene.trace.scaled].map(|scores| variance(scores.iter().copied()));
    let dim = scene.shapes.dim;
    let variances = format!("The variance of the scores was {before:.4} and is {after:.4} now");
    let shape = scene.shapes.scores();
    let (formula, note) = match scene.scale {
        Scale::Default => (
            format!("scaled = scores / √{dim}"),
            format!(
                "A dot product is a sum of d products (here d = {dim}), so it grows with d, and large scores would make \
                 softmax pick one key and forget the others. {variances}: dividing by √{dim} divides it by {dim}. Which \
                 key fits best stays as it was."
            ),
        ),
        Scale::Given(scale) => (
            format!("scaled = scores · {scale}"),
            format!(
                "{variances}. (1/√d is the usual scale, {:.4} for d = {dim}.)",
                1.0 / (dim.max(1) as f64).sqrt()
            ),
        ),
        Scale::LeftOut => (
            "scaled = scores".to_string(),
            format!("The scale is left out (--no-scale): the scores keep their variance, {before:.4}."),
        ),
    };
    Step {
        name: "scaled",
        title: "Step 2: scale",
        formula,
        shapes: format!("{shape} → {shape}"),
        values: scene.pairs_of(&scene.trace.scaled),
        columns_are_keys: true,
        rows_are_queries: true,
        note,
    }
}

fn softcapped(scene: &Scene<'_>) -> Option<Step> {
    let cap = scene.softcap?;
    let shape = scene.shapes.scores();
    Some(Step {
        name: "softcapped",
        title: "Step 2b: softcap",
        formula: format!("softcapped = {cap} · tanh(scaled / {cap})"),
        shapes: format!("{shape} → {shape}"),
        values: scene.pairs_of(&scene.trace.softcapped),
        columns_are_keys: true,
        rows_are_queries: true,
        note: format!(
            "No score can leave ({}, {cap}): small ones hardly change, large ones are squeezed.",
            -cap
        ),
    })
}

fn masked(scene: &Scene<'_>) -> Step {
    let shape = scene.shapes.scores();
    let hides = !scene.sees_all();
    let words = scene.masks.join(" ");
    let note = match (hides, scene.masks.is_empty()) {
        (false, true) => {
            "There is no mask: every query may attend every key (■), and the scores stay as they are."
                .to_string()
        }
        (false, false) => format!("{words} Nothing is hidden: every query may attend every key (■)."),
        (true, _) => {
            let hidden = scene.trace.masked.iter().filter(|&&s| s == f64::NEG_INFINITY).count();
            format!(
                "{words} Where a query may not look (·), its score becomes -∞. Since e to the power of -∞ is 0, that \
                 weight will be exactly 0, whatever the key and the value hold. {hidden} of {} are hidden.",
                show::count(scene.trace.masked.len(), "pair")
            )
        }
    };
    Step {
        name: "masked",
        title: "Step 3: mask",
        formula: masking_formula(scene),
        shapes: format!("{shape} → {shape}"),
        values: scene.pairs_of(&scene.trace.masked),
        columns_are_keys: true,
        rows_are_queries: true,
        note: note.trim_start().to_string(),
    }
}

fn masking_formula(scene: &Scene<'_>) -> String {
    let before = if scene.softcap.is_some() { "softcapped" } else { "scaled" };
    let pairs = || scene.trace.softcapped.iter().zip(&scene.trace.masked);
    let biased =
        pairs().any(|(before, after)| *after != f64::NEG_INFINITY && after != before && !before.is_nan());
    let bias = if biased { " + bias" } else { "" };
    let hidden = if scene.sees_all() { "" } else { ", and -∞ where hidden" };
    format!("masked = {before}{bias}{hidden}")
}

fn weights(scene: &Scene<'_>) -> Step {
    let shape = scene.shapes.scores();
    let matrix = scene.matrix(&scene.trace.weights);
    let row = scene.noted_query() - scene.first_query;
    let query = scene.query_name(scene.noted_query());
    let most = match largest_of_row(&matrix, row).filter(|&(_, weight)| weight > 0.0) {
        Some((key, weight)) => format!(
            " {} attends {} most ({weight:.4}); its attention is spread as if over {:.1} keys of equal weight.",
            capitalized(&query),
            scene.key_name(key),
            libm::exp(entropy(matrix.row(row).iter().copied())),
        ),
        None if scene.queries.is_empty() => String::new(),
        None => format!(" {} may attend nothing: its weights are all 0.", capitalized(&query)),
    };
    Step {
        name: "weights",
        title: "Step 4: softmax",
        formula: "weights = softmax(masked): e^score / the row's sum".to_string(),
        shapes: format!("{shape} → {shape}"),
        values: scene.pairs_of(&scene.trace.weights),
        columns_are_keys: true,
        rows_are_queries: true,
        note: format!(
            "No weight is below 0, a higher score has more weight, and {}: each row says how a query shares out its \
             attention.{most}",
            row_sums(&scene.trace.weights)
        ),
    }
}

/// What the rows of weights sum to, in words.
fn row_sums(weights: &ArrayD<f64>) -> String {
    let sums: Vec<f64> = weights.rows().into_iter().map(|row| row.sum()).collect();
    let near = |sum: f64, wanted: f64| (sum - wanted).abs() < 5e-5;
    let empty = sums.iter().filter(|&&sum| sum == 0.0).count();
    if sums.iter().all(|&sum| near(sum, 1.0)) {
        "each row sums to 1.0000".to_string()
    } else if sums.iter().all(|&sum| sum == 0.0 || near(sum, 1.0)) {
        format!("each row sums to 1.0000 ({empty} that may attend nothing, to 0)")
    } else {
        let [low, high] = [f64::min, f64::max].map(|pick| sums.iter().copied().reduce(pick).unwrap_or(0.0));
        format!(
            "the rows sum to {low:.4} up to {high:.4} (the rest goes to the sink, or is lost to rounding)"
        )
    }
}

fn output(scene: &Scene<'_>) -> Step {
    let row = scene.noted_query() - scene.first_query;
    let weights = scene.matrix(&scene.trace.weights);
    let sum = weights.nrows().checked_sub(1).map_or(String::new(), |_| {
        format!(
            " Row {}: {}. Compare it with the plain average of step 0: what has changed is whom the query listens to.",
            scene.noted_query(),
            weighted_sum(weights.row(row).iter().copied())
        )
    });
    Step {
        name: "output",
        title: "Step 5: output",
        formula: "output = weights · V".to_string(),
        shapes: format!("{} · {} → {}", scene.shapes.scores(), scene.shapes.value(), scene.shapes.output()),
        values: scene.rows_of(&scene.trace.output),
        columns_are_keys: false,
        rows_are_queries: true,
        note: format!("Each row is the average of the rows of V by the weights of step 4.{sum}"),
    }
}

/// `0.2175·V[0] + 0.2407·V[1] + …`: all keys if they are few, else those of most weight.
fn weighted_sum(weights: impl Iterator<Item = f64>) -> String {
    const FEW: usize = 6;
    let mut terms: Vec<(usize, f64)> = weights.enumerate().filter(|&(_, weight)| weight != 0.0).collect();
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

impl Scene<'_> {
    /// Whether no pair of the trace is masked.
    pub(crate) fn sees_all(&self) -> bool {
        self.trace.masked.iter().all(|&s| s != f64::NEG_INFINITY)
    }

    /// The query that notes speak of: the first that is shown; with a mask the last, since the first may see but one key.
    fn noted_query(&self) -> usize {
        if self.sees_all() {
            self.queries.start
        } else {
            self.queries.end.saturating_sub(1).max(self.queries.start)
        }
    }

    /// The matrix of the plane that is printed, with all rows and keys of the trace.
    pub(crate) fn matrix<'m>(&self, array: &'m ArrayD<f64>) -> ArrayView2<'m, f64> {
        let planes = planes(array.view());
        // Query heads may share key heads.
        let group = self.shapes.group(planes.len_of(Axis(0)));
        planes.index_axis_move(Axis(0), self.plane / group)
    }

    /// Rows of queries, of every plane.
    fn rows_of(&self, array: &ArrayD<f64>) -> ArrayD<f64> {
        let rows = self.queries.start - self.first_query..self.queries.end - self.first_query;
        let axis = Axis(array.ndim() - 2);
        array.slice_axis(axis, Slice::from(rows)).to_owned()
    }

    /// What belongs to keys, along the axis counted from the end.
    fn keys_of(&self, array: &ArrayD<f64>, from_end: usize) -> ArrayD<f64> {
        let axis = Axis(array.ndim() - from_end);
        array.slice_axis(axis, Slice::from(self.keys.clone())).to_owned()
    }

    fn pairs_of(&self, array: &ArrayD<f64>) -> ArrayD<f64> {
        self.keys_of(&self.rows_of(array), 1)
    }

    /// `query 5`, with its token where it has one.
    pub(crate) fn query_name(&self, query: usize) -> String {
        let tokens = self.tokens.as_ref().filter(|tokens| tokens.len() == self.shapes.len_query);
        named("query", query, tokens)
    }

    /// `key 5`, with its token where it has one.
    pub(crate) fn key_name(&self, key: usize) -> String {
        named("key", key, self.tokens.as_ref())
    }

    /// What stands at the edges of matrices for these queries or keys; nothing where their place says it all.
    pub(crate) fn labels(&self, range: &Range<usize>, of_queries: bool) -> Vec<String> {
        let tokens =
            self.tokens.as_ref().filter(|tokens| !of_queries || tokens.len() == self.shapes.len_query);
        match tokens {
            Some(tokens) => range.clone().map(|index| format!("{index} {}", token(&tokens[index]))).collect(),
            None if range.start > 0 => range.clone().map(|index| index.to_string()).collect(),
            None => Vec::new(),
        }
    }
}

fn named(what: &str, index: usize, tokens: Option<&Vec<String>>) -> String {
    match tokens.and_then(|tokens| tokens.get(index)) {
        Some(own) => format!("{what} {index} ({})", token(own)),
        None => format!("{what} {index}"),
    }
}

/// A token on one line.
pub fn token(token: &str) -> String {
    let word = token.trim_start_matches(' ');
    if word.chars().any(char::is_control) || word.is_empty() {
        format!("{token:?}")
    } else {
        word.to_string()
    }
}

fn capitalized(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn largest_of_row(matrix: &ArrayView2<'_, f64>, row: usize) -> Option<(usize, f64)> {
    if row >= matrix.nrows() {
        return None;
    }
    let numbers =
        matrix.row(row).into_iter().copied().enumerate().filter(|(_, x)| !x.is_nan()).collect::<Vec<_>>();
    // The first of equals.
    numbers.into_iter().reduce(|best, other| if other.1 > best.1 { other } else { best })
}

/// The variance of finite numbers as torch has it: the sum of squares divided by one less than their count; 0 for fewer
/// than two.
pub fn variance(numbers: impl Iterator<Item = f64>) -> f64 {
    let finite: Vec<f64> = numbers.filter(|x| x.is_finite()).collect();
    let mean = finite.iter().sum::<f64>() / finite.len() as f64;
    let squares: f64 = finite.iter().map(|x| (x - mean) * (x - mean)).sum();
    if finite.len() > 1 { squares / (finite.len() as f64 - 1.0) } else { 0.0 }
}

/// The entropy of a row of weights in nats; 0 · ln 0 is 0.
pub fn entropy(weights: impl Iterator<Item = f64>) -> f64 {
    weights.filter(|&weight| weight > 0.0).map(|weight| -weight * libm::log(weight)).sum()
}
