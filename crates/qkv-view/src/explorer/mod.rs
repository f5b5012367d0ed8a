//! The explorer's side of the page that has the numbers: an [`Input`] is opened once, and then asked.
//!
//! Small questions (a tile close up, the numbers of some cells, whom a query attends) are answered at once from queries, keys
//! and values. What takes a pass over a whole head is done in the background, piece by piece, for as long as
//! someone asks for it: the pyramid of a map, and the table of heads. No matrix is ever stored.
//!
//! `source.rs` says what is explored, `pyramid.rs` holds the levels of one map, `ranks.rs` and `columns.rs` are the
//! answers that commands give too, as are the pictures of `drawing.rs`; `work.rs` does the passes, `export.rs` makes all of it into one file.

mod columns;
mod drawing;
mod export;
mod pyramid;
mod ranks;
mod shelf;
mod shown;
mod source;
mod turns;
mod work;

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ndarray::Array2;
use qkv::{Of, Pool};
use serde_json::{Value, json};

pub use columns::{COLUMNS, Entry, Line, surveyed};
pub use drawing::Drawing;
pub use export::exported;
pub use ranks::{KeyRanks, QueryRanks, Ranked};
pub use shown::{Choice, OF, POOLS, Shown, listed, named};
pub use source::{Facts, Failure, Head, Input, Layer, Opening, Stats, Tokens};

use crate::json::{nested, number};
use crate::picture::{self, Scale};
use pyramid::{Levels, Pyramid, TILE};
use shelf::Shelf;
use turns::Turns;
use work::Survey;

/// Rows and columns of numbers that one question may ask for.
const MOST_CELLS: usize = 64;
/// Entries of a ranking that one question may ask for.
const MOST_RANKED: usize = 1000;
/// Rows and columns of a thumbnail.
const THUMBNAIL: usize = 96;
/// Of pyramids, and of pictures as they were sent.
const PYRAMIDS_BYTES: usize = 160 << 20;
const PICTURES_BYTES: usize = 16 << 20;
/// Work goes on for so long after someone asked for it.
const FRESH: Duration = Duration::from_secs(3);

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// There is no such thing.
    #[error("{what}: got {got}, want {wanted}")]
    Wrong {
        /// Which part of the question.
        what: &'static str,
        /// As it was given.
        got: String,
        /// What there is.
        wanted: String,
    },
    /// It could not be computed.
    #[error("{0}")]
    Failed(String),
}

impl Refusal {
    /// With something more to say of what is wanted.
    fn wanting(self, more: &str) -> Self {
        match self {
            Self::Wrong { what, got, wanted } => {
                Self::Wrong { what, got, wanted: format!("{more}, {wanted}") }
            }
            failed @ Self::Failed(_) => failed,
        }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.to_string())
    }
}

/// A head of an input, found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The index of the layer, which need not be its number.
    layer: usize,
    head: usize,
    batch: usize,
}

/// An input, and what is known of it so far.
pub struct Explorer {
    input: Input,
    state: Mutex<State>,
    /// There is something to do in the background.
    wanted: Condvar,
    turns: Turns,
}

/// It is never locked while a [`Building`] is waited for, since that may take a moment; nor the other way round.
struct State {
    maps: Shelf<(Place, Shown), Arc<Building>>,
    pictures: Shelf<Picture, Arc<Vec<u8>>>,
    /// One for each batch that was asked for.
    surveys: Vec<Survey>,
    /// Whether a pyramid's turn is next, or the table's.
    map_next: bool,
    /// Nobody will ask any more.
    closed: bool,
}

/// What a picture is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Picture {
    Thumbnail(Place),
    /// With the ends of its scale, bit by bit.
    Tile(Place, Shown, [usize; 3], [u64; 2]),
}

/// A pyramid that is being built, or is whole.
struct Building {
    place: Place,
    shown: Shown,
    state: Mutex<Built>,
}

struct Built {
    pyramid: Pyramid,
    asked: Instant,
    /// Someone looks at this map, and not only at a thumbnail of it.
    looked_at: bool,
    failed: Option<String>,
}

