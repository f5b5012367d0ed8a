//! An input as data for a page that has no server: a map of each head as one picture, its numbers, and as much of each query as a file has
//! room for. `embedded-source.js` of the page says how it looks.

use std::ops::{ControlFlow, Range};

use ndarray::Array2;
use qkv::{Error, HeadSurvey, Map, Of, Pool, Progress};
use serde_json::{Value, json};

use super::columns::Ids;
use super::pyramid::Levels;
use super::ranks::largest;
use super::shown::Shown;
use super::source::{Failure, Head, Input, Layer, Opening};
use super::{columns, scale_json};
use crate::json::number;
use crate::picture;

/// Rows and columns of a picture; where there are many heads, of smaller ones.
const SIDE: usize = 512;
const MANY: usize = 64;
const SIDE_OF_MANY: usize = 256;
/// Keys of each query, by weight and by influence.
const LISTED: usize = 8;
/// Keys in all such lists together; more would make the file too large, and then there are none.
const MOST_IN_LISTS: usize = 1_000_000;
/// Weights that are ranked at a time.
const PAIRS_AT_A_TIME: usize = 1 << 20;
/// Numbers of a head that are all in the file.
const MOST_VALUES: usize = 4096;
/// What progress counts of each head, and how much of that its passes are: its survey, its map, its lists.
const STEPS: u64 = 1000;
const PASSES: [Range<u64>; 3] = [0..400, 400..700, 700..STEPS];

/// All of an input. Progress counts thousandths of a head; it may cancel in the middle of one.
///
/// # Errors
/// As the engine's, and if progress cancelled.
pub fn exported(
    input: &Input,
    progress: &mut (dyn FnMut(u64, u64) -> ControlFlow<()> + Send),
) -> Result<Value, Failure> {
    let batches = input.batches();
    let sizes = input.layers.iter().map(|layer| {
        let heads = layer.facts().heads * batches;
        (heads, heads * layer.facts().len_query)
    });
    let (heads, queries) = sizes.fold((0, 0_usize), |all, one| (all.0 + one.0, all.1.saturating_add(one.1)));
    let lists = queries.saturating_mul(2 * LISTED) <= MOST_IN_LISTS;
    let side = if heads > MANY { SIDE_OF_MANY } else { SIDE };
    let (mut sets, mut entries): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    for batch in 0..batches {
        for layer in &input.layers {
            let tokens = layer.tokens(batch);
            let ids = tokens.ids();
            let set = json!({ "keys": tokens.keys, "queries": tokens.queries });
            let at = sets.iter().position(|known| *known == set).unwrap_or(sets.len());
            if at == sets.len() {
                sets.push(set);
            }
            for head in 0..layer.facts().heads {
                let before = entries.len() as u64 * STEPS;
                let mut report = |done| progress(before + done, heads as u64 * STEPS);
                let exporting = Exporting { layer: &**layer, batch, head, ids: ids.as_ref(), side, lists };
                let mut entry = exporting.entry(&mut report)?;
                entry["tokens"] = json!(at);
                entries.push(entry);
            }
        }
    }
    Ok(json!({ "input": input.json(), "tokens": sets, "heads": entries }))
}

/// One head, and how much of it is put into the file.
struct Exporting<'e> {
    layer: &'e dyn Layer,
    batch: usize,
    head: usize,
    ids: Option<&'e Ids>,
    side: usize,
    lists: bool,
}

/// Told of the steps of one head that are done.
type Report<'r> = dyn FnMut(u64) -> ControlFlow<()> + Send + 'r;

/// Progress of one of the passes over a head. What the engine goes over twice is counted once.
fn of_pass<'r>(
    report: &'r mut Report<'_>,
    pass: usize,
) -> impl FnMut(u64, u64) -> ControlFlow<()> + Send + 'r {
    let Range { start, end } = PASSES[pass];
    let mut furthest = start;
    move |done, total| {
        furthest = furthest.max(start + (end - start) * done / total.max(1));
        report(furthest)
    }
}

