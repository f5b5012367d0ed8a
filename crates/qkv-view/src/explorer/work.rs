//! What is done in the background, for as long as someone asks for it: the pyramid that is looked at before all else; then by turns those of
//! thumbnails and the table of heads. Each piece is some queries of one head, so that a question never waits long.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use qkv::{HeadSummary, QuerySurvey};
use serde_json::Value;

use super::columns::Ids;
use super::source::Opening;
use super::{Building, Explorer, FRESH, Place, columns};

/// How long to wait before looking whether anybody is left who could ask.
const PATIENCE: Duration = Duration::from_millis(500);

/// The table of heads of one batch, as far as it is known.
pub(super) struct Survey {
    pub batch: usize,
    pub rows: Vec<Value>,
    pub asked: Instant,
    pub failed: Option<String>,
    /// The queries of the next head that were looked at.
    part: Vec<QuerySurvey>,
    /// The tokens of the layer that was looked at last, in numbers.
    ids: Option<(usize, Option<Arc<Ids>>)>,
}

impl Survey {
    pub fn new(batch: usize) -> Self {
        Self { batch, rows: Vec::new(), asked: Instant::now(), failed: None, part: Vec::new(), ids: None }
    }
}

/// Queries of a piece of work: so many that there are some million pairs, but as many at least as all threads can share.
pub(super) fn queries_of_piece(len_key: usize) -> usize {
    const PAIRS: usize = 1 << 24;
    const LEAST: usize = 1024;
    (PAIRS / len_key.max(1)).max(LEAST)
}

enum Piece {
    Map(Arc<Building>),
    Survey { batch: usize },
}

/// Works until the explorer is closed, or gone.
pub(super) fn go_on(explorer: &Weak<Explorer>) {
    while let Some(explorer) = explorer.upgrade() {
        match explorer.next_piece() {
            Ok(Some(Piece::Map(building))) => explorer.build(&building),
            Ok(Some(Piece::Survey { batch })) => explorer.survey(batch),
            Ok(None) => {}
            Err(Closed) => return,
        }
    }
}

struct Closed;

impl Explorer {
    /// What is to be done next; waits for it, but not forever.
    fn next_piece(&self) -> Result<Option<Piece>, Closed> {
        let mut state = self.lock();
        if state.closed {
            return Err(Closed);
        }
        // One that is locked is being asked about; it is found the next time.
        let wanted = state.maps.values().filter_map(|building| {
            let built = building.state.try_lock().ok()?;
            let (done, total) = built.pyramid.progress();
            let wanted = built.asked.elapsed() < FRESH && done < total && built.failed.is_none();
            wanted.then_some(((built.looked_at, done > 0), building))
        });
        let map = wanted.max_by_key(|(urgency, _)| *urgency);
        let all = self.heads_of_all();
        let survey = state.surveys.iter().find(|survey| {
            survey.asked.elapsed() < FRESH && survey.rows.len() < all && survey.failed.is_none()
        });
        let piece = match (map, survey) {
            (Some(((looked_at, _), building)), survey) if looked_at || state.map_next || survey.is_none() => {
                Some(Piece::Map(building.clone()))
            }
            (_, Some(survey)) => Some(Piece::Survey { batch: survey.batch }),
            _ => None,
        };
        state.map_next = matches!(piece, Some(Piece::Survey { .. }));
        if piece.is_none() {
            drop(self.wanted.wait_timeout(state, PATIENCE));
        }
        Ok(piece)
    }

    fn build(&self, building: &Building) {
        let Some((queries, map)) = building.lock().pyramid.next() else { return };
        let opening = Opening { queries: Some(queries), ..building.place.opening() };
        let turn = self.turns.background();
        let read = self.layer_of(building.place).see(&opening, |head| {
            let rows = head.map(&map, None)?;
            let stats = building.shown.needs_stats().then(|| head.stats()).transpose()?;
            Ok((rows, stats))
        });
        drop(turn);
        let mut built = building.lock();
        match read {
            Ok((rows, stats)) => built.pyramid.take(&rows, stats.as_ref()),
            Err(error) => built.failed = Some(error.to_string()),
        }
    }

    fn survey(&self, batch: usize) {
        let Some((place, done, ids)) = self.next_of_survey(batch) else { return };
        let layer = self.layer_of(place);
        let (len_query, len_key) = (layer.facts().len_query, layer.facts().len_key);
        let queries = done..len_query.min(done + queries_of_piece(len_key));
        let ended = queries.end == len_query;
        let survey = columns::survey(ids.as_deref());
        let opening = Opening { queries: Some(queries), ..place.opening() };
        let turn = self.turns.background();
        let found = layer.see(&opening, |head| Ok(head.survey(&survey, None)?));
        drop(turn);
        let mut state = self.lock();
        let Some(survey) = state.surveys.iter_mut().find(|survey| survey.batch == batch) else { return };
        match found {
            Ok(found) => survey.part.extend(found.rows),
            Err(error) => survey.failed = Some(error.to_string()),
        }
        if ended && survey.failed.is_none() {
            let summary = HeadSummary::of(&std::mem::take(&mut survey.part));
            let entries = columns::entries(&summary, ids.is_some());
            survey.rows.push(columns::row(layer.facts().layer, place.head, &entries));
        }
    }

    /// The head that is surveyed, how many of its queries are done, and its tokens.
    fn next_of_survey(&self, batch: usize) -> Option<(Place, usize, Option<Arc<Ids>>)> {
        let mut state = self.lock();
        let survey = state.surveys.iter_mut().find(|survey| survey.batch == batch)?;
        let mut head = survey.rows.len();
        let heads = self.input.layers.iter().map(|layer| layer.facts().heads);
        let layer = heads.into_iter().position(|heads| {
            let is_here = head < heads;
            head -= if is_here { 0 } else { heads };
            is_here
        })?;
        let ids = match &survey.ids {
            Some((known, ids)) if *known == layer => ids.clone(),
            _ => {
                let ids = self.input.layers[layer].tokens(batch).ids().map(Arc::new);
                survey.ids = Some((layer, ids.clone()));
                ids
            }
        };
        Some((Place { layer, head, batch }, survey.part.len(), ids))
    }
}
