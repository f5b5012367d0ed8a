//! An array's type, shape and order as a header gives them, checked once.
//!
//! A [`Layout`] is proof that the element count and the byte count fit the address space; whether the bytes are
//! there is checked where they are taken ([`crate::Tensor`]).

use crate::error::MAX_AXES;
use crate::{Dtype, Fault};

/// How an array's elements lie in a run of bytes.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    dtype: Dtype,
    shape: Vec<usize>,
    nbytes: usize,
    /// First axis varies fastest.
    fortran: bool,
    /// Each element's bytes are in the other order than this machine's.
    swapped: bool,
}

impl Layout {
    /// Checks that an array of this shape can exist; C order, this machine's byte order.
    pub fn new(dtype: Dtype, shape: &[u64]) -> Result<Self, Fault> {
        if shape.len() > MAX_AXES {
            return Err(Fault::TooManyAxes);
        }
        let too_large = || Fault::ShapeTooLarge { shape: shape.to_vec(), dtype };
        // The axes of length 0 are left out: ndarray wants the product of the others to fit as well.
        let mut extent = dtype.size() as u64;
        for &length in shape.iter().filter(|&&length| length != 0) {
            extent = extent.checked_mul(length).filter(|&n| n <= isize::MAX as u64).ok_or_else(too_large)?;
        }
        let nbytes = if shape.contains(&0) { 0 } else { extent as usize };
        let shape = shape.iter().map(|&length| length as usize).collect();
        Ok(Layout { dtype, shape, nbytes, fortran: false, swapped: false })
    }

    /// The same array with its elements in Fortran order (`fortran`) and its bytes swapped (`swapped`).
    pub fn stored(mut self, fortran: bool, swapped: bool) -> Self {
        self.fortran = fortran;
        self.swapped = swapped;
        self
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Bytes that the elements take.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    pub fn fortran(&self) -> bool {
        self.fortran
    }

    pub fn swapped(&self) -> bool {
        self.swapped
    }

    /// The fault of finding `have` bytes where this array's were wanted.
    pub fn size_mismatch(&self, have: u64) -> Fault {
        Fault::SizeMismatch { shape: self.shape.clone(), dtype: self.dtype, need: self.nbytes as u64, have }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_is_found_in_every_place() {
        for shape in [&[u64::MAX][..], &[1 << 32, 1 << 32], &[0, 1 << 62], &[1 << 62, 0], &[2, 1 << 60, 2]] {
            assert!(matches!(Layout::new(Dtype::F32, shape), Err(Fault::ShapeTooLarge { .. })), "{shape:?}");
        }
    }

    #[test]
    fn sizes_of_scalars_and_of_empty_arrays() {
        assert_eq!(Layout::new(Dtype::F64, &[]).unwrap().nbytes(), 8);
        assert_eq!(Layout::new(Dtype::F64, &[2, 0, 4]).unwrap().nbytes(), 0);
        assert_eq!(Layout::new(Dtype::U16, &[3, 5]).unwrap().nbytes(), 30);
        assert!(matches!(Layout::new(Dtype::U8, &[1; 65]), Err(Fault::TooManyAxes)));
    }
}
