//! Which number has which colour.
//!
//! A scale has 253 levels from its low to its high end. Finite numbers beyond the ends have the ends' colours; NaN, +∞
//! and -∞ have colours that are in no map.

use super::pixels::Palette;

/// An odd number, so that the middle of a diverging map is a level; with the three below, a palette.
pub(super) const LEVELS: usize = 253;
const NAN: u8 = 253;
const ABOVE_ALL: u8 = 254;
const BELOW_ALL: u8 = 255;

/// A colour map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Dark blue over green to yellow, even to the eye; matplotlib's.
    Viridis,
    /// Dark blue over grey to yellow, nearly the same to the colour-blind.
    Cividis,
    /// Black over purple to light yellow; matplotlib's.
    Magma,
    /// White to dark blue, for paper.
    Blues,
    /// Red over white to blue, for what is below and above 0.
    RedBlue,
}

impl Map {
    fn gradient(self) -> colorous::Gradient {
        match self {
            Self::Viridis => colorous::VIRIDIS,
            Self::Cividis => colorous::CIVIDIS,
            Self::Magma => colorous::MAGMA,
            Self::Blues => colorous::BLUES,
            Self::RedBlue => colorous::RED_BLUE,
        }
    }

    fn palette(self) -> Palette {
        let gradient = self.gradient();
        let mut palette = [[0; 3]; 256];
        for (level, colour) in palette.iter_mut().take(LEVELS).enumerate() {
            *colour = gradient.eval_continuous(level as f64 / (LEVELS - 1) as f64).into_array();
        }
        palette[usize::from(NAN)] = [0xe6, 0x00, 0x9e];
        palette[usize::from(ABOVE_ALL)] = [0x00, 0xe0, 0xff];
        palette[usize::from(BELOW_ALL)] = [0xd4, 0xd4, 0xd4];
        palette
    }
}

/// How a matrix is coloured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Colours {
    map: Map,
    shape: Shape,
    range: Option<(f64, f64)>,
    trimmed: bool,
    names: Names,
}

/// What a legend calls numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Names {
    /// 0 and 1, if they have names.
    two: Option<[&'static str; 2]>,
    below_all: &'static str,
}

const NUMBERS: Names = Names { two: None, below_all: "−∞" };

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Linear,
    SquareRoot,
    Diverging,
}

impl Colours {
    /// From a low to a high number, those of the matrix unless a [`range`](Self::range) is given: for weights.
    pub fn sequential() -> Self {
        Self { map: Map::Viridis, shape: Shape::Linear, range: None, trimmed: false, names: NUMBERS }
    }

    /// Red below 0, white at 0, blue above, as far to either side: for scores and differences.
    pub fn diverging() -> Self {
        Self { map: Map::RedBlue, shape: Shape::Diverging, range: None, trimmed: false, names: NUMBERS }
    }

    /// Another colour map.
    pub fn map(mut self, map: Map) -> Self {
        self.map = map;
        self
    }

    /// Of numbers that are 0 or 1, each has a name: a picture with no others has these two in its legend instead of a bar,
    /// and no numbers in its cells.
    pub fn two(mut self, zero: &'static str, one: &'static str) -> Self {
        self.names.two = Some([zero, one]);
        self
    }

    /// What -∞ stands for, such as a masked pair: its name in the legend. There is then no number in its cell.
    pub fn below_all(mut self, name: &'static str) -> Self {
        self.names.below_all = name;
        self
    }

    /// Of a sequential scale, the square root: small numbers, of which attention has many, are told apart. It
    /// includes 0 unless a range is given. The colour bar's ticks stand where their numbers are.
    pub fn square_root(mut self) -> Self {
        if self.shape == Shape::Linear {
            self.shape = Shape::SquareRoot;
        }
        self
    }

    /// Of many numbers, the scale ends at the one that only a thousandth of those above 0 exceed: a few very large ones, such as
    /// the weight of the first query that has one key, do not make all others dark. A range that is given stays.
    pub fn trimmed(mut self) -> Self {
        self.trimmed = true;
        self
    }

