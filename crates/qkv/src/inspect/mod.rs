//! One head opened for inspection: any of its weights from `q`, `k` and each row's maximum and sum, reduced to what is
//! asked without ever storing the matrix.
//!
//! `strip.rs` makes weights, block by block; the other files are what becomes of them: `map.rs` pools them to a picture,
//! `survey.rs` says of each query and key what there is to say, `difference.rs` compares two runs, and `influence.rs`
//! takes keys away. Outputs of attention are not touched by any of it.

mod difference;
mod influence;
mod influences;
mod map;
mod numbers;
mod patterns;
mod rank;
mod strip;
mod survey;

use std::ops::Range;
use std::sync::OnceLock;

use ndarray::{Array2, Axis};

use crate::attention::Attention;
use crate::call::Progress;
use crate::element::Element;
use crate::error::Error;
use crate::forward::{Finish, Heads, shaped, zeros};
use crate::planes::DynView;
use crate::problem::{Problem, Stage};
use crate::simd::FloatEnvironment;

pub use difference::QueryDifference;
pub(crate) use influence::influence;
use influences::Influences;
pub use map::{Map, Of, Pool};
use numbers::{Less, Shown};
pub use rank::{Ranked, Ranking};
use strip::Head;
pub use survey::{HeadSummary, HeadSurvey, QuerySurvey, Survey};

/// What exact weights of one head are made from: maximum and sum of each row, `(queries,)`, of the queries that are open.
///
/// It takes a pass over the head's scores to make and little memory to keep; with it, any weight is a few products
/// away. See [`RowStats`](crate::RowStats) for the same of a whole call.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadStats<T: Element> {
    first_query: usize,
    max: Vec<T::Accumulator>,
    sum: Vec<T::Accumulator>,
}

impl<T: Element> HeadStats<T> {
    /// Those that were kept of the queries from `first_query` on, as long as one another: see [`Inspection::with_stats`].
    ///
    /// # Errors
    /// If there are more of one than of the other.
    pub fn new(
        first_query: usize,
        max: Vec<T::Accumulator>,
        sum: Vec<T::Accumulator>,
    ) -> Result<Self, Error> {
        if max.len() != sum.len() {
            return Err(Error::shape("sum", &[sum.len()], format!("({},)", max.len())));
        }
        Ok(Self { first_query, max, sum })
    }

    /// Which queries they are of.
    pub fn queries(&self) -> Range<usize> {
        self.first_query..self.first_query + self.max.len()
    }

    /// The largest visible score of each query, or the sink if that is larger; -∞ where nothing may be attended.
    pub fn max(&self) -> &[T::Accumulator] {
        &self.max
    }

    /// The sum of `exp(score - max)` over the visible scores of each query and the sink.
    pub fn sum(&self) -> &[T::Accumulator] {
        &self.sum
    }
}

/// One head of a call, opened: see [`Call::inspect`](crate::Call::inspect).
///
/// ```
/// use ndarray::{Array2, array};
/// use qkv::{Alignment, Attention, Map, Of};
///
/// let x = Array2::from_shape_fn((100, 4), |(i, e)| ((7 * i + 3 * e) % 11) as f32 / 11.0);
/// let causal = Attention::new().causal(Alignment::TopLeft);
/// let head = causal.call(x.view(), x.view(), x.view()).inspect(0, 0)?;
/// // The 100 × 100 weights as a picture of 10 × 10: nothing above the diagonal.
/// let map = head.map(&Map::new(Of::Weights).size(10, 10), None)?;
/// assert!(map[[9, 0]] > 0.0 && map[[0, 9]] == 0.0);
/// # Ok::<(), qkv::Error>(())
/// ```
pub struct Inspection<'c, T: Element> {
    attention: &'c Attention<'c>,
    /// Queries, keys and values as they were given.
    arrays: [DynView<'c, T>; 3],
    problem: Problem<'c, T>,
    at: (usize, usize),
    queries: Range<usize>,
    stats: OnceLock<HeadStats<T>>,
}