impl Explorer {
    /// Of an input; work in the background begins when something is asked.
    pub fn new(input: Input) -> Arc<Self> {
        let state = State {
            maps: Shelf::new(PYRAMIDS_BYTES),
            pictures: Shelf::new(PICTURES_BYTES),
            surveys: Vec::new(),
            map_next: true,
            closed: false,
        };
        let explorer =
            Arc::new(Self { input, state: state.into(), wanted: Condvar::new(), turns: Turns::default() });
        let worker = Arc::downgrade(&explorer);
        std::thread::spawn(move || work::go_on(&worker));
        explorer
    }

    /// Ends the work in the background.
    pub fn close(&self) {
        self.lock().closed = true;
        self.wanted.notify_all();
    }

    /// What is explored.
    pub fn input(&self) -> &Input {
        &self.input
    }

    /// A head by the number of its layer, where there are more than one.
    ///
    /// # Errors
    /// If there is no such head.
    pub fn place(&self, layer: Option<usize>, head: usize, batch: usize) -> Result<Place, Refusal> {
        let index = self.layer(layer)?;
        let facts = self.input.layers[index].facts();
        below("head", head, facts.heads)?;
        below("batch", batch, facts.batches)?;
        Ok(Place { layer: index, head, batch })
    }

    fn layer(&self, layer: Option<usize>) -> Result<usize, Refusal> {
        let found = self.input.layers.iter().position(|one| one.facts().layer == layer);
        found.ok_or_else(|| Refusal::Wrong {
            what: "layer",
            got: layer.map_or("nothing".to_string(), |layer| layer.to_string()),
            wanted: "one that the input has".to_string(),
        })
    }

    fn layer_of(&self, place: Place) -> &dyn Layer {
        &*self.input.layers[place.layer]
    }

    fn levels(&self, place: Place) -> Levels {
        let facts = self.layer_of(place).facts();
        Levels { lengths: (facts.len_query, facts.len_key) }
    }

    /// What keys and queries are called.
    ///
    /// # Errors
    /// If there is no such layer or batch.
    pub fn tokens(&self, layer: Option<usize>, batch: usize) -> Result<Value, Refusal> {
        let layer = &self.input.layers[self.layer(layer)?];
        below("batch", batch, layer.facts().batches)?;
        let Tokens { keys, queries } = layer.tokens(batch);
        Ok(json!({ "keys": keys, "queries": queries }))
    }

    /// The lines of the table that are known, from one on, and how many there will be. The others are made while one asks.
    ///
    /// # Errors
    /// If there is no such batch, or a head could not be surveyed.
    pub fn heads(&self, batch: usize, from: usize) -> Result<Value, Refusal> {
        below("batch", batch, self.input.batches())?;
        let mut state = self.lock();
        if !state.surveys.iter().any(|survey| survey.batch == batch) {
            state.surveys.push(Survey::new(batch));
            state.surveys.sort_by_key(|survey| survey.batch);
        }
        let survey = state.surveys.iter_mut().find(|survey| survey.batch == batch).expect("it is there now");
        survey.asked = Instant::now();
        if let Some(error) = &survey.failed {
            return Err(Refusal::Failed(error.clone()));
        }
        let rows = survey.rows.get(from..).unwrap_or_default().to_vec();
        self.wanted.notify_all();
        Ok(json!({ "total": self.heads_of_all(), "rows": rows }))
    }

    fn heads_of_all(&self) -> usize {
        self.input.layers.iter().map(|layer| layer.facts().heads).sum()
    }

    /// A small picture of a head's weights, once its pyramid stands, which is built while one asks.
    ///
    /// # Errors
    /// If the pyramid could not be built.
    pub fn thumbnail(&self, place: Place) -> Result<Option<Arc<Vec<u8>>>, Refusal> {
        let picture = Picture::Thumbnail(place);
        if let Some(kept) = self.lock().pictures.get(&picture) {
            return Ok(Some(kept.clone()));
        }
        let building = self.building(place, Shown { of: Of::Weights, pool: Pool::Max });
        let built = building.ask(false)?;
        let (cells, scale) = (built.pyramid.whole(THUMBNAIL), built.pyramid.scale().0.clone());
        drop(built);
        Ok(cells.map(|cells| self.painted(picture, &cells, &scale)))
    }