    /// The ends of the scale; of a diverging one, the larger of both to either side. A range of numbers that are not
    /// finite is none.
    pub fn range(mut self, low: f64, high: f64) -> Self {
        self.range = (low.is_finite() && high.is_finite()).then(|| (low.min(high), low.max(high)));
        self
    }

    /// The scale for some numbers. Only finite ones count. If they are all the same, the scale goes on to 0, and if
    /// they are 0 or there is none, from 0 to 1.
    pub fn scale(&self, values: impl Iterator<Item = f64>) -> Scale {
        let (low, high) = self.range.unwrap_or_else(|| {
            let mut positive = Vec::new();
            let ends = values.filter(|x| x.is_finite()).fold(NO_ENDS, |(low, high), x| {
                if self.trimmed && x > 0.0 {
                    positive.push(x);
                }
                (low.min(x), high.max(x))
            });
            (ends.0, trimmed_high(&mut positive).unwrap_or(ends.1))
        });
        let (low, high) = match (low, high) {
            (low, high) if low > high || (low == 0.0 && high == 0.0) => (0.0, 1.0),
            (low, high) if low == high => (low.min(0.0), high.max(0.0)),
            ends => ends,
        };
        let (low, high) = match self.shape {
            Shape::Diverging => {
                let most = low.abs().max(high.abs());
                (-most, most)
            }
            Shape::SquareRoot if self.range.is_none() => (low.min(0.0), high.max(0.0)),
            _ => (low, high),
        };
        Scale { low, high, shape: self.shape, palette: self.map.palette(), names: self.names }
    }
}

const NO_ENDS: (f64, f64) = (f64::INFINITY, f64::NEG_INFINITY);

/// What a thousandth of some numbers exceed, if they are many.
fn trimmed_high(numbers: &mut [f64]) -> Option<f64> {
    const MANY: usize = 4000;
    let above = numbers.len() / 1000;
    let at = numbers.len().checked_sub(above + 1).filter(|_| numbers.len() >= MANY)?;
    Some(*numbers.select_nth_unstable_by(at, f64::total_cmp).1)
}

/// Numbers and their colours.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    shape: Shape,
    palette: Palette,
    names: Names,
}

impl Scale {
    /// The number at the low end.
    pub fn low(&self) -> f64 {
        self.low
    }

    /// The number at the high end.
    pub fn high(&self) -> f64 {
        self.high
    }

    /// Red, green and blue of a number, in sRGB.
    pub fn colour(&self, x: f64) -> [u8; 3] {
        self.palette[usize::from(self.level(x))]
    }

    /// How it goes from its low to its high end: `linear`, `square-root` or `diverging`.
    pub fn kind(&self) -> &'static str {
        match self.shape {
            Shape::Linear => "linear",
            Shape::SquareRoot => "square-root",
            Shape::Diverging => "diverging",
        }
    }

    /// So many colours, two at least, evenly from the low to the high end, as SVG and CSS write them.
    pub fn samples(&self, count: usize) -> Vec<String> {
        let last = count.max(2) - 1;
        (0..=last).map(|at| hex(self.palette[(at * (LEVELS - 1) + last / 2) / last])).collect()
    }

    pub(super) fn is_square_root(&self) -> bool {
        self.shape == Shape::SquareRoot
    }

    /// Whether 0 and 1 have names.
    pub(super) fn has_two(&self) -> bool {
        self.names.two.is_some()
    }

    /// Whether a number is written in a cell.
    pub(super) fn is_written(&self, x: f64) -> bool {
        !self.has_two() && (x != f64::NEG_INFINITY || self.names.below_all == NUMBERS.below_all)
    }

    pub(super) fn palette(&self) -> &Palette {
        &self.palette
    }

    /// The index into the palette.
    pub(super) fn level(&self, x: f64) -> u8 {
        match x {
            x if x.is_nan() => NAN,
            f64::INFINITY => ABOVE_ALL,
            f64::NEG_INFINITY => BELOW_ALL,
            x => (self.share(x) * (LEVELS - 1) as f64).round() as u8,
        }
    }

    /// How far from the low end to the high end a finite number stands, 0 to 1.
    pub(super) fn share(&self, x: f64) -> f64 {
        // Divided first: the difference of the ends can be more than the largest number.
        let size = self.low.abs().max(self.high.abs());
        let (low, high) = (self.low / size, self.high / size);
        let share = ((x / size - low) / (high - low)).clamp(0.0, 1.0);
        if self.is_square_root() { share.sqrt() } else { share }
    }
}

