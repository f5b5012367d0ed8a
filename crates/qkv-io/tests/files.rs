//! What a path can lead to, when reading and when writing: only whole files, and clear words otherwise.

mod common;

use common::npy_of;
use ndarray::{Array1, Array2, IxDyn, arr0};
use qkv_io::{Fault, File, ReadOptions, TensorView, WriteOptions, read, write, write_bytes};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const ALL: [&str; 3] = ["a.npy", "a.npz", "a.safetensors"];

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn file_with(directory: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn refused(path: &Path) -> qkv_io::Error {
    let error = read(path, &ReadOptions::new()).unwrap_err();
    assert!(error.to_string().starts_with(&format!("{}: ", path.display())), "{error}");
    error
}

fn entries(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn missing_empty_or_a_directory() {
    let directory = directory();
    assert_fault!(refused(&directory.path().join("none.npy")), Fault::NotFound);
    assert_fault!(refused(directory.path()), Fault::IsDirectory);
    assert_fault!(refused(&file_with(&directory, "empty.npz", b"")), Fault::Empty);
    assert_fault!(refused(&file_with(&directory, "a.txt", b"hello, world")), Fault::UnknownFormat);
}

#[test]
fn name_and_bytes_disagree() {
    let directory = directory();
    let array = npy_of("<f4", "(1,)", &[0; 4]);
    let error = refused(&file_with(&directory, "a.npz", &array));
    assert!(error.to_string().contains("is named .npz but holds .npy data"), "{error}");
    assert_fault!(error, Fault::FormatMismatch { .. });
    // Without a telling name the bytes decide; capital letters tell as well.
    for name in ["a", "a.bin", "a.NPY"] {
        assert!(read(file_with(&directory, name, &array), &ReadOptions::new()).is_ok());
    }
    // What fits no format is judged by its name.
    assert_fault!(refused(&file_with(&directory, "b.npy", b"\x93NUM")), Fault::CutShort { .. });
    assert_fault!(refused(&file_with(&directory, "b.npz", b"hello, world")), Fault::BadArchive { .. });
}

#[test]
fn misaligned_data_is_copied() {
    let directory = directory();
    let data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    for padding in 0..4 {
        let text =
            format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}}{}", " ".repeat(padding));
        let path = file_with(&directory, "a.npy", &common::npy((1, 0), &text, &data));
        let bundle = read(path, &ReadOptions::new()).unwrap();
        let tensor = &bundle.arrays[0].1;
        assert_eq!(tensor.is_in_place(), (10 + text.len()) % 4 == 0);
        assert_eq!(tensor.data::<f32>().unwrap().view().as_slice().unwrap(), [1.5, -2.0]);
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_is_read_to_its_end() {
    let directory = directory();
    let path = directory.path().join("pipe.npy");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        return; // no mkfifo on this system
    }
    let writer = std::thread::spawn({
        let path = path.clone();
        move || fs::write(path, npy_of("<u2", "(2,)", &[1, 0, 2, 0])).unwrap()
    });
    let bundle = read(&path, &ReadOptions::new()).unwrap();
    writer.join().unwrap();
    assert_eq!(bundle.get("pipe").unwrap().data::<u16>().unwrap().view().as_slice().unwrap(), [1, 2]);
    assert_fault!(
        write(&path, &[("a", arr0(1u8).view().into())], &WriteOptions::new()).unwrap_err(),
        Fault::NotRegular
    );
}

#[test]
fn what_we_write_is_mapped_again() {
    let directory = directory();
    // Of odd lengths: only an order by width leaves the wide ones aligned.
    let mask = Array1::from_elem(6, true);
    let bytes = Array1::from_elem(3, 7u8);
    let wide = Array2::from_elem((3, 3), 1.5f64);
    for name in ["a.npz", "a.safetensors"] {
        let path = directory.path().join(name);
        let arrays = [
            ("mask", mask.view().into()),
            ("é \"bytes\"", bytes.view().into()),
            ("wide", wide.view().into()),
        ];
        write(&path, &arrays, &WriteOptions::new()).unwrap();
        let bundle = read(&path, &ReadOptions::new()).unwrap();
        assert_eq!(bundle.names().collect::<Vec<_>>(), ["mask", "é \"bytes\"", "wide"]);
        assert!(
            bundle.get("wide").unwrap().is_in_place() && bundle.get("é \"bytes\"").unwrap().is_in_place()
        );
        assert_eq!(bundle.get("wide").unwrap().data::<f64>().unwrap().view(), wide.view().into_dyn());
    }
}

#[test]
fn a_mapped_file_can_be_written_over() {
    let directory = directory();
    for name in ALL {
        let path = directory.path().join(name);
        write(&path, &[("a", Array1::from_elem(100_000, 1f32).view().into())], &WriteOptions::new()).unwrap();
        let old = read(&path, &ReadOptions::new()).unwrap();
        let old = old.get("a").unwrap();
        assert!(old.is_in_place());
        let reversed = old.data::<f32>().unwrap().view();
        write(&path, &[("a", reversed.mapv(|x| x + 1.0).view().into())], &WriteOptions::new()).unwrap();
        assert!(reversed.iter().all(|&x| x == 1.0));
        let new = read(&path, &ReadOptions::new()).unwrap();
        assert!(new.get("a").unwrap().data::<f32>().unwrap().view().iter().all(|&x| x == 2.0));
        // An array may be written over the very file that it is mapped from.
        write(&path, &[("a", new.get("a").unwrap().view())], &WriteOptions::new()).unwrap();
    }
}

#[test]
fn interrupted_writing_leaves_what_was_there() {
    let directory = directory();
    let array = Array1::from_elem(1 << 20, 1f32);
    for name in ALL {
        for old in [None, Some(b"old")] {
            let path = directory.path().join(name);
            if let Some(old) = old {
                fs::write(&path, old).unwrap();
            }
            for stop_at in 0.. {
                let asked = Cell::new(0);
                let question = || asked.replace(asked.get() + 1) == stop_at;
                let options = WriteOptions::new().cancelled(&question);
                let result = write(&path, &[("a", array.view().into())], &options);
                if asked.get() <= stop_at {
                    result.unwrap();
                    // Four blocks of 1 MiB, and once before the name is given.
                    assert_eq!(stop_at, 5);
                    break;
                }
                assert_fault!(result.unwrap_err(), Fault::Cancelled);
                assert_eq!(entries(directory.path()).len(), usize::from(old.is_some()));
                assert_eq!(fs::read(&path).ok().as_deref(), old.map(|old| &old[..]));
            }
            fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn targets_that_cannot_be_written() {
    let directory = directory();
    let scalar = arr0(1u8);
    let refused = |path: &Path| {
        let error = write(path, &[("a", scalar.view().into())], &WriteOptions::new()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{}: ", path.display())), "{error}");
        error
    };
    fs::create_dir(directory.path().join("d.npy")).unwrap();
    assert_fault!(refused(&directory.path().join("d.npy")), Fault::IsDirectory);
    assert_fault!(refused(&directory.path().join("none/a.npy")), Fault::NoDirectory { .. });
    assert_fault!(refused(&directory.path().join("d.npy/../a.txt")), Fault::UnknownFormat);
    let path = file_with(&directory, "locked.npy", b"old");
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    assert_fault!(refused(&path), Fault::ReadOnly);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(entries(directory.path()).len(), 2);
}

#[cfg(unix)]
#[test]
fn modes_are_the_usual_ones_and_links_are_followed() {
    use std::os::unix::fs::PermissionsExt;
    let directory = directory();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let scalar = arr0(1u8);
    let arrays = [("a", scalar.view().into())];
    // A file made the plain way shows what the umask leaves.
    let plain = mode(&file_with(&directory, "plain", b""));

    let path = directory.path().join("a.npy");
    write(&path, &arrays, &WriteOptions::new()).unwrap();
    assert_eq!(mode(&path), plain);
    fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    write(&path, &arrays, &WriteOptions::new()).unwrap();
    assert_eq!(mode(&path), 0o640);

    let link = directory.path().join("link.npy");
    std::os::unix::fs::symlink("a.npy", &link).unwrap();
    fs::write(&path, b"old").unwrap();
    write(&link, &arrays, &WriteOptions::new()).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(read(&path, &ReadOptions::new()).is_ok());
}

#[test]
fn arrays_that_do_not_suit_the_format() {
    let directory = directory();
    let scalar = arr0(1u8);
    let path = |name: &str| directory.path().join(name);
    let one = || ("a", scalar.view().into());
    let plain = WriteOptions::new();
    fn refused(
        path: PathBuf,
        arrays: &[(&str, TensorView<'_>)],
        options: &WriteOptions<'_>,
    ) -> qkv_io::Error {
        write(path, arrays, options).unwrap_err()
    }
    assert_fault!(refused(path("a.npy"), &[], &plain), Fault::NotOneArray { count: 0 });
    assert_fault!(refused(path("a.npy"), &[one(), one()], &plain), Fault::NotOneArray { count: 2 });
    for name in ["a.npz", "a.safetensors"] {
        assert_fault!(refused(path(name), &[one(), one()], &plain), Fault::DuplicateName { .. });
    }
    let metadata = BTreeMap::from([("by".to_string(), "us".to_string())]);
    let with_metadata = plain.clone().metadata(metadata.clone());
    assert_fault!(refused(path("a.npy"), &[one()], &with_metadata), Fault::NoMetadata { .. });
    assert_fault!(refused(path("a.npz"), &[one()], &with_metadata), Fault::NoMetadata { .. });
    assert_fault!(
        refused(path("a.safetensors"), &[("__metadata__", scalar.view().into())], &plain),
        Fault::BadName { .. }
    );
    let long = "x".repeat(65_532);
    assert_fault!(refused(path("a.npz"), &[(&long, scalar.view().into())], &plain), Fault::BadName { .. });
    let (byte, shape) = (arr0(0u8), IxDyn(&[1 << 10, 1 << 18]));
    let repeated = byte.broadcast(shape).unwrap();
    assert_eq!(entries(directory.path()), [""; 0]);
    let stop = || true;
    // Interrupted at once, so that of the 256 MiB none are written.
    let arrays = [("a", repeated.into())];
    assert_fault!(refused(path("a.npz"), &arrays, &plain.clone().cancelled(&stop)), Fault::Cancelled);

    write(path("a.safetensors"), &[one()], &with_metadata).unwrap();
    assert_eq!(read(path("a.safetensors"), &ReadOptions::new()).unwrap().metadata, metadata);
}

#[test]
fn bytes_of_any_kind_appear_whole_or_not_at_all() {
    let directory = directory();
    let path = directory.path().join("page.html");
    write_bytes(&path, b"<!doctype html>", &WriteOptions::new()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"<!doctype html>");
    let stop = || true;
    let stopped = write_bytes(&path, b"other", &WriteOptions::new().cancelled(&stop)).unwrap_err();
    assert!(matches!(stopped.fault(), Fault::Cancelled));
    assert_eq!(fs::read(&path).unwrap(), b"<!doctype html>");
    let missing = directory.path().join("none/page.html");
    assert!(write_bytes(missing, b"", &WriteOptions::new()).is_err());
    assert_eq!(entries(directory.path()), ["page.html"]);
}

#[test]
fn copies_appear_whole_or_not_at_all() {
    let directory = directory();
    let original: Vec<u8> = (0..5 << 19).map(|i| (i % 251) as u8).collect();
    let source = file_with(&directory, "source", &original);
    let path = file_with(&directory, "copy", b"old");
    let opened = File::open(&source).unwrap();
    // Two and a half blocks of 1 MiB, and once before the name is given.
    for stop_at in 0..4 {
        let asked = Cell::new(0);
        let question = || asked.replace(asked.get() + 1) == stop_at;
        let stopped = opened.copy(&path, &WriteOptions::new().cancelled(&question)).unwrap_err();
        assert!(stopped.to_string().starts_with(&format!("{}: ", path.display())), "{stopped}");
        assert_fault!(stopped, Fault::Cancelled);
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
    opened.copy(&path, &WriteOptions::new()).unwrap();
    assert!(fs::read(&path).unwrap() == original);
    // Onto itself, too.
    File::open(&path).unwrap().copy(&path, &WriteOptions::new()).unwrap();
    assert!(fs::read(&path).unwrap() == original);
    // And when another has taken its name.
    write_bytes(&source, b"new", &WriteOptions::new()).unwrap();
    opened.copy(&path, &WriteOptions::new()).unwrap();
    assert!(fs::read(&path).unwrap() == original);
    let missing = File::open(directory.path().join("none")).unwrap_err();
    assert!(missing.to_string().contains("none: "), "{missing}");
    assert_fault!(missing, Fault::NotFound);
    assert_eq!(entries(directory.path()).len(), 2);
}
