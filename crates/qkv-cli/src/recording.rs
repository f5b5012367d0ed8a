//! A recording: queries, keys and values of many layers in one file, `layers.N.q`, `layers.N.k`, `layers.N.v`, with metadata
//! `layers.N.scale` and so on beside what holds for all. One layer at a time is an input like any other.

use std::collections::BTreeMap;
use std::mem;

use anyhow::bail;
use qkv_io::Bundle;
use qkv_view::show;

use crate::source::Arrays;

const PREFIX: &str = "layers.";

/// `layers.3.q` is `q` of layer 3.
fn parsed(name: &str) -> Option<(usize, &str)> {
    let (layer, name) = name.strip_prefix(PREFIX)?.split_once('.')?;
    Some((layer.parse().ok()?, name))
}

/// A file's arrays by the layers that they are of; all layers have them from one map of the file.
pub struct Recording {
    /// What is of no layer; all of a file that is no recording.
    rest: Arrays,
    /// With names as a file of one layer has them.
    layers: BTreeMap<usize, Bundle>,
}

impl Recording {
    /// Sorts a file's arrays, and what metadata says of one layer.
    pub fn new(mut arrays: Arrays) -> Self {
        let Bundle { arrays: all, metadata } = mem::take(&mut arrays.bundle);
        let mut layers = BTreeMap::<usize, Bundle>::new();
        let mut rest = Bundle::default();
        for (name, array) in all {
            match parsed(&name) {
                Some((layer, own)) => layers.entry(layer).or_default().arrays.push((own.to_string(), array)),
                None => rest.arrays.push((name, array)),
            }
        }
        for (name, text) in metadata {
            match parsed(&name) {
                Some((layer, own)) if !layers.is_empty() => {
                    if let Some(layer) = layers.get_mut(&layer) {
                        layer.metadata.insert(own.to_string(), text);
                    }
                }
                _ => {
                    rest.metadata.insert(name, text);
                }
            }
        }
        Self { rest: arrays.with(rest), layers }
    }

    /// The numbers of its layers, in order; the only one of what is no recording has none.
    pub fn numbers(&self) -> Vec<Option<usize>> {
        match self.layers.is_empty() {
            true => vec![None],
            false => self.layers.keys().copied().map(Some).collect(),
        }
    }

    /// The number of the layer that is asked for, or of the only one.
    ///
    /// # Errors
    /// If there is no such layer, or none is asked for and there are several.
    pub fn chosen(&self, asked: Option<usize>) -> anyhow::Result<Option<usize>> {
        let file = &self.rest.file;
        let numbers: Vec<usize> = self.layers.keys().copied().collect();
        match (&numbers[..], asked) {
            ([], Some(layer)) => bail!(
                "--layer {layer}: {file} is no recording: it has no arrays {PREFIX}{layer}.q, .k and .v; it has {}",
                self.rest.list()
            ),
            (numbers, Some(layer)) if !numbers.contains(&layer) => {
                bail!("--layer {layer}: {file} has no such layer; it has {}", listed(numbers))
            }
            ([_, _, ..], None) => {
                bail!("{file}: which layer is meant? It has {}; say --layer N", listed(&numbers))
            }
            (numbers, asked) => Ok(asked.or(numbers.first().copied())),
        }
    }

    /// Takes out the arrays of one of its [`numbers`](Self::numbers), and the metadata that holds for it.
    pub fn take(&mut self, number: Option<usize>) -> Arrays {
        let own = number.and_then(|layer| Some((layer, self.layers.remove(&layer)?)));
        let Some((layer, Bundle { arrays, metadata: own })) = own else {
            let all = mem::take(&mut self.rest.bundle);
            return self.rest.with(all);
        };
        // What is said of the layer comes later, and so replaces what is said of all.
        let metadata = self.rest.bundle.metadata.clone().into_iter().chain(own).collect();
        let mut arrays = self.rest.with(Bundle { arrays, metadata });
        arrays.file = format!("{}, layer {layer}", arrays.file);
        arrays
    }

    /// That there are arrays of no layer, of which there is no telling what they are for.
    pub fn warning(&self) -> Option<String> {
        let is_odd = !self.layers.is_empty() && !self.rest.names.is_empty();
        is_odd.then(|| {
            format!(
                "{}: has layers, and beside them arrays that are not used: {}",
                self.rest.file,
                self.rest.list()
            )
        })
    }
}

fn listed(layers: &[usize]) -> String {
    let [first, .., last] = layers else { return format!("layer {}", layers[0]) };
    format!("{}, {first} to {last}", show::count(layers.len(), "layer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkv_io::{Data, Tensor};

    #[test]
    fn layers_have_their_own_arrays_and_metadata_and_that_of_all() {
        let array = |x: f32| Tensor::from(Data::from(ndarray::ArrayD::from_elem(vec![1], x)));
        let named = ["layers.7.q", "layers.2.k", "layers.2.q", "layers.x.q", "mask"];
        let arrays = named.iter().zip([1.0, 2.0, 3.0, 4.0, 5.0]);
        let texts = [("scale", "1"), ("causal", "true"), ("layers.2.scale", "2"), ("layers.3.scale", "3")];
        let bundle = Bundle {
            arrays: arrays.map(|(name, x)| (name.to_string(), array(x))).collect(),
            metadata: texts.map(|(key, text)| (key.to_string(), text.to_string())).into(),
        };
        let mut recording = Recording::new(Arrays::new("file".to_string(), bundle, None));
        assert_eq!(recording.numbers(), [Some(2), Some(7)]);
        assert!(recording.warning().unwrap().ends_with("not used: layers.x.q, mask"));
        let two = recording.take(Some(2));
        assert_eq!((two.file.as_str(), two.list().as_str()), ("file, layer 2", "k, q"));
        let texts: Vec<_> = two.bundle.metadata.iter().map(|(key, text)| format!("{key} {text}")).collect();
        assert_eq!(texts, ["causal true", "scale 2"]);
        assert_eq!(recording.take(Some(7)).bundle.metadata["scale"], "1");
    }
}
