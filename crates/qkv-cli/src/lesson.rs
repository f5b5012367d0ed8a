//! The lessons that attention is taught by, made from the numbers that PyTorch draws, and what they check at their end.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::{Context, bail};
use ndarray::{Array2, ArrayD, ArrayViewD, Axis, Dimension, IxDyn, Slice};
use qkv::{Alignment, Generator, Real, Trace, error_limit};
use qkv_io::{Bundle, Data, Format, Tensor};
use qkv_view::{show, text};

use crate::audit::draw;
use crate::compare::{Gauge, widened};
use crate::input::{Given, Input};
use crate::layout::Trio;
use crate::machine::Threads;
use crate::options::AttentionOptions;
use crate::request::{Number, Request};
use crate::source::Arrays;

/// Numbers of a lesson, in all its matrices, at most: each is kept.
const MOST_NUMBERS: usize = 1 << 25;
/// Places at which the future is spoilt, to see that nothing of it leaks.
const SPOILT: usize = 8;

/// What is drawn.
pub struct Lesson {
    kind: Kind,
    seed: u64,
}

enum Kind {
    /// Embeddings `(tokens, dim)` and three weights `(dim, dim)`.
    First { tokens: usize, dim: usize },
    /// Queries, keys and values `(batch, heads, tokens, dim)`.
    Second { counts: [usize; 4] },
    /// An embedding for each different word, and three weights `(dim, dim)`.
    Words { words: Vec<String>, dim: usize },
    /// Embeddings that are given, and three weights `(columns of x, dim)`.
    Own { x: Array2<f32>, dim: usize },
}

/// Rows of numbers: `1 0; 0 1; 1 1`.
#[derive(Clone, Debug)]
pub struct Rows(Array2<f32>);

impl FromStr for Rows {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = "rows of as many numbers each, such as \"1 0; 0 1; 1 1\"";
        let number = |word: &str| match word.parse::<f32>() {
            Ok(x) if x.is_finite() => Ok(x),
            _ => Err(format!("got {word:?}, want a finite number")),
        };
        let parse = |row: &str| {
            let words = row.split(|letter: char| letter.is_whitespace() || letter == ',');
            words.filter(|word| !word.is_empty()).map(number).collect::<Result<Vec<_>, _>>()
        };
        let mut rows =
            text.trim().trim_end_matches(';').split(';').map(parse).collect::<Result<Vec<_>, _>>()?;
        let columns = rows[0].len();
        if columns == 0 || rows.iter().any(|row| row.len() != columns) {
            let lengths: Vec<_> = rows.iter().map(|row| row.len().to_string()).collect();
            return Err(format!("got rows of {} numbers, want {wanted}", lengths.join(", ")));
        }
        let count = rows.len();
        let numbers = rows.drain(..).flatten().collect();
        Array2::from_shape_vec((count, columns), numbers).map(Self).map_err(|error| error.to_string())
    }
}

impl Lesson {
    /// `manual_seed(42)`, `rand(5, 3)`, then three `randn(3, 3)`.
    pub fn first(tokens: usize, dim: Option<usize>, seed: Option<u64>) -> Self {
        Self { kind: Kind::First { tokens, dim: dim.unwrap_or(3) }, seed: seed.unwrap_or(42) }
    }

    /// `manual_seed(0)`, then three `randn(batch, heads, tokens, dim)`.
    pub fn second(counts: [usize; 4], seed: Option<u64>) -> Self {
        Self { kind: Kind::Second { counts }, seed: seed.unwrap_or(0) }
    }

    pub fn words(words: &str, dim: Option<usize>, seed: Option<u64>) -> anyhow::Result<Self> {
        let words: Vec<String> = words.split_whitespace().map(str::to_string).collect();
        if words.is_empty() {
            bail!("--words: got no word, want some, such as \"the cat sat\"");
        }
        Ok(Self { kind: Kind::Words { words, dim: dim.unwrap_or(3) }, seed: seed.unwrap_or(42) })
    }

    pub fn own(Rows(x): Rows, dim: Option<usize>, seed: Option<u64>) -> Self {
        let dim = dim.unwrap_or(x.ncols());
        Self { kind: Kind::Own { x, dim }, seed: seed.unwrap_or(42) }
    }

    /// Refuses what would have no numbers, or too many to keep.
    pub fn check(&self) -> anyhow::Result<()> {
        let ([batch, heads, tokens, dim], columns) = match &self.kind {
            Kind::First { tokens, dim } => ([1, 1, *tokens, *dim], *dim),
            Kind::Second { counts } => (*counts, 1),
            Kind::Words { words, dim } => ([1, 1, words.len(), *dim], *dim),
            Kind::Own { x, dim } => ([1, 1, x.nrows(), *dim], x.ncols()),
        };
        for (option, count) in [("--batch", batch), ("--heads", heads), ("--tokens", tokens), ("--dim", dim)]
        {
            if count == 0 {
                bail!("{option}: got 0, want at least 1");
            }
        }
        let numbers = [tokens, dim, columns]
            .into_iter()
            .try_fold(0usize, |sum, width| sum.checked_add(width))
            .and_then(|width| width.checked_mul(tokens.max(dim)))
            .and_then(|matrix| matrix.checked_mul(heads)?.checked_mul(batch));
        if numbers.is_none_or(|numbers| numbers > MOST_NUMBERS) {
            bail!(
                "--tokens {tokens}, --dim {dim}: a lesson keeps every number of every step, and these are too many; want \
                 at most {MOST_NUMBERS} in a matrix"
            );
        }
        Ok(())
    }

