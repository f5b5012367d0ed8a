//! What `qkv bench` measures: each case's shape, arrays and options, and the work that nobody gets around.

use std::ops::Range;

use ndarray::{Array2, Array4, ArrayView2, Ix4};
use qkv::{Alignment, Attention, Element, Error, Real, Simd};

/// One of so many pairs is hidden by `Variant::Mask`, in each row and in each tile.
const HIDDEN: usize = 16;

pub struct Case {
    pub name: &'static str,
    pub meaning: &'static str,
    pub dtype: Type,
    shape: Shape,
    variant: Variant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Type {
    F32,
    F16,
    Bf16,
}

#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    heads: usize,
    key_heads: usize,
    len_query: usize,
    len_key: usize,
    dim: usize,
    dim_value: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Full,
    Causal,
    /// How many keys count, one number for each batch.
    KeyLengths(&'static [usize]),
    /// How many keys a query sees: its own and those before.
    Window(usize),
    /// The same as a stored boolean mask.
    DenseWindow(usize),
    Mask,
    Bias,
    Lse,
    Softcap(f64),
}

/// `(batch, heads, key heads, queries, keys, dim)`; values have the keys' dim.
type Extents = (usize, usize, usize, usize, usize, usize);

const LONG: Extents = (1, 8, 8, 4096, 4096, 64);
const LONG_128: Extents = (1, 8, 8, 4096, 4096, 128);
const LONGER: Extents = (1, 8, 8, 8192, 8192, 64);
const CACHE: Extents = (1, 32, 8, 1, 8192, 128);
const PADDED: Extents = (4, 12, 12, 512, 512, 64);

pub const CASES: [Case; 21] = [
    Case::new("full", LONG, "every query sees every key"),
    Case::new("causal", LONG, "a query sees the keys up to its own").with(Variant::Causal),
    Case::new("full-128", LONG_128, "full, with a dim of 128"),
    Case::new("causal-1024", (1, 12, 12, 1024, 1024, 64), "causal, a layer of GPT-2's size")
        .with(Variant::Causal),
    Case::new("gqa-causal", (1, 8, 2, 4096, 4096, 128), "causal, 4 query heads to a key head")
        .with(Variant::Causal),
    Case::new("padding", PADDED, "key lengths 512, 384, 256, 128")
        .with(Variant::KeyLengths(&[512, 384, 256, 128])),
    Case::new("decode", CACHE, "one query over a cache of keys"),
    Case::new("decode-bf16", CACHE, "decode, the cache in bf16").of(Type::Bf16),
    Case::new("decode-f16", CACHE, "decode, the cache in f16").of(Type::F16),
    Case::new("bf16", LONG, "full, in bf16").of(Type::Bf16),
    Case::new("f16", LONG, "full, in f16").of(Type::F16),
    Case::new("window", LONGER, "the 512 keys up to a query's own").with(Variant::Window(512)),
    Case::new("window-dense", LONGER, "window, as a stored mask").with(Variant::DenseWindow(512)),
    Case::new("value-64", (1, 8, 8, 2048, 2048, 128), "full, values of 64 numbers").values(64),
    Case::new("dim-80", (1, 8, 8, 2048, 2048, 80), "full, no power of two"),
    Case::new("odd-dim", (1, 8, 8, 2048, 2048, 75), "full, a dim that fills no register"),
    Case::new("mask", LONG, "a stored mask hides 1 pair of 16").with(Variant::Mask),
    Case::new("bias", LONG, "stored numbers added to the scores").with(Variant::Bias),
    Case::new("lse", LONG, "full, with each row's log-sum-exp").with(Variant::Lse),
    Case::new("softcap", LONG, "scores squeezed into (-30, 30)").with(Variant::Softcap(30.0)),
    Case::new("tiny", (2, 4, 4, 5, 5, 8), "what a call costs by itself"),
];

/// What a call has to do, whoever does it.
pub struct Work {
    /// Multiplications and additions of the two products, of visible pairs alone: `2 · pairs · (dim + dim_value)`.
    pub flops: f64,
    /// Queries, keys and values that count, masks and biases, read once, and results written once.
    pub bytes: f64,
}

impl Case {
    const fn new(name: &'static str, extents: Extents, meaning: &'static str) -> Self {
        let (batch, heads, key_heads, len_query, len_key, dim) = extents;
        let shape = Shape { batch, heads, key_heads, len_query, len_key, dim, dim_value: dim };
        Self { name, meaning, dtype: Type::F32, shape, variant: Variant::Full }
    }

