//! What maps are made of and runs are compared by: a number for each pair of a head, in f64 whatever the arrays are made of.

use std::ops::Range;

use super::influences::{self, Influences};
use super::map::Of;
use super::strip::{Head, Strip, Strips};
use crate::element::Real;
use crate::problem::{Stage, Terms};

/// A number for each pair of a head.
pub(super) trait Numbers: Sync {
    /// Of the call, for positions and threads.
    fn terms(&self) -> &Terms<'_>;

    /// Whether some pair of a block and a strip may have another number than 0.
    fn sees(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool;

    /// What makes them, with buffers for one thread.
    fn maker(&self) -> Box<dyn Maker + '_>;
}

/// Makes numbers, strip by strip.
pub(super) trait Maker {
    /// Writes those of a block and a strip.
    fn make(&mut self, queries: &Range<usize>, keys: &Range<usize>, to: &mut Strip<f64>);
}

/// Those of one run.
pub(super) struct Shown<'s, A> {
    pub(super) head: Head<'s, A>,
    pub(super) of: Of,
    /// For [`Of::Influence`].
    pub(super) influences: Option<Influences<A>>,
}

impl<A: Real> Numbers for Shown<'_, A> {
    fn terms(&self) -> &Terms<'_> {
        self.head.terms
    }

    fn sees(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        matches!(self.of, Of::Scores | Of::Scaled) || self.head.sees(queries, keys)
    }

    fn maker(&self) -> Box<dyn Maker + '_> {
        let strips = Strips::new(self.head.terms);
        Box::new(ShownMaker { shown: self, strips, scratch: influences::Scratch::new() })
    }
}

struct ShownMaker<'s, A> {
    shown: &'s Shown<'s, A>,
    strips: Strips<A>,
    scratch: influences::Scratch<A>,
}

impl<A: Real> Maker for ShownMaker<'_, A> {
    fn make(&mut self, queries: &Range<usize>, keys: &Range<usize>, to: &mut Strip<f64>) {
        let Shown { head, of, influences } = self.shown;
        let strips = &mut self.strips;
        to.widen(match of {
            Of::Mask => strips.see(head, queries, keys),
            Of::Scores => strips.score(head, Stage::Raw, queries, keys),
            Of::Scaled => strips.score(head, Stage::Scaled, queries, keys),
            Of::Weights | Of::Influence => {
                let (scores, weights) = strips.weigh(head, queries, keys);
                if let Some(influences) = influences {
                    influences.of(head, (scores, weights), &mut self.scratch);
                }
                weights
            }
        });
    }
}

/// Those of a run less those of another.
pub(super) struct Less<'s> {
    pub(super) from: &'s dyn Numbers,
    pub(super) taken: &'s dyn Numbers,
}

impl Numbers for Less<'_> {
    fn terms(&self) -> &Terms<'_> {
        self.from.terms()
    }

    fn sees(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        self.from.sees(queries, keys) || self.taken.sees(queries, keys)
    }

    fn maker(&self) -> Box<dyn Maker + '_> {
        Box::new(LessMaker { from: self.from.maker(), taken: self.taken.maker(), other: Strip::new() })
    }
}

struct LessMaker<'s> {
    from: Box<dyn Maker + 's>,
    taken: Box<dyn Maker + 's>,
    other: Strip<f64>,
}

impl Maker for LessMaker<'_> {
    fn make(&mut self, queries: &Range<usize>, keys: &Range<usize>, to: &mut Strip<f64>) {
        self.from.make(queries, keys, to);
        self.taken.make(queries, keys, &mut self.other);
        for (to, taken) in to.of_keys_mut().iter_mut().zip(self.other.of_keys()) {
            for (to, taken) in to.iter_mut().zip(taken) {
                *to -= taken;
            }
        }
    }
}
