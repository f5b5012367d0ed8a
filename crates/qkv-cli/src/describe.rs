//! How a call was read and what it does, in words: shapes, the five steps, masks.

use qkv::Window;
use qkv_view::{bounds as words, show};
use serde_json::{Value, json};

use crate::input::Given;
use crate::layout::Layout;
use crate::request::{Extents, Number, Request};
use crate::source::Array;
use crate::terminal::Terminal;

/// A mask, bias or bound, as it is told to people and in JSON.
pub struct Bound {
    pub kind: &'static str,
    /// How an array's axes fall on the scores; nothing for what has no array.
    pub axes: Vec<String>,
    pub meaning: String,
    /// An array's origin and shape.
    pub array: Option<(String, String)>,
}

impl Bound {
    fn plain(kind: &'static str, meaning: String) -> Self {
        Self { kind, axes: Vec::new(), meaning, array: None }
    }

    pub fn json(&self) -> Value {
        json!({ "kind": self.kind, "axes": self.axes, "meaning": self.meaning })
    }

    /// A line of words.
    pub fn line(&self) -> String {
        match &self.array {
            Some((origin, shape)) => {
                format!("{}; {origin} {shape} is {}", self.meaning, self.axes.join(", "))
            }
            None => format!("{}: {}", self.kind, self.meaning),
        }
    }
}

/// Causal order, aligned.
pub fn causal<T: Number>(request: &Request<'_, T>) -> Option<String> {
    request.order().map(|order| order.words())
}

/// All that bounds or biases the scores, but causal order.
pub fn bounds<T: Number>(request: &Request<'_, T>) -> Vec<Bound> {
    let settings = &request.input.settings;
    let mut bounds = Vec::new();
    if let Some(mask) = &request.input.mask {
        bounds.push(Bound {
            kind: mask.kind(),
            axes: mask.axes(&request.score_axes()),
            meaning: mask.meaning.clone(),
            array: Some((own_name(&mask.origin, &request.input.title), mask.shape())),
        });
    }
    if let Some(Window { left, right }) = settings.window {
        bounds.push(Bound::plain("window", words::window(left, right)));
    }
    if let Some(lengths) = &settings.key_lengths {
        bounds.push(Bound::plain("key-lengths", words::key_lengths(lengths)));
    }
    if let Some(segments) = &settings.segments {
        let meaning = words::segments(segments.query.shape(), segments.key.shape());
        bounds.push(Bound::plain("segments", meaning));
    }
    if settings.padding.is_some() {
        let meaning = "tokens that fill a batch up attend nothing and are attended by none".to_string();
        bounds.push(Bound::plain("padding", meaning));
    }
    if settings.alibi {
        bounds.push(Bound::plain("alibi", words::ALIBI.to_string()));
    }
    bounds
}

/// An array's name, with its file only if that is another than the input.
fn own_name(origin: &str, title: &str) -> String {
    let inside = origin.strip_prefix(title).and_then(|rest| rest.strip_prefix(':'));
    inside.unwrap_or(origin).to_string()
}

/// The input, how it was read, and what was taken from where: a line each.
pub fn input<T: Number>(request: &Request<'_, T>) -> Vec<String> {
    let input = request.input;
    let mut lines = vec![format!("input    {}", input.title)];
    lines.extend(reading(request));
    if !input.settings.notes.is_empty() {
        lines.push(format!("metadata {}", input.settings.notes.join("; ")));
    }
    lines.extend(input.notes.iter().map(|note| format!("note     {note}")));
    lines
}

/// Says what is odd about an input.
pub fn warn<T: Number>(request: &Request<'_, T>, terminal: &Terminal) {
    warnings(request).iter().for_each(|warning| terminal.warn(warning));
}

/// What is odd about an input.
pub fn warnings<T: Number>(request: &Request<'_, T>) -> Vec<String> {
    let own = [unfit_tokens(request), implausible(request)];
    request.input.warnings.iter().cloned().chain(own.into_iter().flatten()).collect()
}

/// Tokens that are not one for each key, in as many lists as there are batches.
fn unfit_tokens<T: Number>(request: &Request<'_, T>) -> Option<String> {
    let Extents { batches, len_key, .. } = request.extents;
    let tokens = request.input.tokens.as_ref()?;
    let lengths: Vec<_> = tokens.iter().map(|batch| batch.len().to_string()).collect();
    let fits =
        tokens.iter().all(|batch| batch.len() == len_key) && (tokens.len() == 1 || tokens.len() == batches);
    (!fits).then(|| {
        format!(
            "{}: metadata tokens: got {} of {} tokens, want one list, or one for each of {}, of {len_key} tokens; those \
             that do not fit are not used",
            request.input.title,
            show::count(tokens.len(), "list"),
            lengths.join(", "),
            show::count(batches, "batch")
        )
    })
}