    /// What a map is, and how much of its pyramid is built, which goes on while one asks; and whether it is whole.
    ///
    /// # Errors
    /// If the pyramid could not be built.
    pub fn map(&self, place: Place, shown: Shown) -> Result<(Value, bool), Refusal> {
        let building = self.building(place, shown);
        let built = building.ask(true)?;
        let (levels, scale) = (self.levels(place), built.pyramid.scale());
        let (done, total) = built.pyramid.progress();
        let answer = json!({
            "len_query": levels.lengths.0,
            "len_key": levels.lengths.1,
            "tile": TILE,
            "levels": levels.count(),
            "scale": scale_json(scale),
            "done": done,
            "total": total,
            // The farthest level whose tiles are made when they are asked for.
            "ready": levels.base() + 1,
        });
        Ok((answer, done == total))
    }

    /// A tile of a map as a PNG, coloured from `low` to `high`. What the pyramid does not have is made now, if it is not too much.
    ///
    /// # Errors
    /// If there is no such tile, or not yet.
    pub fn tile(
        &self,
        place: Place,
        shown: Shown,
        [level, x, y]: [usize; 3],
        (low, high): (f64, f64),
    ) -> Result<Arc<Vec<u8>>, Refusal> {
        let picture = Picture::Tile(place, shown, [level, x, y], [low.to_bits(), high.to_bits()]);
        if let Some(kept) = self.lock().pictures.get(&picture) {
            return Ok(kept.clone());
        }
        let levels = self.levels(place);
        let of_tile =
            |what, index, count| below(what, index, count).map_err(|wrong| wrong.wanting("that of a tile"));
        of_tile("level", level, levels.count())?;
        let (rows, columns) = levels.tiles(level);
        of_tile("x", x, columns)?;
        of_tile("y", y, rows)?;
        let area = levels.tile(level, x, y);
        let scale = picture::colours(shown.of).range(low, high).scale([].into_iter());
        let building = self.building(place, shown);
        let kept = {
            let built = building.ask(true)?;
            let kept = built.pyramid.tile(level, x, y);
            if kept.is_none() && level <= levels.base() {
                let wanted = "that of a tile that is built, which this one is not yet".to_string();
                return Err(Refusal::Wrong { what: "level", got: level.to_string(), wanted });
            }
            kept
        };
        let cells = match kept {
            Some(cells) => cells,
            None => self.cells_of(place, shown, levels.cell(level), area)?,
        };
        Ok(self.painted(picture, &cells, &scale))
    }

    /// Numbers of some queries and keys, exact.
    ///
    /// # Errors
    /// If there are no such queries or keys, or more than 64.
    pub fn cells(
        &self,
        place: Place,
        of: Of,
        queries: Range<usize>,
        keys: Range<usize>,
    ) -> Result<Value, Refusal> {
        let (len_query, len_key) = self.levels(place).lengths;
        for (what, range, length) in [("queries", &queries, len_query), ("keys", &keys, len_key)] {
            if range.start > range.end || range.end > length || range.len() > MOST_CELLS {
                let wanted = format!("at most {MOST_CELLS} of the {length} there are");
                return Err(Refusal::Wrong { what, got: format!("{}:{}", range.start, range.end), wanted });
            }
        }
        let shown = Shown { of, pool: Pool::Max };
        let cells = self.cells_of(place, shown, 1, [queries, keys])?;
        Ok(json!({ "values": nested(cells.view().into_dyn()) }))
    }

    /// Whom a query attends.
    ///
    /// # Errors
    /// If there is no such query.
    pub fn query(&self, place: Place, query: usize, count: usize) -> Result<Value, Refusal> {
        below("query", query, self.levels(place).lengths.0)?;
        let layer = self.layer_of(place);
        let opening = Opening { queries: Some(query..query + 1), ..place.opening() };
        let _turn = self.turns.question();
        let ranks = layer.see(&opening, |head| Ok(QueryRanks::new(head, query, count.min(MOST_RANKED))?))?;
        Ok(ranks.json(&layer.tokens(place.batch)))
    }

