//! What a mask's numbers mean, and how its axes fall on the scores.
//!
//! A boolean mask says which pairs may attend; numbers are added to the scores. The exception is a mask of zeros and
//! ones or of integers, which may mean either: it is refused until it is said which.

use std::sync::Arc;

use anyhow::bail;
use ndarray::{ArrayD, ArrayViewD};
use qkv::{Bias, Element};
use qkv_io::{Data, Dtype, Tensor, TensorView};
use qkv_view::show;

use crate::options::MaskAs;
use crate::source::Array;

/// A mask whose meaning is settled.
pub struct Mask {
    kind: Kind,
    /// In words.
    pub meaning: String,
    pub origin: String,
    shape: Vec<usize>,
}

enum Kind {
    /// True is “may attend”.
    Allow(Data<bool>),
    /// Of a float type.
    Add(Arc<Tensor>),
}

impl Mask {
    /// `mask_as` comes with the words for where it was said.
    pub fn new(array: Array, mask_as: Option<(MaskAs, &str)>) -> anyhow::Result<Self> {
        let Array { tensor, origin } = array;
        let dtype = tensor.dtype();
        let floats = matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64);
        let (kind, meaning) = match mask_as {
            Some((MaskAs::Additive, said)) if dtype == Dtype::Bool => {
                bail!("mask {origin}: {said} is for numbers, and this mask is boolean: true = may attend")
            }
            _ if dtype == Dtype::Bool => {
                let Some(data) = tensor.data::<bool>() else { unreachable!("of this dtype") };
                (Kind::Allow(data.clone()), "boolean: true = may attend".to_string())
            }
            Some((MaskAs::Allow, said)) => {
                (Kind::Allow(is_not_zero(&tensor.view()).into()), format!("{dtype}, {said}: blocks where 0"))
            }
            Some((MaskAs::Additive, said)) if !floats => {
                let numbers = Tensor::from(Data::from(as_f64(&tensor.view())));
                (Kind::Add(Arc::new(numbers)), format!("{dtype}, {said}: added to the scores"))
            }
            None if !floats || is_zeros_and_ones(&tensor.view()) => return Err(unclear(&tensor, &origin)),
            _ => (Kind::Add(tensor.clone()), format!("{dtype}: added to the scores, -inf blocks")),
        };
        Ok(Self { kind, meaning, origin, shape: tensor.shape().to_vec() })
    }

    /// `boolean` or `additive`: what it is to the engine.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Allow(_) => "boolean",
            Kind::Add(_) => "additive",
        }
    }

    /// How each axis of the scores is served, given their names and lengths: `heads 12`, `every query`.
    pub fn axes(&self, scores: &[(&str, usize)]) -> Vec<String> {
        let missing = scores.len().saturating_sub(self.shape.len());
        let own = std::iter::repeat_n(&1, missing).chain(&self.shape);
        let axes = scores.iter().zip(own).map(|(&(name, full), &own)| match own {
            1 if full != 1 => format!("every {name}"),
            _ => show::count(own, name),
        });
        axes.collect()
    }

    pub fn shape(&self) -> String {
        show::shape(&self.shape)
    }

    /// The options with this mask, of which only the queries from `first` on are used.
    pub fn add_to<'a>(
        &'a self,
        attention: qkv::Attention<'a>,
        (first, len_query): (usize, usize),
    ) -> qkv::Attention<'a> {
        fn cut<T>(mut view: ArrayViewD<'_, T>, (first, len_query): (usize, usize)) -> ArrayViewD<'_, T> {
            if let Some(axis) = view.ndim().checked_sub(2)
                && view.shape()[axis] == len_query
                && len_query > 1
            {
                view.slice_axis_inplace(ndarray::Axis(axis), (first..).into());
            }
            view
        }
        let rows = (first, len_query);
        let bias: Bias<'a> = match &self.kind {
            Kind::Allow(data) => return attention.mask(cut(data.view(), rows)),
            Kind::Add(tensor) => match tensor.view() {
                TensorView::F16(view) => cut(view, rows).into(),
                TensorView::Bf16(view) => cut(view, rows).into(),
                TensorView::F32(view) => cut(view, rows).into(),
                TensorView::F64(view) => cut(view, rows).into(),
                _ => unreachable!("floats, as settled in `new`"),
            },
        };
        attention.bias(bias)
    }
}

