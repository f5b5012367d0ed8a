//! The `.npz` format: a zip archive of `.npy` members, each named after its array.
//!
//! The zip crate finds the members; whether one is an array, and how much of it to inflate, is decided here. A member
//! is inflated only after its header has said how long it must be and the archive agrees, so that a bomb stops at
//! its first kilobytes. A stored member is viewed in the file, after its checksum has been compared.

use crate::element::room_for;
use crate::layout::Layout;
use crate::npy::{self, ALIGNMENT, PREAMBLE_BYTES, Preamble};
use crate::read::{ReadOptions, selected};
use crate::write::{Output, check_names, write_elements};
use crate::{Bytes, Fault, Format, Tensor, TensorView};
use std::io::{self, Cursor, Read, Write};
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Deflate's best ratio is 1032: two bits for 258 bytes.
const MAX_RATIO: u64 = 1032;

/// Reads the arrays that `options` ask for, in the archive's order.
pub(crate) fn read(file: &Bytes, options: &ReadOptions) -> Result<Vec<(String, Tensor)>, Fault> {
    let mut archive = ZipArchive::new(Cursor::new(file.clone())).map_err(archive_fault)?;
    if archive.has_duplicate_names() {
        return Err(Fault::DuplicateMember);
    }
    // Refuses members that share bytes, which is how a small archive claims many large arrays.
    archive.validate_header_consistency().map_err(archive_fault)?;
    let mut names = Vec::with_capacity(archive.len());
    for index in 0..archive.len() {
        let member = archive.by_index_data(index).map_err(archive_fault)?;
        let member = member.name().map_err(archive_fault)?;
        let name =
            member.strip_suffix(".npy").ok_or_else(|| Fault::NotAnArray { member: member.to_string() })?;
        names.push(name.to_string());
    }
    let mut arrays = Vec::new();
    for index in selected(&names, options)? {
        let tensor = read_member(file, &mut archive, index, options);
        let tensor = tensor.map_err(|fault| fault.in_array(&names[index]))?;
        arrays.push((names[index].clone(), tensor));
    }
    Ok(arrays)
}

fn read_member(
    file: &Bytes,
    archive: &mut ZipArchive<Cursor<Bytes>>,
    index: usize,
    options: &ReadOptions,
) -> Result<Tensor, Fault> {
    let about = archive.by_index_data(index).map_err(archive_fault)?;
    if about.encrypted() {
        return Err(Fault::Encrypted);
    }
    let method = about.compression();
    let mut member = match method {
        CompressionMethod::Stored | CompressionMethod::Deflated => {
            archive.by_index(index).map_err(archive_fault)?
        }
        _ => return Err(Fault::UnsupportedCompression { method: method.to_string() }),
    };
    let (bytes, layout) = match (method, member.data_start()) {
        (CompressionMethod::Stored, Some(start)) => {
            io::copy(&mut member, &mut io::sink()).map_err(unreadable)?;
            stored_member(file, start, member.compressed_size(), options)?
        }
        _ => {
            let (claimed, compressed) = (member.size(), member.compressed_size());
            inflated_member(&mut member, claimed, compressed, options)?
        }
    };
    Tensor::new(bytes, &layout)
}

/// A member that lies in the file as it is.
fn stored_member(
    file: &Bytes,
    start: u64,
    size: u64,
    options: &ReadOptions,
) -> Result<(Bytes, Layout), Fault> {
    let have = file.as_ref().len() as u64;
    let end = start.checked_add(size).filter(|&end| end <= have);
    let end = end.ok_or(Fault::CutShort { part: "a member of the archive", need: size, have })?;
    npy::read(&file.slice(start as usize..end as usize), options.void_means_bf16())
}

/// A member that has to be inflated, from `compressed` bytes to the `claimed` ones.
fn inflated_member(
    member: &mut impl Read,
    claimed: u64,
    compressed: u64,
    options: &ReadOptions,
) -> Result<(Bytes, Layout), Fault> {
    let mut header = Vec::new();
    member.by_ref().take(PREAMBLE_BYTES as u64).read_to_end(&mut header).map_err(unreadable)?;
    let preamble = Preamble::parse(&header)?;
    // An array's header ends far behind the twelfth byte; a text that does not is no dict.
    let missing = preamble.text_end.saturating_sub(header.len()) as u64;
    let have = claimed.saturating_sub(header.len() as u64);
    if missing > have {
        return Err(Fault::CutShort { part: "the header", need: missing, have });
    }
    member.by_ref().take(missing).read_to_end(&mut header).map_err(unreadable)?;
    let text = header.get(preamble.text_start..preamble.text_end).unwrap_or_default();
    let layout = npy::parse_text(text, options.void_means_bf16())?;

    let need = layout.nbytes() as u64;
    let have = claimed.saturating_sub(preamble.text_end as u64);
    if have != need || need / MAX_RATIO > compressed {
        return Err(layout.size_mismatch(have.min(compressed.saturating_mul(MAX_RATIO))));
    }
    let mut elements = room_for(layout.nbytes())?;
    member.by_ref().take(need).read_to_end(&mut elements).map_err(unreadable)?;
    // One byte more than there should be: it must not exist, and asking for it has the checksum compared.
    let more = io::copy(&mut member.take(1), &mut io::sink()).map_err(unreadable)?;
    if elements.len() as u64 + more != need {
        return Err(layout.size_mismatch(elements.len() as u64 + more));
    }
    Ok((elements.into(), layout))
}

/// The zip crate reports a wrong checksum or a broken stream as an error of reading.
fn unreadable(error: io::Error) -> Fault {
    Fault::BadArchive { reason: error.to_string() }
}

fn archive_fault(error: ZipError) -> Fault {
    Fault::BadArchive { reason: error.to_string() }
}

/// Writes each array as a stored member, its elements aligned so that a map of the file can view them.
pub(crate) fn write(output: &mut Output<'_>, arrays: &[(&str, TensorView<'_>)]) -> Result<(), Fault> {
    check_names(arrays.iter().map(|&(name, _)| name), Format::Npz, |name| {
        // What the zip format's two-byte length leaves for the name.
        if name.len() > usize::from(u16::MAX) - ".npy".len() {
            Some("it is longer than 65531 bytes")
        } else if name.contains(['\0', '\\']) {
            Some("it has a NUL or a backslash")
        } else {
            None
        }
    })?;
    let cancelled = output.cancelled;
    let mut archive = ZipWriter::new(&mut output.file);
    let written = arrays.iter().try_for_each(|(name, view)| {
        let header = npy::header_of(view);
        let size = view.nbytes().saturating_add(header.len() as u64);
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(size >= u64::from(u32::MAX))
            .with_alignment(ALIGNMENT as u16);
        archive.start_file(format!("{name}.npy"), options).map_err(write_fault)?;
        archive.write_all(&header).map_err(Output::failed)?;
        write_elements(&mut archive, view, cancelled)
    });
    match written {
        Ok(()) => archive.finish().map(|_| ()).map_err(write_fault),
        Err(fault) => {
            // Dropped, it would try to finish the archive, and print to stderr if the disk is full.
            std::mem::forget(archive);
            Err(fault)
        }
    }
}

fn write_fault(error: ZipError) -> Fault {
    match error {
        ZipError::Io(error) => Output::failed(error),
        error => Output::failed(io::Error::other(error)),
    }
}