impl Exporting<'_> {
    fn entry(&self, report: &mut Report<'_>) -> Result<Value, Failure> {
        let whole = Opening { batch: self.batch, head: self.head, ..Opening::default() };
        let (mut entry, found) = self.layer.see(&whole, |opened| self.of_all(opened, report))?;
        if self.lists {
            self.add_queries(&mut entry, &found, &mut of_pass(report, 2))?;
        }
        Ok(entry)
    }

    /// What takes passes over the whole head.
    fn of_all(&self, opened: &dyn Head, report: &mut Report<'_>) -> Result<(Value, HeadSurvey), Failure> {
        let found = opened.survey(&columns::survey(self.ids), Some(&mut of_pass(report, 0)))?;
        let layer = self.layer.facts().layer;
        let row = columns::entries(&found.summary(), self.ids.is_some());
        let mut entry = json!({
            "layer": layer,
            "head": self.head,
            "batch": self.batch,
            "row": columns::row(layer, self.head, &row),
            "map": self.map(opened, &mut of_pass(report, 1))?,
        });
        let (len_query, len_key) = opened.lengths();
        if len_query.saturating_mul(len_key) <= MOST_VALUES {
            let weights = opened.map(&Map::new(Of::Weights).cell(1, 1), None)?;
            entry["values"] = weights.rows().into_iter().map(|row| shorts(row.iter().copied())).collect();
        }
        Ok((entry, found))
    }

    fn map(&self, opened: &dyn Head, progress: &mut Progress<'_>) -> Result<Value, Failure> {
        let shown = Shown { of: Of::Weights, pool: Pool::Max };
        let levels = Levels { lengths: opened.lengths() };
        let cell = levels.finest_within(self.side);
        let cells: Array2<f64> = opened.map(&shown.map(cell), Some(progress))?;
        let scale = picture::colours(shown.of).scale(cells.iter().copied());
        let above = cells.iter().any(|&x| x.is_finite() && x > scale.high());
        let png = picture::cells_png(&cells.view(), &scale);
        Ok(json!({ "png": picture::uri(&png), "bin": cell, "scale": scale_json((&scale, above)) }))
    }

    /// Each query's numbers, and its keys.
    fn add_queries(
        &self,
        entry: &mut Value,
        found: &HeadSurvey,
        progress: &mut Progress<'_>,
    ) -> Result<(), Failure> {
        let rows = &found.rows;
        entry["mass"] = shorts(rows.iter().map(|row| row.mass));
        entry["entropy"] = shorts(rows.iter().map(|row| row.entropy));
        entry["distance"] = shorts(rows.iter().map(|row| row.distance));
        entry["received"] = shorts(found.received.iter().copied());
        let (mut by_weight, mut by_influence) = (Vec::new(), Vec::new());
        let at_a_time = (PAIRS_AT_A_TIME / found.received.len().max(1)).max(1);
        for start in (0..rows.len()).step_by(at_a_time) {
            if progress(start as u64, rows.len() as u64).is_break() {
                return Err(Error::Cancelled.into());
            }
            let queries = Some(start..rows.len().min(start + at_a_time));
            let place = Opening { batch: self.batch, head: self.head, queries, stats: None };
            let cells = |of| Map::new(of).cell(1, 1);
            let numbers = |head: &dyn Head| {
                Ok((head.map(&cells(Of::Weights), None)?, head.map(&cells(Of::Influence), None)?))
            };
            let (weights, influences) = self.layer.see(&place, numbers)?;
            for (weights, influences) in weights.rows().into_iter().zip(influences.rows()) {
                let (weights, influences) = (weights.to_vec(), influences.to_vec());
                by_weight.push(triples(&largest(&weights, LISTED), &weights, &influences));
                by_influence.push(triples(&largest(&influences, LISTED), &weights, &influences));
            }
        }
        entry["by_weight"] = by_weight.into();
        entry["by_influence"] = by_influence.into();
        Ok(())
    }
}

fn triples(keys: &[usize], weights: &[f64], influences: &[f64]) -> Value {
    keys.iter().flat_map(|&key| [json!(key), short(weights[key]), short(influences[key])]).collect()
}

fn shorts(numbers: impl Iterator<Item = f64>) -> Value {
    numbers.map(short).collect()
}

/// With some digits more than are shown, as a rule.
fn short(x: f64) -> Value {
    match format!("{x:.5e}").parse::<f64>() {
        Ok(rounded) if rounded.is_finite() => json!(rounded),
        _ => number(x),
    }
}
