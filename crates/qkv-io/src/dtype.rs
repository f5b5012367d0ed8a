//! The element types a file can hold, and their names in each format.
//!
//! Owns the tables of names. What an element is in Rust is [`crate::Element`]'s.

use crate::Fault;
use std::fmt;

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// A byte that is 0 or 1.
    Bool,
    /// A signed byte.
    I8,
    /// A signed integer of 2 bytes.
    I16,
    /// A signed integer of 4 bytes.
    I32,
    /// A signed integer of 8 bytes.
    I64,
    /// A byte.
    U8,
    /// An unsigned integer of 2 bytes.
    U16,
    /// An unsigned integer of 4 bytes.
    U32,
    /// An unsigned integer of 8 bytes.
    U64,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an `f32`: 8 exponent bits, 7 of fraction.
    Bf16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
}

/// One row a dtype: its name here, in a `.npy` header (kind and size, without the byte order) and in safetensors.
const NAMES: [(Dtype, &str, &str, &str); 13] = [
    (Dtype::Bool, "bool", "b1", "BOOL"),
    (Dtype::I8, "i8", "i1", "I8"),
    (Dtype::I16, "i16", "i2", "I16"),
    (Dtype::I32, "i32", "i4", "I32"),
    (Dtype::I64, "i64", "i8", "I64"),
    (Dtype::U8, "u8", "u1", "U8"),
    (Dtype::U16, "u16", "u2", "U16"),
    (Dtype::U32, "u32", "u4", "U32"),
    (Dtype::U64, "u64", "u8", "U64"),
    (Dtype::F16, "f16", "f2", "F16"),
    (Dtype::Bf16, "bf16", "V2", "BF16"),
    (Dtype::F32, "f32", "f4", "F32"),
    (Dtype::F64, "f64", "f8", "F64"),
];

impl Dtype {
    /// Size of one element in bytes.
    pub fn size(self) -> usize {
        match self {
            Dtype::Bool | Dtype::I8 | Dtype::U8 => 1,
            Dtype::I16 | Dtype::U16 | Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
            Dtype::I64 | Dtype::U64 | Dtype::F64 => 8,
        }
    }

    /// The name in Rust's manner: `"f32"`, `"bf16"`, `"bool"`.
    pub fn name(self) -> &'static str {
        self.names().1
    }

    /// The name in a safetensors header.
    pub(crate) fn safetensors_name(self) -> &'static str {
        self.names().3
    }

    /// The `descr` of a little-endian `.npy` file.
    pub(crate) fn npy_descr(self) -> String {
        let order = if self.size() == 1 { '|' } else { '<' };
        format!("{order}{}", self.names().2)
    }

    pub(crate) fn from_safetensors_name(name: &str) -> Result<Self, Fault> {
        let found = NAMES.iter().find(|row| row.3 == name);
        found.map(|row| row.0).ok_or_else(|| Fault::UnsupportedDtype { found: name.to_string() })
    }

    /// Reads a `.npy` descr such as `<f4`: the dtype, and whether its bytes are in the other order than this
    /// machine's.
    ///
    /// NumPy has no bfloat16 of its own and saves one as a void of 2 bytes, `<V2`, which could be anything: it is
    /// bf16 only where the caller says so.
    pub(crate) fn from_npy_descr(descr: &str, void_as_bf16: bool) -> Result<(Self, bool), Fault> {
        let unsupported = || Fault::UnsupportedDtype { found: descr.to_string() };
        let (order, kind) = match descr.chars().next() {
            Some(order @ ('<' | '>' | '=' | '|')) => (order, &descr[1..]),
            _ => ('=', descr),
        };
        let &(dtype, ..) = NAMES.iter().find(|row| row.2 == kind).ok_or_else(unsupported)?;
        let big = match order {
            '<' => false,
            '>' => true,
            _ => cfg!(target_endian = "big"),
        };
        if dtype == Dtype::Bf16 {
            if !void_as_bf16 {
                return Err(Fault::VoidNeedsMeaning { found: descr.to_string() });
            }
            // A void has no byte order to NumPy, so '>' says nothing that could be relied on.
            if order == '>' {
                return Err(unsupported());
            }
            return Ok((dtype, cfg!(target_endian = "big")));
        }
        Ok((dtype, dtype.size() > 1 && big != cfg!(target_endian = "big")))
    }

    fn names(self) -> &'static (Dtype, &'static str, &'static str, &'static str) {
        NAMES.iter().find(|row| row.0 == self).expect("the table has a row for each dtype")
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_has_a_row_and_its_names_lead_back() {
        for (dtype, _, kind, name) in NAMES {
            assert_eq!(Dtype::from_safetensors_name(name).unwrap(), dtype);
            assert_eq!(Dtype::from_npy_descr(&dtype.npy_descr(), true).unwrap().0, dtype);
            if dtype != Dtype::Bf16 {
                assert_eq!(kind[1..].parse::<usize>().unwrap(), dtype.size());
                assert_eq!(Dtype::from_npy_descr(kind, false).unwrap(), (dtype, false));
            }
        }
    }

    #[test]
    fn only_wide_elements_have_a_byte_order() {
        assert_eq!(Dtype::from_npy_descr(">i1", false).unwrap(), (Dtype::I8, false));
        let (_, little) = Dtype::from_npy_descr("<i2", false).unwrap();
        let (_, big) = Dtype::from_npy_descr(">i2", false).unwrap();
        assert!(little != big);
    }
}
