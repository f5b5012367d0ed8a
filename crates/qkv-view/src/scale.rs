//! What the scale is for: how large scores are, how many keys the weights are spread over, and how much of a gradient
//! softmax lets through, with 1/√d and without it.

use ndarray::ArrayView2;
use qkv::{Attention, Error, Generator};

use crate::measure::{entropy, gradient, variance};
use crate::scene::Scene;
use crate::show;
use crate::text::{heading, wrapped};

/// The dimensions that are tried, and how many queries and keys are drawn for each.
const DIMENSIONS: [usize; 6] = [1, 4, 16, 64, 256, 1024];
const DRAWN: usize = 64;

/// What a scale does to the rows of one head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// How many keys a row has.
    pub keys: usize,
    /// Of the scores that softmax gets, masked ones left out.
    pub variance: f64,
    /// The mean entropy of a row of weights, in nats; at most ln(keys).
    pub entropy: f64,
    /// The mean of a row's `Σ p (1 - p)`, softmax's [`gradient`]: 0 where one key has all the weight.
    pub gradient: f64,
}

impl Measure {
    /// Of the head that a scene prints.
    pub fn of(scene: &Scene<'_>) -> Self {
        Self::new(scene.matrix(&scene.trace.masked), scene.matrix(&scene.trace.weights))
    }

    /// Over all rows that attend anything.
    fn new(masked: ArrayView2<'_, f64>, weights: ArrayView2<'_, f64>) -> Self {
        let attending: Vec<_> =
            weights.rows().into_iter().filter(|row| row.iter().any(|&p| p != 0.0)).collect();
        let mean = |sum: f64| sum / attending.len().max(1) as f64;
        Self {
            keys: weights.ncols(),
            variance: variance(masked.iter().copied()),
            entropy: mean(attending.iter().map(|row| entropy(row.iter().copied())).sum()),
            gradient: mean(attending.iter().map(|row| gradient(row.iter().copied())).sum()),
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

/// Queries and keys of growing dimension, drawn by `randn` after `manual_seed(seed)`: queries, keys, and the next.
///
/// # Errors
/// Never for these sizes; the engine's errors are passed on.
pub fn growing(seed: u64) -> Result<Vec<Comparison>, Error> {
    let mut generator = Generator::new(seed);
    let compare = |dim: usize| {
        let query = generator.randn(&[DRAWN, dim])?;
        let key = generator.randn(&[DRAWN, dim])?;
        let measure = |attention: Attention<'_>| {
            let trace = attention.trace(query.view(), key.view(), key.view())?.widened();
            let matrix = |array: &ndarray::ArrayD<f64>| {
                array.clone().into_dimensionality::<ndarray::Ix2>().expect("two axes")
            };
            Ok::<_, Error>(Measure::new(matrix(&trace.masked).view(), matrix(&trace.weights).view()))
        };
        let both = [measure(Attention::new())?, measure(Attention::new().scale(1.0))?];
        Ok(Comparison { name: format!("d = {dim}"), both })
    };
    DIMENSIONS.into_iter().map(compare).collect()
}

/// A section with a table, at most 80 columns wide.
pub fn text(comparisons: &[Comparison]) -> String {
    let words = format!(
        "\"This input\" is the one above; the rows under it are {DRAWN} queries and {DRAWN} keys of growing dimension d, \
         drawn by randn. A dot product of d such numbers has variance d. Divided by √d the scores keep a variance near 1, \
         whatever d is. Without that the variance grows like d; the weights p pile up on one key, and their entropy (in \
         nats, at most the logarithm of the number of keys) falls towards 0. Then softmax stops answering to its scores: \
         the sum of its slopes, Σ p·(1 - p), here called gradient, falls towards 0 too, and a model can no longer learn \
         whom to attend. (Entropy and gradient are means over the rows.)"
    );
    format!("{}\n{}\n\n{}\n\n", heading("What the scale is for"), table(comparisons), wrapped(&words))
}

fn table(comparisons: &[Comparison]) -> String {
    let head = |label: &str, keys: &str| format!("{label:<11}{keys:>5}");
    let measures = " variance entropy gradient".repeat(2);
    let mut lines = vec![
        format!("{}{:^28}{:^28}", head("", ""), "with the scale", "without").trim_end().to_string(),
        format!("{}{}", head("", "keys"), measures.replace(" variance", "   variance")),
    ];
    for Comparison { name, both } in comparisons {
        let numbers = both.map(|Measure { variance, entropy, gradient, .. }| {
            format!("{:>11}{:>8.4}{:>9.4}", show::number(variance), entropy + 0.0, gradient + 0.0)
        });
        lines.push(format!("{}{}", head(name, &both[0].keys.to_string()), numbers.concat()));
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
        assert!(text(&all).lines().all(|line| line.chars().count() <= 80), "{}", text(&all));
    }

    #[test]
    fn equal_scores_have_the_largest_entropy() {
        let (masked, weights) = (Array2::<f64>::zeros((3, 4)), Array2::from_elem((3, 4), 0.25));
        let Measure { keys, variance, entropy, gradient } = Measure::new(masked.view(), weights.view());
        assert!(keys == 4 && variance == 0.0 && (entropy - libm::log(4.0)).abs() < 1e-15 && gradient == 0.75);
    }
}
