//! The safetensors format: an 8-byte length, a JSON header of that length, then the elements of all arrays.
//!
//! ```text
//! {"__metadata__": {"key": "text"}, "q": {"dtype": "F32", "shape": [2, 5], "data_offsets": [0, 40]}}
//! ```
//!
//! The crate's own reader, because that of safetensors 0.8 takes the last of two arrays with one name, forgets the
//! header's order, and says of a bad array only that there is one. Its rules are kept: offsets count from the end of
//! the header, and the arrays cover the data without gap or overlap. Byte order is little-endian, order is C.

use crate::error::MAX_HEADER_BYTES;
use crate::layout::Layout;
use crate::read::{ReadOptions, selected};
use crate::write::{Output, check_names, write_elements};
use crate::{Bytes, Dtype, Fault, Format, Tensor, TensorView};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::Write;

const PREFIX_BYTES: usize = 8;
const METADATA: &str = "__metadata__";

/// The arrays that were asked for and the metadata.
pub(crate) type Contents = (Vec<(String, Tensor)>, BTreeMap<String, String>);

/// Reads the arrays that `options` ask for, in the header's order, and the metadata.
pub(crate) fn read(file: &Bytes, options: &ReadOptions) -> Result<Contents, Fault> {
    let bytes = file.as_ref();
    let part = "the length of the header";
    let prefix = bytes.first_chunk().ok_or(Fault::CutShort { part, need: 8, have: bytes.len() as u64 })?;
    let length = u64::from_le_bytes(*prefix);
    if length > MAX_HEADER_BYTES {
        return Err(Fault::HeaderTooLong { length });
    }
    let have = (bytes.len() - PREFIX_BYTES) as u64;
    if length > have {
        return Err(Fault::CutShort { part: "the header", need: length, have });
    }
    let data_start = PREFIX_BYTES + length as usize;
    let header = parse_header(&bytes[PREFIX_BYTES..data_start])?;
    let data = file.slice(data_start..bytes.len());
    check_cover(&header.arrays, data.as_ref().len() as u64)?;

    let names: Vec<String> = header.arrays.iter().map(|(name, _)| name.clone()).collect();
    let mut arrays = Vec::new();
    for index in selected(&names, options)? {
        let (name, info) = &header.arrays[index];
        let tensor = info.tensor(&data).map_err(|fault| fault.in_array(name))?;
        arrays.push((name.clone(), tensor));
    }
    Ok((arrays, header.metadata))
}

fn parse_header(text: &[u8]) -> Result<Header, Fault> {
    let bad = |reason: String| Fault::BadHeader { reason };
    if text.first() != Some(&b'{') {
        return Err(bad("it does not begin with '{'".to_string()));
    }
    let header: Header = serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
    match header.duplicate {
        Some(name) => Err(Fault::DuplicateName { name }),
        None => Ok(header),
    }
}

/// Checks that the arrays cover the `length` bytes of data, each byte once.
fn check_cover(arrays: &[(String, Info)], length: u64) -> Result<(), Fault> {
    let mut ranges = Vec::with_capacity(arrays.len());
    for (name, info) in arrays {
        let (begin, end) = info.data_offsets;
        if begin > end || end > length {
            return Err(Fault::BadOffsets { begin, end, length }.in_array(name));
        }
        ranges.push((begin, end, name));
    }
    ranges.sort_unstable();
    let mut covered = 0;
    for (begin, end, name) in ranges {
        if begin < covered {
            return Err(Fault::Overlap { begin, end: covered }.in_array(name));
        }
        if begin > covered {
            return Err(Fault::Gap { begin: covered, end: begin });
        }
        covered = end;
    }
    if covered < length { Err(Fault::Gap { begin: covered, end: length }) } else { Ok(()) }
}

/// The header as it is written, its arrays in their order.
#[derive(Default)]
struct Header {
    metadata: BTreeMap<String, String>,
    arrays: Vec<(String, Info)>,
    /// A name or a metadata key that occurs twice.
    duplicate: Option<String>,
}

#[derive(serde::Deserialize)]
struct Info {
    /// Kept as text: an unknown dtype is a fault only if the array is asked for.
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

impl Info {
    /// The array in `data`, which [`check_cover`] has seen to hold it.
    fn tensor(&self, data: &Bytes) -> Result<Tensor, Fault> {
        let dtype = Dtype::from_safetensors_name(&self.dtype)?;
        let layout = Layout::new(dtype, &self.shape.0)?.stored(false, cfg!(target_endian = "big"));
        let (begin, end) = self.data_offsets;
        Tensor::new(data.slice(begin as usize..end as usize), &layout)
    }
}

/// Lengths of the axes. As a type of its own, so that a header full of them is not first taken into memory.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lengths;

