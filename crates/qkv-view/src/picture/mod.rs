//! Pictures of attention matrices: SVG, and PNG made of it.
//!
//! A [`Heatmap`] is one matrix with axes and a colour bar, [`Panels`] are some of them side by side with arrows between,
//! a [`Sheet`] is a page of small ones. Rows are queries, columns are keys. [`Colours`] say which number has which
//! colour; what is no finite number has a colour of its own and never moves the scale.
//!
//! ```
//! use ndarray::array;
//! use qkv_view::picture::{Colours, Heatmap, png};
//!
//! let words = ["the", "cat", "sat"].map(str::to_string);
//! let weights = array![[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.2, 0.5, 0.3]];
//! let svg = Heatmap::new(weights.view())
//!     .title("weights")
//!     .query_labels(&words)
//!     .key_labels(&words)
//!     .colours(Colours::sequential().range(0.0, 1.0))
//!     .svg();
//! assert!(svg.contains(">cat<"));
//! assert!(png(&svg, 2.0).is_ok());
//! ```
//!
//! The same input gives the same bytes of SVG. Lengths are in pixels at a scale of 1.

mod axis;
mod bar;
mod cells;
mod colour;
mod font;
mod heading;
mod heatmap;
mod panels;
mod pixels;
mod render;
mod sheet;
mod shown;
mod svg;
mod ticks;

pub use axis::Axis;
pub use cells::cells_png;
pub use colour::{Colours, Map, Scale};
pub use heatmap::Heatmap;
pub use panels::Panels;
pub(crate) use pixels::uri;
pub use render::{RenderError, png, png_scale};
pub use sheet::Sheet;
pub use shown::{colours, farthest_for_scores, quantity, title};
