//! A layer in f64, one plain loop after another, that shares nothing with the engine; and the same steps in the
//! accumulator type, each rounded to the element type, by which errors are measured.

use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis, s};
use qkv::{Element, Real};

use crate::support::{element, number};

/// How the steps are computed: what each operation and each step's array is rounded to, and whether sums of products
/// are kept in twice the digits.
#[derive(Clone, Copy)]
pub struct How {
    accumulate: fn(f64) -> f64,
    round: fn(f64) -> f64,
    exact: bool,
}

pub const TRUTH: How = How { accumulate: |x| x, round: |x| x, exact: true };

pub fn plain<T: Element>() -> How {
    How {
        accumulate: |x| <T::Accumulator as Real>::from_f64(x).to_f64(),
        round: |x| number(element::<T>(x)),
        exact: false,
    }
}

impl How {
    /// `start + Σ a b`; exact: Dot2 of Ogita, Rump and Oishi (2005).
    fn dot(self, start: f64, a: ArrayView1<'_, f64>, b: ArrayView1<'_, f64>) -> f64 {
        let (mut sum, mut rest) = (start, 0.0);
        for (&a, &b) in a.iter().zip(b) {
            let product = (self.accumulate)(a * b);
            let new = (self.accumulate)(sum + product);
            if self.exact {
                let share = new - sum;
                rest += (sum - (new - share)) + (product - share) + a.mul_add(b, -product);
            }
            sum = new;
        }
        (self.round)(sum + rest)
    }

    fn product(self, x: ArrayView2<'_, f64>, (weight, bias): &Linear) -> Array2<f64> {
        Array2::from_shape_fn((x.nrows(), weight.ncols()), |(i, j)| {
            self.dot(bias.as_ref().map_or(0.0, |bias| bias[j]), x.row(i), weight.column(j))
        })
    }

    /// Softmax of scaled scores times values, for one head.
    fn attend(self, [q, k, v]: [ArrayView2<'_, f64>; 3], causal: bool) -> Array2<f64> {
        let scale = (self.accumulate)(1.0 / (q.ncols() as f64).sqrt());
        let mut output = Array2::zeros((q.nrows(), v.ncols()));
        for i in 0..q.nrows() {
            let seen = if causal { i + 1 } else { k.nrows() };
            let score = |j: usize| (self.round)((self.accumulate)(self.dot(0.0, q.row(i), k.row(j)) * scale));
            let scores: Vec<f64> = (0..seen).map(score).collect();
            let max = scores.iter().fold(f64::NEG_INFINITY, |max, &s| max.max(s));
            let shares: Vec<f64> = scores.iter().map(|&s| (self.accumulate)(libm::exp(s - max))).collect();
            let sum = shares.iter().fold(0.0, |sum, share| (self.accumulate)(sum + share));
            let weights: Array1<f64> =
                shares.iter().map(|share| (self.round)((self.accumulate)(share / sum))).collect();
            for c in 0..v.ncols() {
                output[[i, c]] = self.dot(0.0, weights.view(), v.slice(s![..seen, c]));
            }
        }
        output
    }
}

/// `(in, out)`, and a bias.
pub type Linear = (Array2<f64>, Option<Vec<f64>>);

/// A layer in f64.
pub struct Plain {
    pub inputs: [Linear; 3],
    pub output: Option<Linear>,
    pub heads: usize,
    pub key_heads: usize,
    pub causal: bool,
}

/// A head's part of the last axis.
fn head(array: &Array2<f64>, heads: usize, head: usize) -> ArrayView2<'_, f64> {
    let width = array.ncols() / heads;
    array.slice(s![.., head * width..(head + 1) * width])
}

impl Plain {
    /// The projections of a matrix of rows, not yet cut into heads, and the result.
    pub fn run(&self, x: ArrayView2<'_, f64>, how: How) -> ([Array2<f64>; 3], Array2<f64>) {
        let [q, k, v] = self.inputs.each_ref().map(|linear| how.product(x, linear));
        let attended: Vec<_> = (0..self.heads)
            .map(|h| {
                let key_head = h / (self.heads / self.key_heads);
                let [k, v] = [&k, &v].map(|array| head(array, self.key_heads, key_head));
                how.attend([head(&q, self.heads, h), k, v], self.causal)
            })
            .collect();
        let attended: Vec<_> = attended.iter().map(|array| array.view()).collect();
        let attended = ndarray::concatenate(Axis(1), &attended).unwrap();
        let output = self.output.as_ref().map(|linear| how.product(attended.view(), linear));
        ([q, k, v], output.unwrap_or(attended))
    }
}