fn unclear(tensor: &Tensor, origin: &str) -> anyhow::Error {
    let (dtype, shape) = (tensor.dtype(), show::shape(tensor.shape()));
    let found = match dtype {
        Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64 => "of 0s and 1s only",
        _ => "of integers",
    };
    anyhow::anyhow!(
        "mask {origin}: {dtype} {shape} {found}, and added to the scores such a mask would leak what it hides (the \
         future, if it is causal): say --mask-as allow (blocks where 0) or --mask-as additive"
    )
}

/// Does the same with the view inside, whatever its dtype.
macro_rules! for_numbers {
    ($view:expr, $array:ident, $number:ident => $body:expr, bool: $bools:ident => $for_bool:expr) => {
        match $view {
            TensorView::Bool($bools) => $for_bool,
            TensorView::I8($array) => $array.mapv(|$number| $body),
            TensorView::I16($array) => $array.mapv(|$number| $body),
            TensorView::I32($array) => $array.mapv(|$number| $body),
            TensorView::I64($array) => $array.mapv(|$number| $body),
            TensorView::U8($array) => $array.mapv(|$number| $body),
            TensorView::U16($array) => $array.mapv(|$number| $body),
            TensorView::U32($array) => $array.mapv(|$number| $body),
            TensorView::U64($array) => $array.mapv(|$number| $body),
            TensorView::F16($array) => $array.mapv(|$number| $body),
            TensorView::Bf16($array) => $array.mapv(|$number| $body),
            TensorView::F32($array) => $array.mapv(|$number| $body),
            TensorView::F64($array) => $array.mapv(|$number| $body),
        }
    };
}

/// A number of any dtype in f64; integers above 2^53 are rounded.
trait ToF64: Copy {
    fn to_f64(self) -> f64;
}

macro_rules! to_f64 {
    ($($integer:ty),*; $($float:ty),*) => {
        $(impl ToF64 for $integer {
            fn to_f64(self) -> f64 {
                self as f64
            }
        })*
        $(impl ToF64 for $float {
            fn to_f64(self) -> f64 {
                qkv::Real::to_f64(self.widen())
            }
        })*
    };
}

to_f64!(i8, i16, i32, i64, u8, u16, u32, u64; qkv::f16, qkv::bf16, f32, f64);

/// The numbers in f64, booleans as 0 and 1.
pub fn as_f64(view: &TensorView<'_>) -> ArrayD<f64> {
    for_numbers!(view, array, x => ToF64::to_f64(x), bool: array => array.mapv(|x| f64::from(u8::from(x))))
}

fn is_not_zero(view: &TensorView<'_>) -> ArrayD<bool> {
    for_numbers!(view, array, x => ToF64::to_f64(x) != 0.0, bool: array => array.to_owned())
}

/// Whether floats are all 0 or 1, and some 1. All zeros is a mask that adds nothing, and clear.
fn is_zeros_and_ones(view: &TensorView<'_>) -> bool {
    fn of<T: Element>(array: &ArrayViewD<'_, T>) -> bool {
        let mut ones = false;
        let only = array.iter().all(|&x| {
            let x = qkv::Real::to_f64(x.widen());
            ones |= x == 1.0;
            x == 0.0 || x == 1.0
        });
        only && ones
    }
    match view {
        TensorView::F16(array) => of(array),
        TensorView::Bf16(array) => of(array),
        TensorView::F32(array) => of(array),
        TensorView::F64(array) => of(array),
        _ => false,
    }
}
