//! Numbers, shapes and arrays as people read them. Arrays are printed as torch prints them, with 4 decimals.

use ndarray::{ArrayViewD, Axis};
use qkv::{Element, Real};

/// Rows and columns shown at either end of an array that is not printed whole; of other axes one.
pub(crate) const EDGE: usize = 3;
/// Columns of text, from `tensor(` on.
pub(crate) const WIDTH: usize = 80;

/// A shape as Python writes it: `(2, 8, 5, 64)`, `(5,)`.
pub fn shape(shape: &[usize]) -> String {
    match shape {
        [only] => format!("({only},)"),
        _ => format!("({})", shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// `1 query head`, `9 query heads`; “batch”, “query” and “key” come in all forms.
pub fn count(count: usize, what: &str) -> String {
    let plural = match what {
        _ if count == 1 => what.to_string(),
        "batch" => "batches".to_string(),
        _ if what.ends_with("query") => format!("{}ies", &what[..what.len() - 1]),
        _ => format!("{what}s"),
    };
    format!("{count} {plural}")
}

/// A number with 4 decimals, or with an exponent where that would be long or say nothing.
pub fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0.0000".to_string(),
        size if x.is_finite() && !(5e-5..1e5).contains(&size) => format!("{x:.3e}"),
        _ => format!("{x:.4}"),
    }
}

/// The same with 5 digits where there are more before the point and behind it: 12.346, 53246.
pub fn rounded(x: f64) -> String {
    match x.abs() {
        size if (10.0..1e9).contains(&size) => {
            let decimals = usize::try_from(4 - libm::floor(libm::log10(size)) as i32).unwrap_or(0);
            format!("{x:.decimals$}")
        }
        _ => number(x),
    }
}

/// A duration in the unit that suits it.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// An amount of memory, in megabytes.
pub fn bytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// An error: 0, or two digits and an exponent.
pub fn error(error: f64) -> String {
    if error == 0.0 { "0".to_string() } else { format!("{error:.1e}") }
}

/// `tensor([[ 0.7336, …]])`; the text goes after `indent` other characters on its first line.
/// Of arrays with more than `whole` elements the beginnings and ends are shown.
pub fn tensor<T: Element>(array: &ArrayViewD<'_, T>, indent: usize, whole: usize) -> String {
    let summarized = array.len() > whole;
    let mut kept = Vec::new();
    keep(array.view(), summarized, &mut kept);
    let prefix = "tensor(";
    let printer = Printer { style: Style::of(&kept), summarized, margin: indent };
    format!("{prefix}{})", printer.axes(array.view(), indent + prefix.len()))
}

/// Gathers the elements that will be printed.
fn keep<T: Element>(array: ArrayViewD<'_, T>, summarized: bool, kept: &mut Vec<f64>) {
    if array.ndim() == 0 {
        kept.extend(array.iter().map(|&x| x.widen().to_f64()));
        return;
    }
    let (edge, length) = (edge(array.ndim()), array.len_of(Axis(0)));
    for index in (0..length).filter(|&index| !summarized || index < edge || index + edge >= length) {
        keep(array.index_axis(Axis(0), index), summarized, kept);
    }
}

fn edge(axes_left: usize) -> usize {
    if axes_left > 2 { 1 } else { EDGE }
}

/// How one number is written, the same for all of an array.
pub(crate) struct Style {
    whole: bool,
    exponents: bool,
    pub(crate) width: usize,
}

impl Style {
    pub(crate) fn of(numbers: &[f64]) -> Self {
        let finite = || numbers.iter().copied().filter(|x| x.is_finite() && *x != 0.0);
        let whole = finite().all(|x| x == x.trunc());
        let largest = finite().fold(0.0, |max: f64, x| max.max(x.abs()));
        let exponents = largest >= 1e8 || (largest > 0.0 && largest < 1e-4);
        let mut style = Self { whole: whole && !exponents, exponents, width: 1 };
        style.width = numbers.iter().map(|&x| style.write(x).len()).max().unwrap_or(1);
        style
    }

    pub(crate) fn write(&self, x: f64) -> String {
        let width = self.width;
        let text = match x {
            x if x.is_nan() => "nan".to_string(),
            x if x.is_infinite() => if x > 0.0 { "inf" } else { "-inf" }.to_string(),
            x if self.exponents => exponent(x),
            x if self.whole => format!("{x:.0}."),
            x => format!("{x:.4}"),
        };
        format!("{text:>width$}")
    }
}

/// `1.2345e-05`, with two digits of exponent at least.
fn exponent(x: f64) -> String {
    let text = format!("{x:.4e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
    format!("{digits}e{sign}{power:0>2}")
}

struct Printer {
    style: Style,
    summarized: bool,
    /// Columns before the text begins.
    margin: usize,
}

impl Printer {
    fn axes<T: Element>(&self, array: ArrayViewD<'_, T>, indent: usize) -> String {
        let rank = array.ndim();
        if rank == 0 {
            return array.iter().map(|&x| self.style.write(x.widen().to_f64())).collect();
        }
        let length = array.len_of(Axis(0));
        let edge = edge(rank);
        let part = |index| {
            let part = array.index_axis(Axis(0), index);
            self.axes(part, indent + 1)
        };
        let parts: Vec<String> = if self.summarized && length > 2 * edge {
            let dots = if rank == 1 { " ..." } else { "..." };
            let ends = (0..edge).map(part).chain([dots.to_string()]);
            ends.chain((length - edge..length).map(part)).collect()
        } else {
            (0..length).map(part).collect()
        };
        let margin = " ".repeat(indent + 1);
        if rank > 1 {
            let between = format!(",{}{margin}", "\n".repeat(rank - 1));
            return format!("[{}]", parts.join(&between));
        }
        let a_line = ((WIDTH + self.margin).saturating_sub(indent) / (self.style.width + 2)).max(1);
        let lines: Vec<String> = parts.chunks(a_line).map(|line| line.join(", ")).collect();
        format!("[{}]", lines.join(&format!(",\n{margin}")))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array, array};

    use super::*;

    #[test]
    fn prints_small_arrays_whole() {
        let matrix = array![[1.5, -0.25], [0.0, f64::NEG_INFINITY]].into_dyn();
        assert_eq!(
            tensor(&matrix.view(), 0, 1000),
            "tensor([[ 1.5000, -0.2500],\n        [ 0.0000,    -inf]])"
        );
        assert_eq!(tensor(&array![1.0, 20.0].into_dyn().view(), 0, 1000), "tensor([ 1., 20.])");
        assert_eq!(
            tensor(&array![2e-6, 1e-5].into_dyn().view(), 0, 1000),
            "tensor([2.0000e-06, 1.0000e-05])"
        );
        assert_eq!(
            tensor(&Array::<f64, _>::zeros((2, 0)).into_dyn().view(), 0, 1000),
            "tensor([[],\n        []])"
        );
    }

    #[test]
    fn shortens_large_arrays_at_every_axis() {
        let cube =
            Array::from_shape_fn((3, 20, 20), |(i, j, k)| (i * 400 + j * 20 + k) as f64 / 8.0).into_dyn();
        let text = tensor(&cube.view(), 0, 1000);
        assert_eq!(
            text.lines().next(),
            Some("tensor([[[  0.0000,   0.1250,   0.2500,  ...,   2.1250,   2.2500,   2.3750],")
        );
        assert_eq!(text.matches("...").count(), 2 * 6 + 2 + 1);
        assert!(text.ends_with("149.8750]]])"), "{text}");
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
    }

    #[test]
    fn large_numbers_have_five_digits() {
        assert_eq!(
            [0.25, 9.87654, 12.345_678, 99.999_99].map(rounded),
            ["0.2500", "9.8765", "12.346", "100.000"]
        );
        assert_eq!(
            [53246.3289, -1234.56, 123_456.7, 1e-6].map(rounded),
            ["53246", "-1234.6", "123457", "1.000e-6"]
        );
    }

    #[test]
    fn counts_in_words() {
        assert_eq!(count(1, "query"), "1 query");
        assert_eq!(count(2, "query"), "2 queries");
        assert_eq!(count(0, "batch"), "0 batches");
        assert_eq!(count(3, "key head"), "3 key heads");
    }
}
