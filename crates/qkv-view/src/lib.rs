//! Attention shown to people: arrays as torch prints them, and an explanation that goes from the embeddings to the
//! output step by step, with formulas, shapes, numbers and what to see in them; [pictures](picture) of attention
//! matrices; an [explorer] of heads of any length; and a [page] with both, which a local [server] answers.
//!
//! No step of attention is computed here: an explanation is made of a [`qkv::Trace`], what is explored of a
//! [`qkv::Inspection`]. Nothing is read or printed either, fonts excepted; text and images are handed back to the caller.

#![deny(unsafe_code)]

pub mod bounds;
pub mod explain;
pub mod explorer;
pub mod json;
pub mod lesson;
pub mod lesson_picture;
pub mod matrix;
pub mod measure;
pub mod page;
pub mod picture;
pub mod row;
pub mod scale;
pub mod scene;
pub mod server;
pub mod show;
pub mod text;
