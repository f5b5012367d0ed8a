//! The lessons that attention is taught by, made from the numbers that PyTorch draws. What they check at their end is
//! `lesson_checks.rs`'s.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::{Context, bail};
use ndarray::{Array2, ArrayD, Axis};
use qkv::Generator;
use qkv_io::{Bundle, Data, Format, Tensor};
use qkv_view::lesson::Lesson as PageLesson;
use qkv_view::show;

use crate::input::{Given, Input};
use crate::options::AttentionOptions;
use crate::request::typed;
use crate::source::{Array, Arrays};

/// What stands for the file's name.
const NAME: &str = "the lesson";
/// Numbers of a lesson, in all its matrices, at most: each is kept.
const MOST_NUMBERS: f64 = (1 << 24) as f64;

/// What is drawn.
pub struct Lesson {
    kind: Kind,
    seed: u64,
}

enum Kind {
    /// Embeddings, and three weights `(columns of x, dim)`.
    Embedded { x: Embeddings, dim: usize },
    /// Queries, keys and values `(batch, heads, tokens, dim)`.
    Heads { counts: [usize; 4] },
}

enum Embeddings {
    /// `(tokens, dim)`
    Drawn { tokens: usize },
    /// A row of `dim` numbers for each word, the same for equal words.
    Words(Vec<String>),
    /// The reader's own.
    Given(Array2<f32>),
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
        let rows = text.trim().trim_end_matches(';').split(';').map(parse).collect::<Result<Vec<_>, _>>()?;
        let (count, columns) = (rows.len(), rows[0].len());
        if columns == 0 || rows.iter().any(|row| row.len() != columns) {
            let lengths: Vec<_> = rows.iter().map(|row| row.len().to_string()).collect();
            return Err(format!("got rows of {} numbers, want {wanted}", lengths.join(", ")));
        }
        let numbers = rows.into_iter().flatten().collect();
        Array2::from_shape_vec((count, columns), numbers).map(Self).map_err(|error| error.to_string())
    }
}

impl Lesson {
    /// `manual_seed(42)`, `rand(5, 3)`, then three `randn(3, 3)`.
    pub fn first(tokens: usize, dim: Option<usize>, seed: Option<u64>) -> Self {
        Self::embedded(Embeddings::Drawn { tokens }, dim.unwrap_or(3), seed)
    }

    /// `manual_seed(0)`, then three `randn(batch, heads, tokens, dim)`.
    pub fn second(counts: [usize; 4], seed: Option<u64>) -> Self {
        Self { kind: Kind::Heads { counts }, seed: seed.unwrap_or(0) }
    }

    /// Of the reader's own words.
    pub fn words(words: &str, dim: Option<usize>, seed: Option<u64>) -> anyhow::Result<Self> {
        let words: Vec<String> = words.split_whitespace().map(str::to_string).collect();
        if words.is_empty() {
            bail!("--words: got no word, want some, such as \"the cat sat\"");
        }
        Ok(Self::embedded(Embeddings::Words(words), dim.unwrap_or(3), seed))
    }

    /// Of the reader's own embeddings.
    pub fn own(Rows(x): Rows, dim: Option<usize>, seed: Option<u64>) -> Self {
        let dim = dim.unwrap_or(x.ncols());
        Self::embedded(Embeddings::Given(x), dim, seed)
    }

    fn embedded(x: Embeddings, dim: usize, seed: Option<u64>) -> Self {
        Self { kind: Kind::Embedded { x, dim }, seed: seed.unwrap_or(42) }
    }

    /// Refuses what would have no numbers, or too many to keep.
    pub fn refuse_sizes(&self) -> anyhow::Result<()> {
        let ([batch, heads, tokens, dim], columns) = match &self.kind {
            Kind::Embedded { x, dim } => ([1, 1, x.count(), *dim], x.columns(*dim)),
            Kind::Heads { counts } => (*counts, 0),
        };
        let named = [("--batch", batch), ("--heads", heads), ("--tokens", tokens), ("--dim", dim)];
        for (option, count) in named {
            if count == 0 {
                bail!("{option}: got 0, want at least 1");
            }
        }
        let [batch, heads, tokens, dim, columns] =
            [batch, heads, tokens, dim, columns].map(|count| count as f64);
        // Embeddings and weights; queries, keys, values, average and output; five matrices of pairs.
        let made = tokens * columns + 3.0 * columns * dim;
        let numbers = made + batch * heads * (5.0 * tokens * dim + 5.0 * tokens * tokens);
        if numbers > MOST_NUMBERS {
            let shown: Vec<_> = named.map(|(option, count)| format!("{option} {count}")).into();
            bail!(
                "{}: got {numbers:.1e} numbers in all steps together, and each is kept; want at most {MOST_NUMBERS}",
                shown.join(", ")
            );
        }
        Ok(())
    }

