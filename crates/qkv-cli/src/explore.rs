//! Files as something to explore: each layer with its arrays and settings, opened head by head.

use std::path::Path;
use std::sync::Arc;

use qkv::{Alignment, Simd};
use qkv_io::{Data, File};
use qkv_view::explorer::{self, Facts, Failure, Head, Opening, Tokens};

use crate::describe;
use crate::input::{Given, Input, Layers, Sources};
use crate::layout::Trio;
use crate::machine::{self, Threads};
use crate::options::{AttentionOptions, AxisOrder};
use crate::recording::Recording;
use crate::request::{Number, Request, with_element};
use crate::source::{Array, Arrays, Source};

/// A file, opened.
pub(crate) struct Opened {
    pub layers: Vec<Layer>,
    /// What is odd about it.
    pub warnings: Vec<String>,
}

/// One layer of a file, and what its attention is told.
pub(crate) struct Layer {
    input: Input,
    options: AttentionOptions,
    simd: Option<Simd>,
    threads: Arc<Threads>,
    facts: Facts,
}

/// A file with arrays q, k and v, or a recording with all its layers, and what is odd about it, a sentence each.
///
/// # Errors
/// If what it holds cannot be read, or does not fit.
pub fn recording(file: &File) -> anyhow::Result<(explorer::Input, Vec<String>)> {
    let options = AttentionOptions::default();
    let recording = Recording::new(Arrays::of(file, &options.reading())?);
    let Opened { layers, warnings } = opened(Layers::All(Box::new(recording)), &options)?;
    Ok((into_input(layers, title(file.path())), warnings))
}

/// The file's name: where it lies is nobody's business whom a page is given.
pub(crate) fn title(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The layers that the options ask for, or all.
pub(crate) fn open(source: &Source, options: &AttentionOptions) -> anyhow::Result<Opened> {
    opened(Layers::new(source, options)?, options)
}

fn opened(mut layers: Layers<'_>, options: &AttentionOptions) -> anyhow::Result<Opened> {
    let mut opened = Opened { layers: Vec::new(), warnings: layers.warning().into_iter().collect() };
    let threads = Arc::new(Threads::new(options.threads)?);
    for layer in layers.numbers() {
        let options = AttentionOptions { layer, ..options.clone() };
        let (mut layer, warnings) = one_layer(layers.read(&options)?, options, threads.clone())?;
        if let Some(before) = opened.layers.last() {
            layer.input.share_tokens(&before.input);
        }
        for warning in warnings {
            if !opened.warnings.contains(&warning) {
                opened.warnings.push(warning);
            }
        }
        opened.layers.push(layer);
    }
    Ok(opened)
}

/// The one layer that the options ask for, or that there is.
pub(crate) fn open_one(source: &Source, options: &AttentionOptions) -> anyhow::Result<Opened> {
    let threads = Arc::new(Threads::new(options.threads)?);
    let input = Input::read(&Sources::input(source), options)?;
    let (layer, warnings) = one_layer(input, options.clone(), threads)?;
    Ok(Opened { layers: vec![layer], warnings })
}

fn one_layer(
    mut input: Input,
    mut options: AttentionOptions,
    threads: Arc<Threads>,
) -> anyhow::Result<(Layer, Vec<String>)> {
    let simd = machine::simd_from_environment()?;
    let (facts, warnings, projected) = with_element!(input, T => threads.run(|| {
        let request = Request::<T>::new(&input, &options, simd)?;
        let attention = request.attention(0);
        request.call(&attention).check().map_err(|error| request.explained(error))?;
        anyhow::Ok((facts(&request, options.layer), describe::warnings(&request), projected(&request)))
    })?);
    if let Some(arrays) = projected {
        // Once, and not for each question.
        input.given = Given::Arrays(arrays);
        options = AttentionOptions { heads: None, layout: AxisOrder::Bhsd, ..options };
    }
    Ok((Layer { input, options, simd, threads, facts }, warnings))
}

fn facts<T: Number>(request: &Request<'_, T>, layer: Option<usize>) -> Facts {
    let extents = &request.extents;
    let causal = describe::causal(request).map(|words| format!("causal {words}"));
    Facts {
        layer,
        batches: extents.batches,
        heads: extents.heads,
        key_heads: extents.key_heads,
        len_query: extents.len_query,
        len_key: extents.len_key,
        dim: extents.dim,
        scale: request.scale(),
        masks: causal
            .into_iter()
            .chain(describe::bounds(request).iter().map(describe::Bound::line))
            .collect(),
    }
}

/// Queries, keys and values that a layer made of embeddings.
fn projected<T: Number>(request: &Request<'_, T>) -> Option<Trio<Array>> {
    request.layer.as_ref()?;
    let kept = |array: ndarray::ArrayD<T>| Array {
        tensor: Arc::new(Data::from(array).into()),
        origin: request.input.title.clone(),
    };
    let Trio { query, key, value } = &request.arrays;
    Some(Trio { query: query.to_owned(), key: key.to_owned(), value: value.to_owned() }.map(kept))
}

/// Tokens name the keys; queries are the same ones where there are as many, or the last where they stand at the end.
pub(crate) fn tokens(input: &Input, batch: usize, (len_query, len_key): (usize, usize)) -> Tokens<'_> {
    let keys = input.tokens_of(batch).filter(|tokens| tokens.len() == len_key);
    let at_end = input.settings.causal == Some(Alignment::BottomRight);
    let first =
        if len_query == len_key { Some(0) } else { len_key.checked_sub(len_query).filter(|_| at_end) };
    Tokens { keys, queries: keys.zip(first).map(|(keys, first)| &keys[first..]) }
}

/// What an explorer is given.
pub(crate) fn into_input(layers: Vec<Layer>, title: String) -> explorer::Input {
    let layers = layers.into_iter().map(|layer| Arc::new(layer) as Arc<dyn explorer::Layer>);
    explorer::Input { title, layers: layers.collect() }
}

impl Layer {
    /// What it was read from.
    pub(crate) fn title(&self) -> &str {
        &self.input.title
    }

    /// What is seen in a head.
    pub(crate) fn see<R: Send>(
        &self,
        place: &Opening,
        look: impl FnMut(&dyn Head) -> Result<R, Failure> + Send,
    ) -> anyhow::Result<R> {
        (self as &dyn explorer::Layer).see(place, look).map_err(anyhow::Error::from_boxed)
    }
}

impl explorer::Layer for Layer {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn tokens(&self, batch: usize) -> Tokens<'_> {
        tokens(&self.input, batch, (self.facts.len_query, self.facts.len_key))
    }

    fn open(
        &self,
        place: &Opening,
        look: &mut (dyn FnMut(&dyn Head) -> Result<(), Failure> + Send),
    ) -> Result<(), Failure> {
        with_element!(self.input, T => self.threads.run(|| {
            let request = Request::<T>::new(&self.input, &self.options, self.simd)?;
            let attention = request.attention(0);
            look(&place.of(request.call(&attention))?)
        }))
    }
}
