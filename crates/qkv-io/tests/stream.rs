//! Arrays that are written as they come: the file is the one that `write` makes of them all, or none.

mod common;

use common::logical;
use half::f16;
use ndarray::{Array1, ArrayD, Axis, IxDyn, arr0};
use qkv_io::{Fault, ReadOptions, StreamWriter, TensorView, WriteOptions, read, write};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn entries(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn numbers(shape: &[usize]) -> ArrayD<f32> {
    let mut next = 0.0;
    ArrayD::from_shape_simple_fn(IxDyn(shape), || {
        next += 0.5;
        next
    })
}

/// Of several dtypes, odd lengths and all kinds of strides; one of more than a block, one of nothing.
fn with_arrays(use_arrays: impl FnOnce(&[(&str, TensorView<'_>)])) {
    let bytes = Array1::from_elem(3, true);
    let halves = Array1::from_shape_fn(5, |i| f16::from_f32(i as f32));
    let large = numbers(&[2, 600, 700]);
    let mut turned = large.view().permuted_axes(IxDyn(&[1, 0, 2]));
    turned.invert_axis(Axis(2));
    let wide = large.mapv(f64::from);
    let empty = numbers(&[2, 0, 3]);
    use_arrays(&[
        ("bytes", bytes.view().into()),
        ("halves", halves.view().into()),
        ("turned", turned.into()),
        ("empty", empty.view().into()),
        ("é \"wide\"", wide.view().into()),
        ("one", arr0(1.5f32).view().into()),
    ]);
}

fn metadata() -> BTreeMap<String, String> {
    BTreeMap::from([("by".to_string(), "us, \"é\"".to_string()), ("empty".to_string(), String::new())])
}

#[test]
fn it_is_the_file_that_is_written_of_all_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let [streamed, whole] =
        ["streamed.safetensors", "whole.safetensors"].map(|name| directory.path().join(name));
    let options = WriteOptions::new().metadata(metadata());
    with_arrays(|arrays| {
        let mut file = StreamWriter::create(&streamed).unwrap();
        for (name, view) in arrays {
            file.push(*name, view).unwrap();
        }
        assert_eq!(entries(directory.path()), [""; 0]);
        file.finish(&options).unwrap();
        write(&whole, arrays, &options).unwrap();
        assert!(fs::read(&streamed).unwrap() == fs::read(&whole).unwrap());

        let bundle = read(&streamed, &ReadOptions::new()).unwrap();
        assert_eq!(bundle.metadata, metadata());
        for ((name, view), (read_name, tensor)) in arrays.iter().zip(&bundle.arrays) {
            assert_eq!((*name, logical(view)), (read_name.as_str(), logical(&tensor.view())));
            // Booleans never are.
            assert!(tensor.is_in_place() || *name == "bytes", "{name}");
        }
    });
}

#[test]
fn others_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.safetensors");
    with_arrays(|arrays| {
        let mut file = StreamWriter::create(&path).unwrap();
        arrays.iter().for_each(|(name, view)| file.push(*name, view).unwrap());
        file.finish(&WriteOptions::new().metadata(metadata())).unwrap();
        let bytes = fs::read(&path).unwrap();
        let found = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(found.len(), arrays.len());
        for (name, view) in arrays {
            let (_, shape, elements) = logical(view);
            let tensor = found.tensor(name).unwrap();
            assert_eq!(tensor.shape(), shape);
            assert!(tensor.data() == elements, "{name}");
        }
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let texts = header.metadata().clone().unwrap();
        assert_eq!(texts.into_iter().collect::<BTreeMap<_, _>>(), metadata());
    });
}

#[test]
fn names_may_be_given_late_and_must_differ_then() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.safetensors");
    let one = arr0(1u8);
    let filled = |names: [&str; 2]| {
        let mut file = StreamWriter::create(&path).unwrap();
        names.into_iter().for_each(|name| file.push(name, &one.view().into()).unwrap());
        file
    };
    let error = filled(["q", "q"]).finish(&WriteOptions::new()).unwrap_err();
    assert!(error.to_string().starts_with(&format!("{}: ", path.display())), "{error}");
    assert_fault!(error, Fault::DuplicateName { name } if name == "q");
    let mut file = filled(["q", "k"]);
    file.rename(|_| "same".to_string());
    assert_fault!(file.finish(&WriteOptions::new()).unwrap_err(), Fault::DuplicateName { .. });
    let error = filled(["q", "__metadata__"]).finish(&WriteOptions::new()).unwrap_err();
    assert_fault!(error, Fault::BadName { .. });
    assert_eq!(entries(directory.path()), [""; 0]);

    let mut file = filled(["q", "k"]);
    file.rename(|name| format!("layers.7.{name}"));
    file.finish(&WriteOptions::new()).unwrap();
    let bundle = read(&path, &ReadOptions::new()).unwrap();
    assert_eq!(bundle.names().collect::<Vec<_>>(), ["layers.7.q", "layers.7.k"]);
}

#[test]
fn one_that_is_not_finished_leaves_what_was_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.safetensors");
    let array = Array1::from_elem(1 << 20, 1f32);
    let written = || {
        let mut file = StreamWriter::create(&path).unwrap();
        file.push("a", &array.view().into()).unwrap();
        file
    };
    for old in [None, Some(b"old")] {
        if let Some(old) = old {
            fs::write(&path, old).unwrap();
        }
        let is_as_before = || {
            assert_eq!(entries(directory.path()).len(), usize::from(old.is_some()));
            assert_eq!(fs::read(&path).ok().as_deref(), old.map(|old| &old[..]));
        };
        drop(written());
        is_as_before();
        // Four blocks of 1 MiB, and once before the name is given.
        for stop_at in 0..5 {
            let asked = Cell::new(0);
            let question = || asked.replace(asked.get() + 1) == stop_at;
            let error = written().finish(&WriteOptions::new().cancelled(&question)).unwrap_err();
            assert_fault!(error, Fault::Cancelled);
            is_as_before();
        }
    }
    written().finish(&WriteOptions::new()).unwrap();
    assert_eq!(read(&path, &ReadOptions::new()).unwrap().names().count(), 1);
    assert_eq!(entries(directory.path()), ["a.safetensors"]);
}

