//! A recording: queries, keys and values of many layers in one file, `layers.N.q`, `layers.N.k`, `layers.N.v`, with metadata
//! `layers.N.scale` and so on beside what holds for all. One layer at a time is an input like any other.

use anyhow::bail;
use qkv_view::show;

use crate::source::Arrays;

const PREFIX: &str = "layers.";

/// `layers.3.q` is `q` of layer 3.
fn parsed(name: &str) -> Option<(usize, &str)> {
    let (layer, name) = name.strip_prefix(PREFIX)?.split_once('.')?;
    Some((layer.parse().ok()?, name))
}

/// The layers of a file, in order; none if it is no recording.
pub fn layers(arrays: &Arrays) -> Vec<usize> {
    let mut layers: Vec<usize> = arrays.bundle.names().filter_map(|name| Some(parsed(name)?.0)).collect();
    layers.sort_unstable();
    layers.dedup();
    layers
}

/// Leaves the arrays and metadata of one layer, by their own names: the one asked for, or the only one.
pub fn enter(arrays: &mut Arrays, asked: Option<usize>) -> anyhow::Result<()> {
    let layers = layers(arrays);
    let layer = match (&layers[..], asked) {
        ([], None) => return Ok(()),
        ([], Some(layer)) => bail!(
            "--layer {layer}: {} is no recording: it has no arrays {PREFIX}{layer}.q, .k and .v; it has {}",
            arrays.file,
            arrays.list()
        ),
        (layers, Some(layer)) if layers.contains(&layer) => layer,
        (layers, Some(layer)) => {
            bail!("--layer {layer}: {} has no such layer; it has {}", arrays.file, listed(layers))
        }
        ([only], None) => *only,
        (layers, None) => {
            bail!("{}: which layer is meant? It has {}; say --layer N", arrays.file, listed(layers))
        }
    };
    let own = |name: &str| parsed(name).filter(|&(of, _)| of == layer).map(|(_, name)| name.to_string());
    let bundle = &mut arrays.bundle;
    bundle.arrays = std::mem::take(&mut bundle.arrays)
        .into_iter()
        .filter_map(|(name, array)| Some((own(&name)?, array)))
        .collect();
    let metadata = std::mem::take(&mut bundle.metadata);
    let of_all = metadata.iter().filter(|(name, _)| parsed(name).is_none());
    let of_all = of_all.map(|(name, text)| (name.clone(), text.clone()));
    // What is said of the layer comes later, and so replaces what is said of all.
    let of_layer = metadata.iter().filter_map(|(name, text)| Some((own(name)?, text.clone())));
    bundle.metadata = of_all.chain(of_layer).collect();
    arrays.names = arrays.bundle.names().map(str::to_string).collect();
    arrays.file = format!("{}, layer {layer}", arrays.file);
    Ok(())
}

fn listed(layers: &[usize]) -> String {
    let [first, .., last] = layers else { return format!("layer {}", layers[0]) };
    format!("{}, {first} to {last}", show::count(layers.len(), "layer"))
}