    /// Draws the numbers.
    pub fn input(&self, options: &AttentionOptions) -> anyhow::Result<Input> {
        let mut generator = Generator::new(self.seed);
        let mut metadata = BTreeMap::new();
        if let Kind::Words { words, .. } = &self.kind {
            metadata.insert("tokens".to_string(), serde_json::to_string(words)?);
        }
        let x = match &self.kind {
            Kind::First { tokens, dim } => Some((generator.rand(&[*tokens, *dim])?, *dim)),
            Kind::Second { .. } => None,
            Kind::Words { words, dim } => Some((embedded(words, *dim, &mut generator)?, *dim)),
            Kind::Own { x, dim } => Some((x.clone().into_dyn(), *dim)),
        };
        let mut arrays = Vec::new();
        let names = match (x, &self.kind) {
            (Some((x, dim)), _) => {
                let shape = vec![x.shape()[1], dim];
                arrays.push(("X".to_string(), tensor(x)));
                ["W_q", "W_k", "W_v"].map(|name| (name, shape.clone()))
            }
            (None, Kind::Second { counts }) => ["q", "k", "v"].map(|name| (name, counts.to_vec())),
            (None, _) => unreachable!("all others have embeddings"),
        };
        for (name, shape) in names {
            arrays.push((name.to_string(), tensor(generator.randn(&shape)?)));
        }
        let bundle = Bundle { arrays, metadata };
        let mut arrays = Arrays::new("the lesson".to_string(), bundle, Some(Format::Safetensors));
        let given = match arrays.take(&["x"])? {
            Some(x) => Given::Layer { x, weights: arrays.take_layer() },
            None => {
                let mut take =
                    |name| arrays.take(&[name])?.with_context(|| format!("the lesson has no {name}"));
                Given::Arrays(Trio { query: take("q")?, key: take("k")?, value: take("v")? })
            }
        };
        Input::new(given, "the lesson".to_string(), arrays, options)
    }

    /// What the lesson is made of, in words.
    pub fn introduction(&self) -> String {
        let seed = self.seed;
        match &self.kind {
            Kind::First { tokens, dim } => format!(
                "The first lesson: {}, each of them {}. X is drawn by rand({tokens}, {dim}), then W_q, W_k and W_v by \
                 randn({dim}, {dim}): the numbers that PyTorch draws after torch.manual_seed({seed}). Tokens of your own: \
                 --words or --x.",
                show::count(*tokens, "token"),
                show::count(*dim, "number"),
            ),
            Kind::Second { counts: [batch, heads, tokens, dim] } => format!(
                "The second lesson: {} of {}, each with {} of {}. Q, K and V are drawn by three randn({batch}, {heads}, \
                 {tokens}, {dim}): the numbers that PyTorch draws after torch.manual_seed({seed}). Every head does the \
                 same on numbers of its own; one head of batch 0 is printed here (--head H).",
                show::count(*batch, "batch"),
                show::count(*heads, "head"),
                show::count(*tokens, "token"),
                show::count(*dim, "number"),
            ),
            Kind::Words { words, dim } => format!(
                "Your words: {}. Each different word has an embedding of {}, drawn by rand after manual_seed({seed}), and \
                 W_q, W_k and W_v are drawn by randn. A model would have learned these numbers; random ones show how \
                 attention works, not what the words mean.",
                show::count(words.len(), "token"),
                show::count(*dim, "number"),
            ),
            Kind::Own { x, dim } => format!(
                "Your embeddings: {} of {}. W_q, W_k and W_v are drawn by randn({}, {dim}) after manual_seed({seed}).",
                show::count(x.nrows(), "token"),
                show::count(x.ncols(), "number"),
                x.ncols(),
            ),
        }
    }
}

fn tensor(array: ArrayD<f32>) -> Tensor {
    Tensor::from(Data::from(array))
}

/// A row for each word, the same for equal words.
fn embedded(words: &[String], dim: usize, generator: &mut Generator) -> anyhow::Result<ArrayD<f32>> {
    let mut different: Vec<&String> = Vec::new();
    let places: Vec<usize> = words
        .iter()
        .map(|word| {
            different.iter().position(|known| *known == word).unwrap_or_else(|| {
                different.push(word);
                different.len() - 1
            })
        })
        .collect();
    let table = generator.rand(&[different.len(), dim])?;
    Ok(table.select(Axis(0), &places))
}

/// Something that a lesson promises.
pub struct Check {
    pub name: &'static str,
    /// What was found.
    pub what: String,
    pub passed: bool,
}

