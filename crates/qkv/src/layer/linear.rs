//! `X · W + b`, block by block of rows.
//!
//! The product is the library's (ndarray's, which is matrixmultiply's). Here rows are widened into a block, whatever
//! their type and strides, and the sums are rounded once on their way out.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayD, ArrayView2, ArrayViewD, ArrayViewMut2};
use rayon::prelude::*;

use crate::element::{Element, Real};
use crate::error::Error;
use crate::forward::zeros;
use crate::planes::Planes;
use crate::simd::FloatEnvironment;

/// Rows of a block, and numbers that a thread keeps for it at most: wide rows make shorter blocks.
const ROWS: usize = 128;
const NUMBERS: usize = 1 << 20;

/// A weight, and a bias where there is one, in the accumulator type.
#[derive(Clone, Debug)]
pub(super) struct Linear<T: Element> {
    /// `(in, out)`, in the order in memory that it came in.
    pub(super) weight: Array2<T::Accumulator>,
    /// `(out,)`
    pub(super) bias: Option<Vec<T::Accumulator>>,
}

impl<T: Element> Linear<T> {
    pub(super) fn inputs(&self) -> usize {
        self.weight.nrows()
    }

    pub(super) fn outputs(&self) -> usize {
        self.weight.ncols()
    }

    /// `(…, heads, len, part)`, a row's heads taken side by side, to `(…, len, out)`; heads · part is what the weight
    /// takes in.
    pub(super) fn apply(&self, what: &'static str, x: ArrayViewD<'_, T>) -> Result<ArrayD<T>, Error> {
        let [ref batches @ .., heads, len, part] = *x.shape() else { unreachable!("three axes and more") };
        let (inputs, outputs) = self.weight.dim();
        let shape: Vec<usize> = batches.iter().copied().chain([len, outputs]).collect();
        let mut output = zeros::<T>(what, &shape)?;
        if output.is_empty() {
            return Ok(output);
        }
        let lead: Vec<usize> = batches.iter().copied().chain([heads]).collect();
        let rows = Planes::new(what, x, &lead)?;
        let load = |row: usize, to: &mut [T::Accumulator]| {
            for head in 0..heads {
                let from = rows.row(row / len, head, row % len);
                to[head * part..][..part].iter_mut().zip(from).for_each(|(to, &x)| *to = x.widen());
            }
        };
        let block = (NUMBERS / inputs.saturating_add(outputs)).clamp(1, ROWS).min(output.len() / outputs);
        let blocks = output.as_slice_mut().expect("contiguous").par_chunks_mut(block * outputs);
        blocks.enumerate().for_each_init(
            || [inputs, outputs].map(|width| vec![T::Accumulator::ZERO; block * width]),
            |[input, sums], (index, output)| {
                let _environment = FloatEnvironment::enter();
                let count = output.len() / outputs;
                let (input, sums) = (&mut input[..count * inputs], &mut sums[..count * outputs]);
                for at in 0..count {
                    load(index * block + at, &mut input[at * inputs..][..inputs]);
                }
                self.multiply(input, sums);
                output.iter_mut().zip(sums).for_each(|(y, sum)| *y = T::round(*sum));
            },
        );
        Ok(output)
    }

    /// Rows of `in` numbers to rows of `out`.
    fn multiply(&self, input: &[T::Accumulator], sums: &mut [T::Accumulator]) {
        let (inputs, outputs) = self.weight.dim();
        let count = sums.len() / outputs;
        for row in sums.chunks_exact_mut(outputs) {
            match &self.bias {
                Some(bias) => row.copy_from_slice(bias),
                None => row.fill(T::Accumulator::ZERO),
            }
        }
        let input = ArrayView2::from_shape((count, inputs), input).expect("as many numbers");
        let mut sums = ArrayViewMut2::from_shape((count, outputs), sums).expect("as many numbers");
        let one = T::Accumulator::ONE;
        general_mat_mul(one, &input, &self.weight, one, &mut sums);
    }
}