    /// Who attends a key, once the maxima and sums of all queries are known, which are found while one asks.
    ///
    /// # Errors
    /// If there is no such key.
    pub fn key(&self, place: Place, key: usize, count: usize) -> Result<Option<Value>, Refusal> {
        below("key", key, self.levels(place).lengths.1)?;
        drop(self.building(place, Shown { of: Of::Weights, pool: Pool::Max }).ask(true)?);
        let layer = self.layer_of(place);
        let Some(stats) = self.stats_of(place, &(0..layer.facts().len_query)) else { return Ok(None) };
        let opening = Opening { stats: Some(stats), ..place.opening() };
        let _turn = self.turns.question();
        let ranks =
            layer.see(&opening, |head| Ok(KeyRanks::new(head, key, count.min(MOST_RANKED), None)?))?;
        Ok(Some(ranks.json(&layer.tokens(place.batch))))
    }

    /// Numbers of a map that are made now.
    fn cells_of(
        &self,
        place: Place,
        shown: Shown,
        cell: usize,
        [queries, keys]: [Range<usize>; 2],
    ) -> Result<Array2<f64>, Refusal> {
        let stats = self.stats_of(place, &queries);
        let opening = Opening { queries: Some(queries), stats, ..place.opening() };
        let map = shown.map(cell).keys(keys);
        let _turn = self.turns.question();
        Ok(self.layer_of(place).see(&opening, |head| Ok(head.map(&map, None)?))?)
    }

    /// Maxima and sums, if a pyramid of this head knows them.
    fn stats_of(&self, place: Place, queries: &Range<usize>) -> Option<Stats> {
        let state = self.lock();
        let buildings = state.maps.values().filter(|building| building.place == place);
        let buildings: Vec<_> = buildings.cloned().collect();
        drop(state);
        buildings.iter().find_map(|building| Some(building.lock().pyramid.stats()?.of(queries)))
    }

    /// The pyramid of a map, begun if there is none.
    fn building(&self, place: Place, shown: Shown) -> Arc<Building> {
        let mut state = self.lock();
        self.wanted.notify_all();
        if let Some(building) = state.maps.get(&(place, shown)) {
            return building.clone();
        }
        let pyramid = Pyramid::new(shown, self.levels(place));
        let bytes = pyramid.bytes();
        let built = Built { pyramid, asked: Instant::now(), looked_at: false, failed: None };
        let building = Arc::new(Building { place, shown, state: built.into() });
        // One that is worked on stays, or several that are asked for in turn would never be whole.
        let may_go = |other: &Arc<Building>| !other.is_worked_on();
        state.maps.put((place, shown), building.clone(), bytes, may_go);
        building
    }

    fn painted(&self, picture: Picture, cells: &Array2<f64>, scale: &Scale) -> Arc<Vec<u8>> {
        let png = Arc::new(picture::cells_png(&cells.view(), scale));
        self.lock().pictures.put(picture, png.clone(), png.len(), |_| true);
        png
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn opening(self) -> Opening {
        Opening { batch: self.batch, head: self.head, ..Opening::default() }
    }
}

impl Building {
    fn lock(&self) -> MutexGuard<'_, Built> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is not whole, and someone asked for it a moment ago. One that is locked is.
    fn is_worked_on(&self) -> bool {
        self.state.try_lock().map_or(true, |built| !built.pyramid.is_whole() && built.asked.elapsed() < FRESH)
    }

    /// Says that someone waits for it.
    fn ask(&self, looked_at: bool) -> Result<MutexGuard<'_, Built>, Refusal> {
        let mut built = self.lock();
        built.asked = Instant::now();
        built.looked_at |= looked_at;
        match &built.failed {
            Some(error) => Err(Refusal::Failed(error.clone())),
            None => Ok(built),
        }
    }
}

fn below(what: &'static str, index: usize, count: usize) -> Result<(), Refusal> {
    let wanted = match count {
        _ if index < count => return Ok(()),
        0 => "nothing, since there is none".to_string(),
        _ => format!("a number below {count}"),
    };
    Err(Refusal::Wrong { what, got: index.to_string(), wanted })
}

/// A scale as pages draw it: its kind, its ends, whether there are numbers above them, and some of its colours.
fn scale_json((scale, above): (&Scale, bool)) -> Value {
    json!({
        "kind": scale.kind(),
        "low": number(scale.low()),
        "high": number(scale.high()),
        "above": above,
        "colours": scale.samples(16),
    })
}