/// What the lessons check at their end: the shape, the sums of rows, that nothing leaks from the future where there is
/// causal order, and that the fast path agrees with the five steps.
pub fn checks<T: Number>(
    request: &Request<'_, T>,
    trace: &Trace<f64, IxDyn>,
    threads: &Threads,
) -> anyhow::Result<Vec<Check>> {
    let mut checks = vec![shape(request, trace), row_sums(trace)];
    if request.input.settings.causal == Some(Alignment::TopLeft) && request.input.settings.prefix.is_none() {
        checks.push(no_leak(request, trace, threads)?);
    }
    checks.push(fast_path(request, threads)?);
    Ok(checks)
}

fn shape<T: Number>(request: &Request<'_, T>, trace: &Trace<f64, IxDyn>) -> Check {
    let mut wanted = request.arrays.query.shape().to_vec();
    *wanted.last_mut().expect("two axes at least") = request.extents.dim_value;
    let got = trace.output.shape();
    let what = format!("the output is {}: for each query a row as long as a value", show::shape(got));
    Check { name: "shape", what, passed: got == wanted }
}

fn row_sums(trace: &Trace<f64, IxDyn>) -> Check {
    let rows = trace.weights.rows().into_iter().zip(trace.row_stats.sum.iter());
    let attending: Vec<f64> = rows.filter(|(_, sum)| **sum != 0.0).map(|(row, _)| row.sum()).collect();
    let error = attending.iter().fold(0.0, |error: f64, sum| error.max((sum - 1.0).abs()));
    // Each weight is rounded once.
    let limit = trace.weights.shape().last().copied().unwrap_or(0) as f64 * f64::from(f32::EPSILON);
    let what = format!(
        "{} of weights sum to 1: largest error {}, limit {}",
        show::count(attending.len(), "row"),
        show::error(error),
        show::error(limit)
    );
    Check { name: "row sums", what, passed: error <= limit }
}

/// The weights of the future are 0, and keys and values of the future may be anything: with NaN in their place no bit of
/// the past changes.
fn no_leak<T: Number>(
    request: &Request<'_, T>,
    trace: &Trace<f64, IxDyn>,
    threads: &Threads,
) -> anyhow::Result<Check> {
    let future = |(index, _): &(IxDyn, &f64)| index[index.ndim() - 1] > index[index.ndim() - 2];
    let future: Vec<f64> = trace.weights.indexed_iter().filter(future).map(|(_, &weight)| weight).collect();
    let zero = future.iter().all(|&weight| weight == 0.0);

    let attention = request.attention(0);
    let forward = |arrays: [ArrayViewD<'_, T>; 3]| {
        let [query, key, value] = arrays;
        threads.run(|| attention.forward(query, key, value)).map_err(|error| request.explained(error))
    };
    let [query, key, value] = request.arrays.each().map(|(_, array)| array.view());
    let whole = forward([query.view(), key.view(), value.view()])?;
    let (len, axis) = (request.extents.len_key, Axis(request.extents.rank - 2));
    let places: Vec<usize> = (1..=SPOILT.min(len)).map(|place| place * len / SPOILT.min(len)).collect();
    let nan = T::round(<T as qkv::Element>::Accumulator::NAN);
    let mut same = true;
    for &place in &places {
        let spoilt = |array: &ArrayViewD<'_, T>| {
            let mut array = array.to_owned();
            array.slice_axis_mut(axis, Slice::from(place..)).fill(nan);
            array
        };
        let (key, value) = (spoilt(&key), spoilt(&value));
        let output = forward([query.view(), key.view(), value.view()])?;
        let past = |output: &ArrayD<T>| {
            output.slice_axis(axis, Slice::from(..place.min(output.len_of(axis)))).mapv(widened)
        };
        same &= past(&output).iter().zip(&past(&whole)).all(|(a, b)| a.to_bits() == b.to_bits());
    }
    let what = format!(
        "{} of the future have weight 0, exactly; NaN in place of every future key and value changes no bit",
        show::count(future.len(), "pair")
    );
    Ok(Check { name: "no leak", what, passed: zero && same })
}

fn fast_path<T: Number>(request: &Request<'_, T>, threads: &Threads) -> anyhow::Result<Check> {
    let attention = request.attention(0);
    let explained = |error| request.explained(error);
    let path = request.call(&attention).plan().map_err(explained)?.path;
    let rows = draw(&request.extents, 0, usize::MAX, 0);
    let output = threads.run(|| request.call(&attention).run()).map_err(explained)?.output;
    let (mut ours, mut plain) = (Gauge::default(), Gauge::default());
    let references = threads.run(|| request.call(&attention).reference(&rows)).map_err(explained)?;
    for (row, reference) in output.rows().into_iter().zip(references) {
        ours.push_all(row.iter().map(|&x| widened(x)), reference.output.iter().copied());
        plain.push_all(reference.plain_output, reference.output);
    }
    let limit = error_limit::<T>(plain.error, ours.largest);
    let what = format!(
        "the engine's fast path ({path}) gives what the five steps give in f64: largest error {}, limit {}",
        show::error(ours.error),
        show::error(limit)
    );
    Ok(Check { name: "fast path", what, passed: ours.error.is_finite() && ours.error <= limit })
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