    const fn with(mut self, variant: Variant) -> Self {
        self.variant = variant;
        self
    }

    const fn of(mut self, dtype: Type) -> Self {
        self.dtype = dtype;
        self
    }

    const fn values(mut self, dim_value: usize) -> Self {
        self.shape.dim_value = dim_value;
        self
    }

    /// `1, 8/8, 4096, 4096, 64`: batch, heads/key heads, queries, keys, dim, and the values' dim if it is another.
    pub fn shape(&self) -> String {
        let Shape { batch, heads, key_heads, len_query, len_key, dim, dim_value } = self.shape;
        let values = if dim_value == dim { String::new() } else { format!("/{dim_value}") };
        format!("{batch}, {heads}/{key_heads}, {len_query}, {len_key}, {dim}{values}")
    }

    /// Whether keys and values are to be out of the caches, as a model's other layers leave them between two tokens.
    pub fn is_cold(&self) -> bool {
        self.shape.len_query == 1
    }

    pub fn work(&self) -> Work {
        let Shape { batch, heads, key_heads, len_query, len_key, dim, dim_value } = self.shape;
        let rows = || (0..batch).flat_map(|batch| (0..len_query).map(move |query| (batch, query)));
        let mut pairs: usize = rows().map(|(batch, query)| self.seen(batch, query).len()).sum();
        if self.variant == Variant::Mask {
            pairs -= pairs / HIDDEN;
        }
        let keys = match self.variant {
            Variant::KeyLengths(lengths) => lengths.iter().sum(),
            _ => batch * len_key,
        };
        let numbers = (batch * heads * len_query + key_heads * keys) * (dim + dim_value);
        let more = match self.variant {
            Variant::Mask | Variant::DenseWindow(_) => len_query * len_key * size_of::<bool>(),
            Variant::Bias => len_query * len_key * size_of::<f32>(),
            Variant::Lse => batch * heads * len_query * size_of::<f32>(),
            _ => 0,
        };
        let size = if self.dtype == Type::F32 { 4 } else { 2 };
        Work { flops: (2 * heads * pairs * (dim + dim_value)) as f64, bytes: (numbers * size + more) as f64 }
    }

    /// The keys that a query sees, but for what `Variant::Mask` hides.
    fn seen(&self, batch: usize, query: usize) -> Range<usize> {
        match self.variant {
            Variant::Causal => 0..query + 1,
            Variant::KeyLengths(lengths) => 0..lengths[batch],
            Variant::Window(width) | Variant::DenseWindow(width) => {
                (query + 1).saturating_sub(width)..query + 1
            }
            _ => 0..self.shape.len_key,
        }
    }

    /// How many drawn numbers its arrays take.
    pub fn numbers(&self) -> usize {
        let lengths = self.shapes().iter().map(|&(a, b, c, d)| a * b * c * d).sum::<usize>();
        let bias = if self.variant == Variant::Bias { self.shape.len_query * self.shape.len_key } else { 0 };
        lengths + bias
    }

    /// Of query, key and value.
    fn shapes(&self) -> [(usize, usize, usize, usize); 3] {
        let Shape { batch, heads, key_heads, len_query, len_key, dim, dim_value } = self.shape;
        [
            (batch, heads, len_query, dim),
            (batch, key_heads, len_key, dim),
            (batch, key_heads, len_key, dim_value),
        ]
    }

    /// Its arrays, from the beginning of at least [`numbers`](Self::numbers) drawn ones.
    pub fn arrays<T: Element>(&self, drawn: &[f32]) -> Arrays<'_, T> {
        let mut rest = drawn;
        let mut take = |count| {
            let (taken, left) = rest.split_at(count);
            rest = left;
            taken
        };
        let [query, key, value] = self.shapes().map(|shape| {
            let numbers = take(shape.0 * shape.1 * shape.2 * shape.3);
            let numbers = numbers.iter().map(|&x| T::round(T::Accumulator::from_f64(x.into()))).collect();
            Array4::from_shape_vec(shape, numbers).expect("as many numbers as the shape has")
        });
        let pairs = (self.shape.len_query, self.shape.len_key);
        let mask = match self.variant {
            Variant::Mask => Some(Array2::from_shape_fn(pairs, |(query, key)| (query + key) % HIDDEN != 0)),
            Variant::DenseWindow(_) => {
                Some(Array2::from_shape_fn(pairs, |(query, key)| self.seen(0, query).contains(&key)))
            }
            _ => None,
        };
        let bias = (self.variant == Variant::Bias).then(|| {
            let bias = ArrayView2::from_shape(pairs, take(pairs.0 * pairs.1));
            bias.expect("as many numbers as the shape has").to_owned()
        });
        Arrays { case: self, query, key, value, mask, bias }
    }
}