    /// Draws the numbers.
    pub fn input(&self, options: &AttentionOptions) -> anyhow::Result<Input> {
        let mut generator = Generator::new(self.seed);
        let mut metadata = BTreeMap::new();
        let mut arrays = Vec::new();
        let mut add = |name: &str, array: ArrayD<f32>| {
            arrays.push((name.to_string(), Tensor::from(Data::from(array))));
        };
        match &self.kind {
            Kind::Embedded { x, dim } => {
                if let Embeddings::Words(words) = x {
                    metadata.insert("tokens".to_string(), serde_json::to_string(words)?);
                }
                let x = x.draw(*dim, &mut generator)?;
                let weight = [x.shape()[1], *dim];
                add("X", x);
                for name in ["W_q", "W_k", "W_v"] {
                    add(name, generator.randn(&weight)?);
                }
            }
            Kind::Heads { counts } => {
                for name in ["q", "k", "v"] {
                    add(name, generator.randn(counts)?);
                }
            }
        }
        let bundle = Bundle { arrays, metadata };
        Input::made(
            Arrays::new(NAME.to_string(), bundle, Some(Format::Safetensors)),
            NAME.to_string(),
            options,
        )
    }

    /// What the lesson is made of, in words.
    pub fn introduction(&self) -> String {
        let seed = self.seed;
        let what = match &self.kind {
            Kind::Embedded { x: Embeddings::Drawn { tokens }, dim } => format!(
                "The first lesson. Here are {} (a token is a piece of text, say a word), each of them {}. X comes from \
                 rand({tokens}, {dim}), numbers from 0 to 1; then W_q, W_k and W_v from randn({dim}, {dim}), normal numbers \
                 of mean 0 and variance 1: all as PyTorch draws them after torch.manual_seed({seed}). Tokens of your own: \
                 --words or --x.",
                show::count(*tokens, "token"),
                show::count(*dim, "number"),
            ),
            Kind::Embedded { x: Embeddings::Words(words), dim } => format!(
                "Your words, {}. Each different word has an embedding of {}, drawn by rand after manual_seed({seed}); then \
                 W_q, W_k and W_v are drawn by randn. A model would have learned these numbers: random ones show how \
                 attention works, not what the words mean.",
                show::count(words.len(), "token"),
                show::count(*dim, "number"),
            ),
            Kind::Embedded { x: Embeddings::Given(x), dim } => format!(
                "Your embeddings, {} of {}. W_q, W_k and W_v are drawn by randn({}, {dim}) after manual_seed({seed}).",
                show::count(x.nrows(), "token"),
                show::count(x.ncols(), "number"),
                x.ncols(),
            ),
            Kind::Heads { counts: [batch, heads, tokens, dim] } => format!(
                "The second lesson: {} of {}, each with queries, keys and values for {} of {}. Q, K and V come directly \
                 from three randn({batch}, {heads}, {tokens}, {dim}), as PyTorch draws them after \
                 torch.manual_seed({seed}). Every head does the same on numbers of its own; one head of batch 0 is printed \
                 here, the first if you do not say --head H.",
                show::count(*batch, "batch"),
                show::count(*heads, "head"),
                show::count(*tokens, "token"),
                show::count(*dim, "number"),
            ),
        };
        what + " Matrices are printed as PyTorch prints them, wide ones in part: 4 decimals, computed with more."
    }
}

impl Embeddings {
    fn count(&self) -> usize {
        match self {
            Self::Drawn { tokens } => *tokens,
            Self::Words(words) => words.len(),
            Self::Given(x) => x.nrows(),
        }
    }

    /// How many numbers a token has, if `dim` is how many a query has.
    fn columns(&self, dim: usize) -> usize {
        match self {
            Self::Given(x) => x.ncols(),
            _ => dim,
        }
    }

    fn draw(&self, dim: usize, generator: &mut Generator) -> anyhow::Result<ArrayD<f32>> {
        match self {
            Self::Drawn { tokens } => Ok(generator.rand(&[*tokens, dim])?),
            Self::Words(words) => {
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
            Self::Given(x) => Ok(x.clone().into_dyn()),
        }
    }
}

/// The lesson that the page starts from: the numbers that PyTorch draws after `torch.manual_seed(42)`.
///
/// # Errors
/// If they do not fit one another, which they do.
pub fn first_lesson() -> anyhow::Result<PageLesson> {
    let input = Lesson::first(5, None, None).input(&AttentionOptions::default())?;
    let Given::Layer { x, weights } = &input.given else { bail!("a lesson has weights") };
    let weight = |name: &str| {
        let own = weights.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        rows(&own.with_context(|| format!("a lesson has {name}"))?.1)
    };
    Ok(PageLesson {
        words: None,
        x: rows(x)?,
        w_q: weight("w_q")?,
        w_k: weight("w_k")?,
        w_v: weight("w_v")?,
        scale: None,
        causal: false,
    })
}

fn rows(array: &Array) -> anyhow::Result<Vec<Vec<f32>>> {
    let numbers = typed::<f32>(&array.tensor)?.view();
    Ok(numbers.axis_iter(Axis(0)).map(|row| row.iter().copied().collect()).collect())
}
