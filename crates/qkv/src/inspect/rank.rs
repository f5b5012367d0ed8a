//! The largest few numbers of each row of a matrix that is seen part by part.

/// A number and where it was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// The number of the key, or of the query.
    pub index: usize,
    /// Its weight, or its influence.
    pub value: f64,
}

/// For each of some queries, or keys, what ranks highest: the largest first, and of equal ones the earlier. What is 0 or NaN is
/// not ranked.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    most: usize,
    /// `most` for each, of which the first `counts` are filled.
    entries: Vec<Ranked>,
    counts: Vec<usize>,
}

impl Ranking {
    /// Of so many, up to `most` for each.
    pub(super) fn new(count: usize, most: usize) -> Self {
        let none = Ranked { index: 0, value: 0.0 };
        Self { most, entries: vec![none; count * most], counts: vec![0; count] }
    }

    /// Of one of them, counted from the first.
    pub fn of(&self, at: usize) -> &[Ranked] {
        &self.entries[at * self.most..][..self.counts[at]]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Parts of up to `rows` of them, each to be filled apart.
    pub(super) fn parts(&mut self, rows: usize) -> impl Iterator<Item = Ranks<'_>> {
        let most = self.most;
        // Where nothing is ranked there are no entries to share out.
        let mut entries = self.entries.chunks_mut((rows * most).max(1));
        let counts = self.counts.chunks_mut(rows.max(1));
        counts.map(move |counts| Ranks { most, entries: entries.next().unwrap_or_default(), counts })
    }

    /// Takes in what was found for the same rows, later in the order of indices.
    pub(super) fn append(&mut self, later: &Self) {
        let mut ranks = Ranks { most: self.most, entries: &mut self.entries, counts: &mut self.counts };
        for at in 0..later.len() {
            for &ranked in later.of(at) {
                ranks.offer(at, ranked);
            }
        }
    }
}

/// Some rows of a [`Ranking`].
pub(super) struct Ranks<'r> {
    most: usize,
    entries: &'r mut [Ranked],
    counts: &'r mut [usize],
}

impl Ranks<'_> {
    /// What a number must be larger than to rank.
    pub(super) fn bar(&self, at: usize) -> f64 {
        match self.most {
            0 => f64::INFINITY,
            most if self.counts[at] == most => self.entries[at * most + most - 1].value,
            _ => 0.0,
        }
    }

    /// Ranks a number if it is large enough. Indices ascend from call to call, so that an equal one ranks below.
    pub(super) fn offer(&mut self, at: usize, ranked: Ranked) {
        if ranked.value <= self.bar(at) || ranked.value.is_nan() {
            return;
        }
        let count = &mut self.counts[at];
        let own = &mut self.entries[at * self.most..][..self.most];
        *count = self.most.min(*count + 1);
        let place = own[..*count - 1].partition_point(|other| other.value >= ranked.value);
        own[place..*count].rotate_right(1);
        own[place] = ranked;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_and_equal_ones_in_order() {
        let mut ranking = Ranking::new(2, 3);
        let values = [0.5, 0.25, f64::NAN, 0.5, 0.0, 0.75, 0.5, 0.3];
        for mut ranks in ranking.parts(1) {
            for (index, value) in values.into_iter().enumerate() {
                ranks.offer(0, Ranked { index, value });
            }
        }
        let indices = |at| ranking.of(at).iter().map(|ranked| ranked.index).collect::<Vec<_>>();
        assert_eq!(indices(0), [5, 0, 3]);
        assert_eq!(indices(1), [5, 0, 3]);
        let mut both = Ranking::new(2, 3);
        both.append(&ranking);
        both.append(&ranking);
        assert_eq!(both.of(1).iter().map(|ranked| ranked.index).collect::<Vec<_>>(), [5, 5, 0]);
        let mut none = Ranking::new(2, 0);
        none.parts(2).for_each(|mut ranks| ranks.offer(1, Ranked { index: 0, value: 1.0 }));
        assert!(none.of(1).is_empty());
    }
}
