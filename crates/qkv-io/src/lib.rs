//! Files of arrays: `.npy`, `.npz` and `.safetensors`, read and written whole.
//!
//! [`read`] maps a file into memory and gives its arrays by name. An array whose bytes lie in the file as the
//! processor wants them (its own byte order, aligned) is viewed where it is, without a copy, in C or in Fortran
//! order; any other array is copied once. [`write()`] puts arrays of any strides into a file, which appears under
//! its name complete or not at all; [`StreamWriter`] does so with arrays that come one after the other.
//!
//! A file is not trusted: whatever its bytes, reading ends in arrays or in an [`Error`] that names the file and
//! what would help, and takes memory in proportion to the file's size and the arrays that are truly in it.
//!
//! What the numbers mean is left to the caller: this crate knows no attention.
//!
//! ```
//! use qkv_io::{ReadOptions, WriteOptions, read, write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("heads.safetensors");
//! let q = ndarray::Array3::<f32>::from_shape_fn((2, 5, 8), |(h, i, e)| (h * 40 + i * 8 + e) as f32);
//! write(&path, &[("q", q.view().into())], &WriteOptions::new())?;
//!
//! let bundle = read(&path, &ReadOptions::new())?;
//! let back = bundle.get("q").and_then(|tensor| tensor.data::<f32>()).ok_or("no f32 array q")?;
//! assert_eq!(back.view(), q.view().into_dyn());
//! # Ok(())
//! # }
//! ```

mod data;
mod dtype;
mod element;
mod error;
mod format;
mod layout;
mod npy;
mod npy_header;
mod npz;
mod read;
mod safetensors;
mod source;
mod stream;
mod tensor;
mod write;

pub use data::Data;
pub use dtype::Dtype;
pub use element::Element;
pub use error::{Error, Fault};
pub use format::Format;
pub use read::{Bundle, File, ReadOptions, read, read_bytes};
pub use source::Bytes;
pub use stream::StreamWriter;
pub use tensor::{Tensor, TensorView};
pub use write::{WriteOptions, check_target, write, write_bytes};