/// How the arrays were read: a line each, then how heads share keys.
fn reading<T: Number>(request: &Request<'_, T>) -> Vec<String> {
    let extents = &request.extents;
    let file_shapes = match &request.input.given {
        Given::Arrays(arrays) => arrays.each().map(|(_, array)| show::shape(array.tensor.shape())),
        Given::Layer { .. } => request.arrays.each().map(|(_, array)| show::shape(array.shape())),
    };
    let width = file_shapes.iter().map(String::len).max().unwrap_or(0);
    let role = [("query", extents.heads), ("key", extents.key_heads), ("value", extents.key_heads)];
    let mut lines = layer(request);
    for (((name, array), shape), (role, heads)) in
        request.arrays.each().into_iter().zip(file_shapes).zip(role)
    {
        let rank = array.ndim();
        let batches = array.shape()[..rank.saturating_sub(3)].iter();
        let mut parts: Vec<String> = batches.map(|&length| show::count(length, "batch")).collect();
        if rank > 2 {
            parts
                .push(show::count(heads, &format!("{} head", if role == "query" { "query" } else { "key" })));
        }
        let (length, dim) = (array.shape()[rank - 2], array.shape()[rank - 1]);
        parts.push(format!("{} of {}", show::count(length, role), show::count(dim, "number")));
        lines.push(format!("{name:<8} {shape:<width$}  {}", parts.join(", ")));
    }
    let mut last = vec![heads(extents)];
    if request.layout != Layout::HeadsFirst {
        let packed = usize::from(matches!(request.layout, Layout::Packed { .. }));
        last.push(format!("axes {}", request.layout.axes(extents.rank - packed)));
    }
    last.push(<T as qkv::Element>::NAME.to_string());
    lines.push(format!("{:9}{}", "", last.join("; ")));
    lines
}

/// Embeddings and weights, a line each; nothing where queries, keys and values are the file's own.
fn layer<T: Number>(request: &Request<'_, T>) -> Vec<String> {
    let Given::Layer { x, weights } = &request.input.given else { return Vec::new() };
    let list = |keep: &dyn Fn(&Array) -> bool| {
        let kept = weights.iter().filter(|(_, array)| keep(array));
        let kept: Vec<_> =
            kept.map(|(name, array)| format!("{name} {}", show::shape(array.tensor.shape()))).collect();
        kept.join(", ")
    };
    let mut lines =
        vec![format!("{:<8} {}  embeddings, projected to q, k and v", "x", show::shape(x.tensor.shape()))];
    lines.push(format!("{:<8} {}", "weights", list(&|array| array.tensor.shape().len() == 2)));
    let biases = list(&|array| array.tensor.shape().len() != 2);
    if !biases.is_empty() {
        lines.push(format!("{:<8} {biases}", "biases"));
    }
    lines
}

/// `9 query heads, 3 key heads: 3 query heads share one`
fn heads(extents: &Extents) -> String {
    let Extents { heads, key_heads, .. } = *extents;
    let both = format!("{}, {}", show::count(heads, "query head"), show::count(key_heads, "key head"));
    match heads.checked_div(key_heads) {
        None | Some(0 | 1) if heads == 1 => "one head".to_string(),
        None | Some(0 | 1) => format!("{both}: one for each"),
        Some(_) if key_heads == 1 => format!("{both}: all share it"),
        Some(group) => format!("{both}: {group} query heads share one"),
    }
}

/// What is done, in five steps.
pub fn steps<T: Number>(request: &Request<'_, T>) -> Vec<String> {
    let extents = &request.extents;
    let settings = &request.input.settings;
    let with = |last: [usize; 2]| show::shape(&extents.shape(&last));
    let scores = with([extents.len_query, extents.len_key]);
    let output = with([extents.len_query, extents.dim_value]);
    let mut scale = format!("× {} ({})", short(request.scale()), settings.scale_from);
    if let Some(cap) = settings.softcap {
        scale += &format!(", then {cap} · tanh(score / {cap})");
    }
    let mut masks: Vec<String> = causal(request).map(|words| format!("causal {words}")).into_iter().collect();
    masks.extend(bounds(request).iter().map(Bound::line));
    if masks.is_empty() {
        masks.push("none: every query may attend every key".to_string());
    }
    let softmax = match &settings.sinks {
        Some(_) => "each row becomes weights; with its head's sink they sum to 1",
        None => "each row of scores becomes weights that sum to 1",
    };
    let mut lines = vec![
        format!("1 scores  q · k, every query against every key: {scores}"),
        format!("2 scale   {scale}"),
        format!("3 mask    {}", masks.remove(0)),
    ];
    lines.extend(masks.into_iter().map(|words| format!("{:10}{words}", "")));
    lines.push(format!("4 softmax {softmax}"));
    lines.push(format!("5 output  weights · v, a mean of the values: {output}"));
    if let Some(layer) = &request.layer {
        let times = if layer.has_output() { ", times the output's weights" } else { "" };
        lines.push(format!("{:10}the heads side by side{times}", ""));
    }
    lines
}

/// Six digits, or fewer if they say it all.
fn short(x: f64) -> String {
    let rounded = format!("{x:.6}");
    let exact = x.to_string();
    if exact.len() <= rounded.len() || x.abs() < 1e-3 { exact } else { rounded }
}

/// Whether the sizes look as if the axes were in another order.
fn implausible<T: Number>(request: &Request<'_, T>) -> Option<String> {
    let Given::Arrays(arrays) = &request.input.given else { return None };
    let shape = arrays.key.tensor.shape();
    let shown = show::shape(shape);
    match (request.layout, shape) {
        (Layout::HeadsFirst, [.., heads, length, _]) if shape.len() >= 4 && heads > length => Some(format!(
            "k {shown} is read as {heads} heads of {length} keys; if its axes are (batch, length, heads, dim), say --layout bshd"
        )),
        (Layout::LengthFirst, [.., length, heads, _]) if heads > length => Some(format!(
            "k {shown} is read as {length} keys in {heads} heads; if its axes are (batch, heads, length, dim), leave --layout out"
        )),
        _ => None,
    }
}
