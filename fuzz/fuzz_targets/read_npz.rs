//! Any bytes as a `.npz` file: an error or arrays, never a crash, a hang or a huge allocation.

#![no_main]

mod read_every_element;

use libfuzzer_sys::fuzz_target;
use qkv_io::Format;

fuzz_target!(|data: &[u8]| read_every_element::read_every_element(data, Format::Npz));