/// What a matrix has that a legend or a bar must name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) finite: bool,
    pub(super) below: bool,
    pub(super) above: bool,
    /// A finite number that is neither 0 nor 1.
    others: bool,
    special: [bool; 3],
}

impl Seen {
    pub(super) fn of(values: impl Iterator<Item = f64>, scale: &Scale) -> Self {
        let mut seen = Self::default();
        for x in values {
            match x {
                x if x.is_nan() => seen.special[0] = true,
                f64::INFINITY => seen.special[1] = true,
                f64::NEG_INFINITY => seen.special[2] = true,
                x => {
                    seen.finite = true;
                    seen.others |= x != 0.0 && x != 1.0;
                    seen.below |= x < scale.low;
                    seen.above |= x > scale.high;
                }
            }
        }
        seen
    }

    /// Whether there is something to read from a bar.
    pub(super) fn has_bar(&self, scale: &Scale) -> bool {
        self.finite && (self.others || !scale.has_two())
    }

    /// Names and colours of a legend: of 0 and 1 where there is no bar, and of what is no finite number and occurs.
    pub(super) fn legend(&self, scale: &Scale) -> Vec<(&'static str, String)> {
        let two = scale.names.two.filter(|_| self.finite && !self.others);
        let two = two.into_iter().flat_map(|names| names.into_iter().zip([0.0, 1.0]));
        let all = [("NaN", f64::NAN), ("+∞", f64::INFINITY), (scale.names.below_all, f64::NEG_INFINITY)];
        let seen = all.into_iter().zip(self.special).filter(|(_, seen)| *seen).map(|(named, _)| named);
        two.chain(seen).map(|(name, x)| (name, hex(scale.colour(x)))).collect()
    }
}

/// As SVG writes a colour.
pub(super) fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Black or white, whichever is read better on a colour.
pub(super) fn ink_on(colour: [u8; 3]) -> &'static str {
    // Both contrasts of WCAG are the same at this luminance.
    if luminance(colour) > 0.179 { "#000000" } else { "#ffffff" }
}

