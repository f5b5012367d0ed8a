//! Scaled dot-product attention on CPUs, `softmax(Q Kᵀ · scale + mask) V`: exact, linear in memory, and open to
//! inspection.
//!
//! ```
//! use ndarray::Array4;
//! use qkv::{Alignment, Attention};
//!
//! // (batch, heads, len, dim); 8 query heads share 2 key heads.
//! let query = Array4::<f32>::from_elem((1, 8, 5, 64), 0.1);
//! let key = Array4::<f32>::from_elem((1, 2, 7, 64), 0.2);
//! let value = Array4::<f32>::from_elem((1, 2, 7, 32), 0.3);
//!
//! let attention = Attention::new().causal(Alignment::BottomRight);
//! let output = attention.forward(query.view(), key.view(), value.view())?;
//! assert_eq!(output.shape(), [1, 8, 5, 32]);
//!
//! // More than the output, on request.
//! let result = attention.call(query.view(), key.view(), value.view()).lse().weights().run()?;
//! assert_eq!(result.weights.unwrap().shape(), [1, 8, 5, 7]);
//! # Ok::<(), qkv::Error>(())
//! ```
//!
//! Around it: [`Attention::backward`] has the gradients, [`Attention::trace`] keeps every intermediate, [`Layer`] makes queries, keys and values of embeddings, and
//! [`Generator`] draws the numbers that torch draws; [`machine`] measures how fast a call could be at best.
//!
//! # One row, one answer
//!
//! The bits of an output row depend only on that row's query, the keys and values it may attend, their positions,
//! and the options: not on threads, batch, chunks of a cache, what else was asked for, or the instruction set.
//!
//! # What is decided
//!
//! | question | answer |
//! |---|---|
//! | default scale | `1/√dim`; any finite number may be given |
//! | boolean mask | true is “may attend” |
//! | bias | added to the scores; -∞ masks |
//! | causal | [`Alignment`] says where the queries stand: torch's `is_causal` is `TopLeft` |
//! | several masks | they intersect; biases add |
//! | a row that may attend nothing | output 0, weights 0, log-sum-exp -∞ |
//! | NaN or ∞ in masked keys and values | cannot reach the output |
//! | NaN in a query, or in a visible key or value | the rows that see it are NaN |
//! | what does not fit | an [`Error`] that names the argument, what was got, what is wanted and the usual mend |
//! | memory | linear in the lengths, unless the weights, scores or the trace are asked for |
//! | threads | those of the rayon pool that the caller is in; for a small call the caller's alone |

#![deny(unsafe_code)]

mod attention;
mod backward;
mod bias;
mod call;
mod double_double;
mod dropout;
mod element;
mod error;
mod forward;
mod inspect;
mod layer;
pub mod machine;
mod mask;
mod partial;
mod plan;
mod planes;
mod problem;
mod random;
mod reference;
mod scalar;
mod scores;
#[allow(unsafe_code)]
mod simd;
mod softmax;
mod tile;
mod trace;

pub use attention::Attention;
pub use backward::{Backward, Gradients, HeadGradients, ReferenceGradients};
pub use bias::{Alibi, Bias, BiasFn};
pub use call::{AttentionOutput, Call, Extras, Progress, RowStats};
pub use element::{Element, Real};
pub use error::Error;
pub use half::{bf16, f16};
pub use inspect::{
    HeadStats, HeadSummary, HeadSurvey, Inspection, Map, Of, Pool, QueryDifference, QuerySurvey, Ranked,
    Ranking, Survey,
};
pub use layer::{Layer, Projections, is_layer_array};
pub use mask::{Alignment, Hint, MaskFn, Region, Window};
pub use partial::{Partial, merge};
pub use plan::{Plan, TileCounts};
pub use problem::{Path, Stage};
pub use random::Generator;
pub use reference::{ReferenceRow, error_limit, ulp};
pub use simd::Simd;
pub use trace::Trace;

// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExamples;