/// A case ready to be called.
pub struct Arrays<'c, T> {
    case: &'c Case,
    query: Array4<T>,
    key: Array4<T>,
    value: Array4<T>,
    /// `(queries, keys)`
    mask: Option<Array2<bool>>,
    /// `(queries, keys)`
    bias: Option<Array2<f32>>,
}

impl<T: Element> Arrays<'_, T> {
    pub fn attention(&self, simd: Simd) -> Attention<'_> {
        let attention = Attention::new().simd(simd);
        let attention = match self.case.variant {
            Variant::Causal => attention.causal(Alignment::TopLeft),
            Variant::KeyLengths(lengths) => attention.key_lengths(lengths),
            Variant::Window(width) => attention.window(Some(width as u64 - 1), Some(0)),
            Variant::Softcap(cap) => attention.softcap(cap),
            _ => attention,
        };
        let attention = self.mask.iter().fold(attention, |attention, mask| attention.mask(mask.view()));
        self.bias.iter().fold(attention, |attention, bias| attention.bias(bias.view()))
    }

    /// One call, as a caller makes it: the output is allocated anew.
    pub fn run(&self, attention: &Attention<'_>) -> Result<(), Error> {
        let call = attention.call::<T, Ix4>(self.query.view(), self.key.view(), self.value.view());
        let call = if self.case.variant == Variant::Lse { call.lse() } else { call };
        std::hint::black_box(call.run()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs are counted by formulas; the engine says them pair by pair.
    #[test]
    fn work_counts_the_pairs_that_the_engine_sees() {
        for case in &CASES {
            // The same case, small enough to be looked at whole.
            let Shape { len_query, len_key, heads, dim, dim_value, .. } = case.shape;
            let short = |len: usize| len.min(192);
            let shape = Shape { len_query: short(len_query), len_key: short(len_key), ..case.shape };
            let variant = match case.variant {
                Variant::KeyLengths(_) => Variant::KeyLengths(&[192, 100, 1, 0]),
                Variant::Window(_) => Variant::Window(50),
                Variant::DenseWindow(_) => Variant::DenseWindow(50),
                variant => variant,
            };
            let case = Case { shape, variant, ..*case };
            let arrays = case.arrays::<f32>(&vec![0.5; case.numbers()]);
            let attention = arrays.attention(Simd::best());
            let call = attention.call(arrays.query.view(), arrays.key.view(), arrays.value.view());
            let visible = call.visible().unwrap().iter().filter(|&&sees| sees).count();
            assert_eq!(case.work().flops, (2 * visible * (dim + dim_value)) as f64, "{}", case.name);
            assert_eq!(visible % heads, 0);
            arrays.run(&attention).unwrap();
        }
    }

    #[test]
    fn bytes_are_those_of_what_is_read_and_written() {
        let bytes = |name| CASES.iter().find(|case| case.name == name).unwrap().work().bytes;
        assert_eq!(bytes("full"), (4 * 8 * 4096 * 64 * 4) as f64);
        assert_eq!(bytes("mask"), bytes("full") + 4096.0 * 4096.0);
        assert_eq!(bytes("bias"), bytes("full") + 4.0 * 4096.0 * 4096.0);
        assert_eq!(bytes("lse"), bytes("full") + 4.0 * 8.0 * 4096.0);
        assert_eq!(bytes("f16") * 2.0, bytes("full"));
        assert_eq!(bytes("decode"), (2 * (32 + 8 * 8192) * 128 * 4) as f64);
        assert_eq!(bytes("padding"), (2 * (4 * 12 * 512 + 12 * 1280) * 64 * 4) as f64);
    }

    #[test]
    fn names_differ_and_lines_are_short() {
        for (index, case) in CASES.iter().enumerate() {
            assert!(CASES[..index].iter().all(|other| other.name != case.name), "{}", case.name);
            assert!(
                case.name.len() <= 12 && case.shape().len() <= 26 && case.meaning.len() <= 38,
                "{}",
                case.name
            );
        }
    }
}
