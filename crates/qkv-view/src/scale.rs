//! What the scale is for: how large scores are, how many keys the weights are spread over, and how much of a gradient
//! softmax lets through, with 1/√d and without it.

use ndarray::{Dimension, Ix2};
use qkv::{Attention, Error, Generator, Trace};

use crate::explain::{entropy, variance};

/// The dimensions that are tried, and how many queries and keys are drawn for each.
const DIMENSIONS: [usize; 6] = [1, 4, 16, 64, 256, 1024];
const DRAWN: usize = 64;

/// What a scale does to one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// Of the scores that softmax gets, masked ones left out.
    pub variance: f64,
    /// The mean entropy of a row of weights, in nats.
    pub entropy: f64,
    /// The mean over rows of `Σ p (1 - p)`, the trace of softmax's Jacobian `diag(p) - p pᵀ`: how much the weights of a
    /// row move when its scores do. 0 where one key has all the weight.
    pub gradient: f64,
}

impl Measure {
    /// Over all rows of a trace that attend anything.
    pub fn new<D: Dimension>(trace: &Trace<f64, D>) -> Self {
        let rows: Vec<Vec<f64>> = trace.weights.rows().into_iter().map(|row| row.to_vec()).collect();
        let attending: Vec<_> = rows.into_iter().filter(|row| row.iter().any(|&p| p != 0.0)).collect();
        let mean = |of: &dyn Fn(&[f64]) -> f64| {
            attending.iter().map(|row| of(row)).sum::<f64>() / attending.len().max(1) as f64
        };
        Self {
            variance: variance(trace.masked.iter().copied()),
            entropy: mean(&|row| entropy(row.iter().copied())),
            gradient: mean(&|row| row.iter().map(|p| p * (1.0 - p)).sum()),
        }
    }
}

/// One line of the comparison.
pub struct Comparison {
    /// What was measured.
    pub name: String,
    /// With the scale, and without.
    pub both: [Measure; 2],
}

/// Queries and keys drawn from the standard normal distribution, of growing dimension.
///
/// # Errors
/// Never for these sizes; the engine's errors are passed on.
pub fn growing(seed: u64) -> Result<Vec<Comparison>, Error> {
    let mut generator = Generator::new(seed);
    let compare = |dim: usize| {
        let mut draw = || Ok::<_, Error>(generator.randn(&[DRAWN, dim])?.mapv(f64::from));
        let (query, key) = (draw()?, draw()?);
        let matrix = |array: ndarray::ArrayD<f64>| array.into_dimensionality::<Ix2>().expect("two axes");
        let (query, key) = (matrix(query), matrix(key));
        let measure = |attention: Attention<'_>| {
            Ok::<_, Error>(Measure::new(&attention.trace(query.view(), key.view(), key.view())?))
        };
        let both = [measure(Attention::new())?, measure(Attention::new().scale(1.0))?];
        Ok(Comparison { name: format!("d = {dim}"), both })
    };
    DIMENSIONS.into_iter().map(compare).collect()
}

/// A table of at most 80 columns.
pub fn table(comparisons: &[Comparison]) -> String {
    let mut lines = vec![
        format!("{:12}{:^32}{:^32}", "", "with 1/√d", "without").trim_end().to_string(),
        format!("{:12}{}", "", "  variance   entropy  gradient  ".repeat(2)).trim_end().to_string(),
    ];
    for Comparison { name, both } in comparisons {
        let numbers = both.map(|Measure { variance, entropy, gradient }| {
            format!("{variance:>10.4}{entropy:>10.4}{gradient:>10.4}  ")
        });
        lines.push(format!("{name:12}{}", numbers.concat()).trim_end().to_string());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;

    #[test]
    fn without_the_scale_growing_dimensions_saturate_softmax() {
        let all = growing(0).unwrap();
        for Comparison { name, both: [with, without] } in &all {
            // Dot products of d standard normal numbers have variance d.
            assert!((0.5..2.0).contains(&with.variance), "{name}: {with:?}");
            assert!(with.entropy > 3.0 && with.gradient > 0.9, "{name}: {with:?}");
            assert!(
                without.entropy <= with.entropy + 1e-9 && without.gradient <= with.gradient + 1e-9,
                "{name}"
            );
        }
        let last = all.last().unwrap().both[1];
        assert!(last.variance > 500.0 && last.entropy < 0.2 && last.gradient < 0.1, "{last:?}");
        assert!(table(&all).lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn equal_scores_have_the_largest_entropy() {
        let zeros = Array2::<f64>::zeros((4, 3));
        let trace = Attention::new().trace(zeros.view(), zeros.view(), zeros.view()).unwrap();
        let Measure { variance, entropy, gradient } = Measure::new(&trace);
        assert!(variance == 0.0 && (entropy - libm::log(4.0)).abs() < 1e-15 && gradient == 0.75);
    }
}