/// Relative luminance by WCAG 2, 0 to 1.
fn luminance(colour: [u8; 3]) -> f64 {
    let linear = colour.map(|part| {
        let share = f64::from(part) / 255.0;
        if share <= 0.04045 { share / 12.92 } else { libm::pow((share + 0.055) / 1.055, 2.4) }
    });
    0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(colours: Colours, values: &[f64]) -> (f64, f64) {
        let scale = colours.scale(values.iter().copied());
        (scale.low(), scale.high())
    }

    #[test]
    fn only_finite_numbers_make_the_scale() {
        let values = [0.25, f64::NAN, f64::INFINITY, 0.75, f64::NEG_INFINITY];
        assert_eq!(ends(Colours::sequential(), &values), (0.25, 0.75));
        assert_eq!(ends(Colours::diverging(), &values), (-0.75, 0.75));
        assert_eq!(ends(Colours::sequential().range(1.0, 0.0), &values), (0.0, 1.0));
        assert_eq!(ends(Colours::sequential().range(0.0, f64::NAN), &values), (0.25, 0.75));
        assert_eq!(ends(Colours::diverging(), &[-3.0, -1.0]), (-3.0, 3.0));
    }

    #[test]
    fn a_few_very_large_numbers_are_trimmed_of_many_but_not_of_few() {
        let mut values: Vec<f64> = (0..5000).map(f64::from).collect();
        values[..3].fill(1e9);
        let trimmed = Colours::sequential().trimmed();
        // All are above 0, and the largest five are left out.
        assert_eq!(ends(trimmed, &values), (3.0, 4997.0));
        assert_eq!(ends(trimmed, &values[..2000]), (3.0, 1e9));
        assert_eq!(ends(Colours::sequential(), &values), (3.0, 1e9));
        assert_eq!(ends(trimmed.range(0.0, 2.0), &values), (0.0, 2.0));
        assert_eq!(ends(trimmed, &vec![0.0; 9000]), (0.0, 1.0));
    }

    #[test]
    fn constants_and_nothing_have_a_scale_too() {
        assert_eq!(ends(Colours::sequential(), &[0.5, 0.5]), (0.0, 0.5));
        assert_eq!(ends(Colours::sequential(), &[-2.0]), (-2.0, 0.0));
        assert_eq!(ends(Colours::sequential(), &[0.0]), (0.0, 1.0));
        assert_eq!(ends(Colours::sequential(), &[f64::NAN]), (0.0, 1.0));
        assert_eq!(ends(Colours::diverging(), &[]), (-1.0, 1.0));
    }

    #[test]
    fn colours_are_those_of_the_map() {
        let scale = Colours::sequential().range(0.0, 1.0).scale([].into_iter());
        assert_eq!(scale.colour(0.0), [0x44, 0x01, 0x54]);
        assert_eq!(scale.colour(1.0), [0xfd, 0xe7, 0x25]);
        assert_eq!(scale.colour(7.0), scale.colour(1.0));
        let scale = Colours::diverging().scale([-2.0, 1.0].into_iter());
        let [middle, red, blue] = [0.0, -2.0, 2.0].map(|x| scale.colour(x));
        assert!(middle.iter().all(|part| *part > 0xe8), "{middle:?}");
        assert!(red[0] > red[2] && blue[2] > blue[0]);
        let samples = scale.samples(16);
        assert_eq!([&samples[0], &samples[15]], [&hex(red), &hex(blue)]);
        assert_eq!((samples.len(), scale.kind()), (16, "diverging"));
        // A little more than 0 is not red.
        assert_eq!(scale.level(1e-9), 126);
    }

    #[test]
    fn a_square_root_spreads_small_numbers() {
        let scale = Colours::sequential().square_root().range(0.0, 1.0).scale([].into_iter());
        assert_eq!([0.0, 0.01, 0.25, 1.0].map(|x| scale.share(x)), [0.0, 0.1, 0.5, 1.0]);
    }

    #[test]
    fn the_largest_and_smallest_numbers_have_places() {
        let scale = Colours::sequential().scale([f64::MIN, f64::MAX].into_iter());
        assert_eq!([f64::MIN, 0.0, f64::MAX].map(|x| scale.share(x)), [0.0, 0.5, 1.0]);
        let least = f64::from_bits(1);
        let scale = Colours::sequential().scale([0.0, least].into_iter());
        assert_eq!([0.0, least, 1.0].map(|x| scale.share(x)), [0.0, 1.0, 1.0]);
    }

    #[test]
    fn what_is_no_finite_number_has_colours_that_no_number_has() {
        for map in [Map::Viridis, Map::Cividis, Map::Magma, Map::Blues, Map::RedBlue] {
            let palette = map.palette();
            let specials = &palette[LEVELS..];
            assert!(specials.iter().all(|special| !palette[..LEVELS].contains(special)), "{map:?}");
        }
    }

    #[test]
    fn ink_is_read_on_every_colour() {
        let contrast = |one: f64, other: f64| (one.max(other) + 0.05) / (one.min(other) + 0.05);
        for colour in Map::Viridis.palette().into_iter().chain(Map::RedBlue.palette()) {
            let ink = if ink_on(colour) == "#000000" { 0.0 } else { 1.0 };
            assert!(contrast(ink, luminance(colour)) >= 4.5, "{colour:?}");
        }
    }
}
