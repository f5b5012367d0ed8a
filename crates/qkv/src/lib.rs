//! Scaled dot-product attention on CPUs, `softmax(Q Kᵀ · scale + mask) V`: fast, exact, and open to inspection.
#![warn(missing_docs)]

mod attention;
mod bias;
mod double_double;
mod element;
mod error;
mod forward;
mod mask;
mod partial;
mod plan;
mod planes;
mod problem;
mod reference;
mod scalar;
mod scores;
mod simd;
mod softmax;
mod tile;

pub use attention::{Attention, AttentionOutput, Call, Progress, RowStats};
pub use bias::{Alibi, Bias, BiasFn};
pub use element::{Element, Real};
pub use error::Error;
pub use half::{bf16, f16};
pub use mask::{Alignment, Hint, MaskFn, Region, Window};
pub use partial::{Partial, merge};
pub use plan::{Plan, TileCounts};
pub use problem::{Path, Stage};
pub use reference::{ReferenceRow, error_limit};
pub use simd::Simd;