        impl<'de> Visitor<'de> for Lengths {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of lengths")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut lengths = Vec::new();
                while let Some(length) = list.next_element()? {
                    if lengths.len() == crate::error::MAX_AXES {
                        return Err(de::Error::custom(Fault::TooManyAxes));
                    }
                    lengths.push(length);
                }
                Ok(Shape(lengths))
            }
        }

        deserializer.deserialize_seq(Lengths)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of arrays")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header::default();
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    let in_entry = |error: A::Error| de::Error::custom(format!("entry {name:?}: {error}"));
                    if !seen.insert(name.clone()) {
                        header.duplicate.get_or_insert_with(|| name.clone());
                    }
                    if name == METADATA {
                        let Texts { texts, duplicate } = map.next_value().map_err(in_entry)?;
                        header.metadata = texts;
                        header.duplicate = header.duplicate.or(duplicate);
                    } else {
                        let info = map.next_value().map_err(in_entry)?;
                        header.arrays.push((name, info));
                    }
                }
                Ok(header)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

/// The metadata: an object of strings.
#[derive(Default)]
struct Texts {
    texts: BTreeMap<String, String>,
    duplicate: Option<String>,
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut all = Texts::default();
                while let Some((key, text)) = map.next_entry::<String, String>()? {
                    if all.texts.insert(key.clone(), text).is_some() {
                        all.duplicate = Some(key);
                    }
                }
                Ok(all)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

/// Writes the header in the order given, and the elements as [`arranged`] has them.
pub(crate) fn write(
    output: &mut Output<'_>,
    arrays: &[(&str, TensorView<'_>)],
    metadata: &BTreeMap<String, String>,
) -> Result<(), Fault> {
    let entry = |(name, view): &'_ (&'_ str, TensorView<'_>)| Entry {
        name: name.to_string(),
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        nbytes: view.nbytes(),
    };
    let entries: Vec<Entry> = arrays.iter().map(entry).collect();
    let Arrangement { head, order } = arranged(&entries, metadata)?;
    output.file.write_all(&head).map_err(Output::failed)?;
    let cancelled = output.cancelled;
    order.into_iter().try_for_each(|index| write_elements(&mut output.file, &arrays[index].1, cancelled))
}

/// An array as the header tells of it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub nbytes: u64,
}

/// How arrays lie in a file.
pub(crate) struct Arrangement {
    /// All bytes before the elements.
    pub head: Vec<u8>,
    /// Which array's elements come first, second and so on.
    pub order: Vec<usize>,
}

/// The elements of the widest dtypes come first: as the header is padded to 8 bytes, each array is then aligned for its dtype.
///
/// # Errors
/// If names do not differ or one is the metadata's, or the header is longer than the format allows.
pub(crate) fn arranged(entries: &[Entry], metadata: &BTreeMap<String, String>) -> Result<Arrangement, Fault> {
    let names = entries.iter().map(|entry| entry.name.as_str());
    check_names(names, Format::Safetensors, |name| (name == METADATA).then_some("it is the metadata's"))?;
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(entries[index].dtype.size()));
    let mut offsets = vec![(0, 0); entries.len()];
    let mut end = 0u64;
    for &index in &order {
        let begin = end;
        end = end.saturating_add(entries[index].nbytes);
        offsets[index] = (begin, end);
    }

    let mut members = Vec::with_capacity(entries.len() + 1);
    if !metadata.is_empty() {
        members.push(format!("{}:{}", json(METADATA), json(metadata)));
    }
    for (Entry { name, dtype, shape, .. }, (begin, end)) in entries.iter().zip(offsets) {
        let (dtype, shape) = (dtype.safetensors_name(), json(shape));
        let info = format!("{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}");
        members.push(format!("{}:{info}", json(name)));
    }
    let mut header = format!("{{{}}}", members.join(",")).into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = header.len() as u64;
    if length > MAX_HEADER_BYTES {
        return Err(Fault::HeaderTooLong { length });
    }
    Ok(Arrangement { head: [&length.to_le_bytes()[..], &header].concat(), order })
}

fn json(value: &(impl serde::Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("strings and numbers always have a json form")
}