impl<'c, T: Element> Inspection<'c, T> {
    /// Of all queries, if none are named.
    pub(crate) fn new(
        attention: &'c Attention<'c>,
        arrays: [DynView<'c, T>; 3],
        at: (usize, usize),
        queries: Option<Range<usize>>,
    ) -> Result<Self, Error> {
        let problem = problem(attention, arrays.clone(), at)?;
        let all = 0..problem.terms.len_query;
        let queries = queries.unwrap_or(all.clone());
        check_within("queries", &queries, &all)?;
        Ok(Self { attention, arrays, problem, at, queries, stats: OnceLock::new() })
    }

    /// With the maxima and sums of a time before, which must be of this head: they are not computed again.
    ///
    /// # Errors
    /// If they are not of the queries that are open.
    pub fn with_stats(self, stats: HeadStats<T>) -> Result<Self, Error> {
        if stats.queries() != self.queries {
            let wanted = format!("those of {:?}, which are open", self.queries);
            return Err(Error::value("stats", format!("those of {:?}", stats.queries()), wanted));
        }
        Ok(Self { stats: OnceLock::from(stats), ..self })
    }

    /// Maximum and sum of each row. They are computed once, when they are first needed, and no value is read for it.
    ///
    /// # Errors
    /// If there is no memory for them, or progress cancelled.
    pub fn stats(&self, mut progress: Option<&mut Progress<'_>>) -> Result<&HeadStats<T>, Error> {
        self.computed_stats(&mut progress)
    }

    fn computed_stats(&self, progress: &mut Option<&mut Progress<'_>>) -> Result<&HeadStats<T>, Error> {
        if let Some(stats) = self.stats.get() {
            return Ok(stats);
        }
        let [query, key, mut value] = self.arrays.clone();
        value.slice_axis_inplace(Axis(value.ndim() - 1), (0..0).into());
        let problem = problem(self.attention, [query, key, value], self.at)?;
        let column = || zeros::<T::Accumulator>("row statistics", &[self.queries.len()]);
        let (mut max, mut sum) = (column()?, column()?);
        let mut output = zeros::<T>("output", &[self.queries.len(), 0])?;
        let _environment = FloatEnvironment::enter();
        let both = [&mut max, &mut sum].map(|array| array.as_slice_mut().expect("contiguous"));
        let target = output.view_mut().into_dimensionality().expect("two axes");
        let first = (self.at.0, self.at.1, self.queries.start);
        T::attend(&problem, Heads::one(target, first, Some(both), Finish::Mean), progress)?;
        let [max, sum] = [max, sum].map(|column| column.into_raw_vec_and_offset().0);
        Ok(self.stats.get_or_init(|| HeadStats { first_query: self.queries.start, max, sum }))
    }

    /// The queries that are open.
    pub fn queries(&self) -> Range<usize> {
        self.queries.clone()
    }

    /// `(len_query, len_key)`, of the whole head.
    pub fn lengths(&self) -> (usize, usize) {
        (self.problem.terms.len_query, self.problem.terms.len_key)
    }

    /// Scores after a stage, or weights, of some queries and keys: `(queries, keys)`, in the accumulator type; bit for bit
    /// what [`Call::scores`](crate::Call::scores) has at these places.
    ///
    /// # Errors
    /// If there are no such queries or keys, if there is no memory for the matrix, or if progress cancelled.
    pub fn matrix(
        &self,
        stage: Stage,
        queries: Range<usize>,
        keys: Range<usize>,
        mut progress: Option<&mut Progress<'_>>,
    ) -> Result<Array2<T::Accumulator>, Error> {
        self.check(&queries, &keys)?;
        let _environment = FloatEnvironment::enter();
        let mut matrix = shaped(zeros::<T::Accumulator>("matrix", &[queries.len(), keys.len()])?);
        let head = self.head(stage == Stage::Weights, &mut progress)?;
        strip::write(&head, stage, (&queries, &keys), &mut matrix);
        Ok(matrix)
    }

    /// The matrix pooled to a picture: see [`Map`]. `(rows, columns)` of it; progress is reported as of any call.
    ///
    /// # Errors
    /// If the map asks for queries or keys that do not exist, if there is no memory for it, or if progress cancelled.
    pub fn map(&self, map: &Map, mut progress: Option<&mut Progress<'_>>) -> Result<Array2<f64>, Error> {
        let area = map.within(self.queries(), self.lengths().1);
        self.check(&area.rows.range, &area.columns.range)?;
        let _environment = FloatEnvironment::enter();
        map::pooled(&self.shown(area.of, &mut progress)?, &area, &mut progress)
    }

    /// What there is to say of each query and key: see [`HeadSurvey`].
    ///
    /// # Errors
    /// If there are no such queries, or not as many tokens as queries and keys, or if progress cancelled.
    pub fn survey(
        &self,
        survey: &Survey<'_>,
        mut progress: Option<&mut Progress<'_>>,
    ) -> Result<HeadSurvey, Error> {
        let (len_query, len_key) = self.lengths();
        let queries = survey.queries.clone().unwrap_or(self.queries());
        self.check(&queries, &(0..0))?;
        if let Some((query, key)) = survey.tokens {
            for (tokens, length) in [(query, len_query), (key, len_key)] {
                if tokens.len() != length {
                    return Err(Error::shape("tokens", &[tokens.len()], format!("({length},)")));
                }
            }
        }
        let _environment = FloatEnvironment::enter();
        let head = self.head(true, &mut progress)?;
        let influences = survey.influence.then(|| Influences::new(self, &head, &mut progress)).transpose()?;
        survey::surveyed(&head, survey, queries, influences.as_ref(), &mut progress)
    }

    /// How much each key matters to one query, of all queries: see [`Call::influence`](crate::Call::influence).
    ///
    /// # Errors
    /// If there is no such query.
    pub fn influence(&self, query: usize) -> Result<Vec<f64>, Error> {
        let row = (self.at.0, self.at.1, query);
        self.problem.check_row(row)?;
        Ok(influence(&self.problem, row))
    }

    /// How far the weights of each query are from those of another run, which has as many queries and keys.
    ///
    /// # Errors
    /// If the other run has other lengths, or if progress cancelled.
    pub fn difference<U: Element>(
        &self,
        other: &Inspection<'_, U>,
        mut progress: Option<&mut Progress<'_>>,
    ) -> Result<Vec<QueryDifference>, Error> {
        self.check_same(other)?;
        let _environment = FloatEnvironment::enter();
        let own = self.shown(Of::Weights, &mut progress)?;
        let others = other.shown(Of::Weights, &mut progress)?;
        let elsewhere = [difference::elsewhere(&own.head), difference::elsewhere(&others.head)];
        let elsewhere = elsewhere.each_ref().map(Vec::as_slice);
        difference::compared([&own, &others], (self.queries(), elsewhere), &mut progress)
    }

    /// [`map`](Self::map) of the numbers of this run less those of another.
    ///
    /// # Errors
    /// As [`map`](Self::map), and if the other run has other lengths.
    pub fn map_less<U: Element>(
        &self,
        other: &Inspection<'_, U>,
        map: &Map,
        mut progress: Option<&mut Progress<'_>>,
    ) -> Result<Array2<f64>, Error> {
        self.check_same(other)?;
        let area = map.within(self.queries(), self.lengths().1);
        self.check(&area.rows.range, &area.columns.range)?;
        let _environment = FloatEnvironment::enter();
        let (from, taken) = (self.shown(area.of, &mut progress)?, other.shown(area.of, &mut progress)?);
        map::pooled(&Less { from: &from, taken: &taken }, &area, &mut progress)
    }

    fn check_same<U: Element>(&self, other: &Inspection<'_, U>) -> Result<(), Error> {
        let [own, others] = [(self.queries(), self.lengths()), (other.queries(), other.lengths())];
        if own == others {
            return Ok(());
        }
        let shown = |(open, (len_query, len_key)): (Range<usize>, (usize, usize))| match open.len() {
            queries if queries == len_query => format!("{len_query} queries and {len_key} keys"),
            _ => format!("queries {open:?} of {len_query}, and {len_key} keys"),
        };
        Err(Error::value("other", shown(others), format!("{}, as this run has", shown(own))))
    }

    /// The numbers that a map shows.
    fn shown(
        &self,
        of: Of,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<Shown<'_, T::Accumulator>, Error> {
        let head = self.head(matches!(of, Of::Weights | Of::Influence), progress)?;
        let influences = (of == Of::Influence).then(|| Influences::new(self, &head, progress)).transpose()?;
        Ok(Shown { head, of, influences })
    }

    fn check(&self, queries: &Range<usize>, keys: &Range<usize>) -> Result<(), Error> {
        check_within("queries", queries, &self.queries())?;
        check_within("keys", keys, &(0..self.lengths().1))
    }

    /// With maxima and sums, where weights are wanted.
    fn head(
        &self,
        weights: bool,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<Head<'_, T::Accumulator>, Error> {
        let stats = if weights { Some(self.computed_stats(progress)?) } else { None };
        Ok(Head {
            terms: &self.problem.terms,
            arrays: &self.problem,
            batch: self.at.0,
            head: self.at.1,
            queries: self.queries(),
            stats: stats.map_or([&[], &[]], |stats| [&stats.max, &stats.sum]),
        })
    }
}

/// One head of a call, checked.
fn problem<'c, T: Element>(
    attention: &'c Attention<'c>,
    [query, key, value]: [DynView<'c, T>; 3],
    at: (usize, usize),
) -> Result<Problem<'c, T>, Error> {
    let problem = Problem::new(attention, query, key, value)?.before_dropout();
    problem.check_head(at)?;
    Ok(problem.for_single_heads())
}

fn check_within(what: &'static str, range: &Range<usize>, all: &Range<usize>) -> Result<(), Error> {
    if all.start <= range.start && range.start <= range.end && range.end <= all.end {
        return Ok(());
    }
    Err(Error::value(what, format!("{range:?}"), format!("a range within {all:?}")))
}
