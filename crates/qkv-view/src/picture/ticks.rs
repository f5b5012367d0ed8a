//! Round numbers along an axis or a colour bar.

use std::ops::Range;

/// A number and how it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: String,
}

/// `digits · 10^exponent`, so that 0.3 is 0.3 and not 3 · 0.1.
#[derive(Clone, Copy)]
struct Decimal {
    digits: i64,
    exponent: i32,
}

impl Decimal {
    fn value(self) -> f64 {
        format!("{}e{}", self.digits, self.exponent).parse().unwrap_or(0.0)
    }

    /// With `decimals`; or where that would be long, with an exponent.
    fn label(self, decimals: Option<usize>) -> String {
        match decimals {
            Some(decimals) => typeset(&format!("{:.decimals$}", self.value())),
            None if self.digits == 0 => "0".to_string(),
            None => typeset(&format!("{:e}", self.value())),
        }
    }

    fn tick(self, decimals: Option<usize>) -> Tick {
        Tick { value: self.value(), label: self.label(decimals) }
    }
}

/// The smallest of 1, 2, 5, 10, 20 … and their tenths that is at least `least`, a normal number.
fn round_step(least: f64) -> Decimal {
    let exponent = libm::floor(libm::log10(least)) as i32;
    // The logarithm may be rounded up to a whole number, hence the step before.
    let steps = (exponent - 1..=exponent + 1)
        .flat_map(|exponent| [1, 2, 5].map(|digits| Decimal { digits, exponent }));
    let beyond = Decimal { digits: 1, exponent: exponent + 2 };
    steps.into_iter().find(|step| step.value() >= least * (1.0 - 1e-9)).unwrap_or(beyond)
}

/// Multiples of a round step from `low` to `high`, about `most` of them at most.
pub(super) fn linear(low: f64, high: f64, most: usize) -> Vec<Tick> {
    // Divided first: the difference can be more than the largest number.
    let parts = most.max(1) as f64;
    let least = high / parts - low / parts;
    // Ends so close that nothing round is between them, or so small that there are no digits left.
    let size = low.abs().max(high.abs());
    if !(least > 1e-300 && least > size * 1e-12) {
        return vec![plain(low), plain(high)];
    }
    let step = round_step(least);
    let width = step.value();
    let (first, last) = ((low / width - 1e-9).ceil() as i64, (high / width + 1e-9).floor() as i64);
    let fixed = step.exponent >= -4 && size < 1e5;
    let decimals = fixed.then(|| usize::try_from(-step.exponent).unwrap_or(0));
    let multiple = |count| Decimal { digits: count * step.digits, ..step }.tick(decimals);
    (first..=last).map(multiple).collect()
}

/// 0, 1, 2, 5, 10, 20, 50 … and their tenths from 0 to `high`, the largest first: for a scale that spreads small
/// numbers.
pub(super) fn decades(high: f64) -> Vec<Tick> {
    const COUNT: usize = 12;
    if high < 1e-290 {
        return vec![plain(high), plain(0.0)];
    }
    let top = libm::floor(libm::log10(high)) as i32 + 1;
    let steps = (0..).flat_map(|down| [5, 2, 1].map(|digits| Decimal { digits, exponent: top - down }));
    let below = steps.filter(|step| step.value() <= high).take(COUNT);
    let written = |step: Decimal| {
        let fixed = step.exponent >= -5 && high < 1e5;
        step.tick(fixed.then(|| usize::try_from(-step.exponent).unwrap_or(0)))
    };
    below.map(written).chain([plain(0.0)]).collect()
}

/// Round indices of a range, `most` at most unless these are two.
pub(super) fn indices(range: Range<usize>, most: usize) -> Vec<usize> {
    let least = (range.len() as f64 / most.max(1) as f64).max(1.0);
    let step = round_step(least).value().max(1.0) as usize;
    let first = range.start.checked_next_multiple_of(step).unwrap_or(range.end);
    (first..range.end).step_by(step).collect()
}

