//! What a map shows and how its numbers are pooled, with the names that commands, pages and Python have for it.

use qkv::{Map, Of, Pool};

use crate::picture;

/// What is shown, and how it is pooled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shown {
    /// Which numbers.
    pub of: Of,
    /// [`Pool::Max`] of scores is [`Pool::Farthest`].
    pub pool: Pool,
}

/// One of several things that are asked for by name.
#[derive(Clone, Copy, Debug)]
pub struct Choice<T> {
    /// What it is asked for by.
    pub name: &'static str,
    /// The thing.
    pub what: T,
    /// What it is, in words.
    pub meaning: &'static str,
}

const fn choice<T>(name: &'static str, what: T, meaning: &'static str) -> Choice<T> {
    Choice { name, what, meaning }
}

/// What can be shown.
pub const OF: [Choice<Of>; 5] = [
    choice("mask", Of::Mask, "Who may attend whom"),
    choice("scores", Of::Scores, "q · k"),
    choice("scaled", Of::Scaled, "q · k times the scale"),
    choice("weights", Of::Weights, "What softmax makes of the scores; 0 where masked"),
    choice("influence", Of::Influence, "How far a query's output would move without the key"),
];

/// What can stand for numbers that share a cell.
pub const POOLS: [Choice<Pool>; 3] = [
    choice("max", Pool::Max, "The largest; of scores, the one farthest from 0"),
    choice("mean", Pool::Mean, "The mean of all, masked ones too"),
    choice("sum", Pool::Sum, "The sum"),
];

/// The one of this name.
pub fn named<T: Copy>(choices: &[Choice<T>], name: &str) -> Option<T> {
    choices.iter().find(|choice| choice.name == name).map(|choice| choice.what)
}

/// All names, as one says which are meant: `max, mean or sum`.
pub fn listed<T>(choices: &[Choice<T>]) -> String {
    let names: Vec<&str> = choices.iter().map(|choice| choice.name).collect();
    match &names[..] {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        names => names.concat(),
    }
}

impl Shown {
    /// How numbers are pooled: see [`picture::farthest_for_scores`].
    pub(super) fn pooling(self) -> Pool {
        picture::farthest_for_scores(self.of, self.pool)
    }

    /// A map of cells of this length, to be bounded.
    pub(super) fn map(self, cell: usize) -> Map {
        Map::new(self.of).pool(self.pooling()).cell(cell, cell)
    }

    /// Whether its numbers need maxima and sums.
    pub(super) fn needs_stats(self) -> bool {
        matches!(self.of, Of::Weights | Of::Influence)
    }

    /// What the cells of a picture stand for, where that is more than one number.
    pub fn cells(self, cells: (usize, usize), pairs: (usize, usize)) -> String {
        if cells == pairs {
            return String::new();
        }
        let pooled = match self.pooling() {
            Pool::Max => "the largest",
            Pool::Mean => "the mean",
            Pool::Sum => "the sum",
            Pool::Farthest => "the number farthest from 0",
        };
        let each = |pairs: usize, cells: usize| pairs.div_ceil(cells.max(1));
        format!(
            "; {} × {} cells, each {pooled} of up to {} × {} pairs",
            cells.0,
            cells.1,
            each(pairs.0, cells.0),
            each(pairs.1, cells.1)
        )
    }
}