#[test]
fn an_array_that_is_refused_is_not_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.safetensors");
    let (one, two) = (arr0(1u16), arr0(2u16));
    let endless = one.broadcast(IxDyn(&[1 << 31, 1 << 31])).unwrap();
    let mut file = StreamWriter::create(&path).unwrap();
    file.push("one", &one.view().into()).unwrap();
    let error = file.push("endless", &endless.into()).unwrap_err();
    assert_eq!(error.array(), Some("endless"));
    assert_fault!(error, Fault::ShapeTooLarge { .. });
    file.push("two", &two.view().into()).unwrap();
    file.finish(&WriteOptions::new()).unwrap();
    let bundle = read(&path, &ReadOptions::new()).unwrap();
    let numbers: Vec<u16> =
        bundle.arrays.iter().map(|(_, tensor)| tensor.data::<u16>().unwrap().view()[IxDyn(&[])]).collect();
    assert_eq!(numbers, [1, 2]);
}

#[test]
fn targets_are_looked_at_before_the_first_array() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |name: &str| StreamWriter::create(directory.path().join(name)).unwrap_err();
    assert_fault!(refused("a"), Fault::UnknownFormat);
    let error = refused("a.npz");
    assert!(error.to_string().ends_with("rename it to end in .safetensors"), "{error}");
    assert_fault!(error, Fault::FormatMismatch { .. });
    assert_fault!(refused("none/a.safetensors"), Fault::NoDirectory { .. });
    fs::create_dir(directory.path().join("d.safetensors")).unwrap();
    assert_fault!(refused("d.safetensors"), Fault::IsDirectory);
}