fn plain(x: f64) -> Tick {
    let label = if x == 0.0 { "0".to_string() } else { typeset(&format!("{x:e}")) };
    Tick { value: x, label }
}

/// An end of a scale, which need not be round, in three digits or all that its whole part has.
pub(super) fn end(x: f64) -> Tick {
    const DIGITS: i32 = 3;
    let size = x.abs();
    let label = if x == 0.0 {
        "0".to_string()
    } else if (1e-4..1e5).contains(&size) {
        let decimals = usize::try_from(DIGITS - 1 - libm::floor(libm::log10(size)) as i32).unwrap_or(0);
        shortened(&format!("{x:.decimals$}")).to_string()
    } else {
        let text = format!("{x:.2e}");
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        format!("{}e{power}", shortened(digits))
    };
    Tick { value: x, label: typeset(&label) }
}

/// Without noughts at the end of a fraction.
fn shortened(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

/// A number with the minus of print, as on the page.
pub(super) fn typeset(number: &str) -> String {
    number.replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_within() {
        assert_eq!(labels(&linear(0.0, 1.0, 5)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&linear(0.0013, 0.8732, 5)), ["0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(labels(&linear(-2.9, 2.9, 4)), ["−2", "0", "2"]);
        assert_eq!(labels(&linear(0.0, 3e-7, 3)), ["0", "1e−7", "2e−7", "3e−7"]);
        assert_eq!(labels(&linear(0.0, 250_000.0, 5)), ["0", "5e4", "1e5", "1.5e5", "2e5", "2.5e5"]);
        assert_eq!(linear(0.0, 1.0, 10)[3].value, 0.3);
    }

    #[test]
    fn linear_ticks_exist_for_all_ends() {
        for (low, high) in [
            (f64::MIN, f64::MAX),
            (0.0, f64::from_bits(1)),
            (1e16, 1e16 + 2.0),
            (-1e-310, 1e-310),
            (1.0, 1.0 + f64::EPSILON),
        ] {
            let ticks = linear(low, high, 6);
            assert!((2..=9).contains(&ticks.len()), "{ticks:?}");
            assert!(ticks.iter().all(|tick| (low..=high).contains(&tick.value)), "{ticks:?}");
        }
    }

    #[test]
    fn decades_go_down_to_0() {
        let ticks = decades(0.93);
        assert_eq!(labels(&ticks)[..7], ["0.5", "0.2", "0.1", "0.05", "0.02", "0.01", "0.005"]);
        assert_eq!(labels(&ticks).last(), Some(&"0"));
        assert_eq!(labels(&decades(1.0))[0], "1");
        assert_eq!(labels(&decades(f64::from_bits(1))), ["5e−324", "0"]);
        assert!(decades(f64::MAX).iter().all(|tick| tick.value.is_finite()));
    }

    #[test]
    fn ends_have_three_digits() {
        let label = |x| end(x).label;
        assert_eq!([0.0, 1.0, 0.25, 0.012_345, -3.0].map(label), ["0", "1", "0.25", "0.0123", "−3"]);
        assert_eq!([1234.5, 99_999.0, 2e5, -1.5e-7].map(label), ["1234", "99999", "2e5", "−1.5e−7"]);
        assert_eq!(label(f64::MAX), "1.8e308");
    }

    #[test]
    fn indices_are_round() {
        assert_eq!(indices(0..100_000, 6), [0, 20_000, 40_000, 60_000, 80_000]);
        assert_eq!(indices(12_345..12_400, 6), [12_350, 12_360, 12_370, 12_380, 12_390]);
        assert_eq!(indices(0..3, 10), [0, 1, 2]);
        assert_eq!(indices(7..8, 1), [7]);
        assert_eq!(indices(3..3, 5), Vec::<usize>::new());
        assert!(indices(usize::MAX - 5..usize::MAX, 3).len() <= 5);
        // The next multiple of 20 would be more than the largest number.
        assert_eq!(indices(usize::MAX - 11..usize::MAX, 1), Vec::<usize>::new());
    }
}
