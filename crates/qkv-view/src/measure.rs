//! Numbers that say what scores and weights are like.

/// The variance of finite numbers as torch's `var` has it: the sum of squares divided by one less than their count; 0
/// for fewer than two.
pub fn variance(numbers: impl Iterator<Item = f64>) -> f64 {
    let finite: Vec<f64> = numbers.filter(|x| x.is_finite()).collect();
    let mean = finite.iter().sum::<f64>() / finite.len() as f64;
    let squares: f64 = finite.iter().map(|x| (x - mean) * (x - mean)).sum();
    if finite.len() > 1 { squares / (finite.len() as f64 - 1.0) } else { 0.0 }
}

/// The entropy of a row of weights in nats, `-Σ p ln p`; 0 · ln 0 is 0.
pub fn entropy(weights: impl Iterator<Item = f64>) -> f64 {
    // One weight of 1 has -0.
    weights.filter(|&p| p > 0.0).map(|p| -p * libm::log(p)).sum::<f64>().max(0.0)
}

/// `Σ p (1 - p)`, the trace of softmax's Jacobian `diag(p) - p pᵀ`: how much the weights of a row move when its scores
/// do. 0 where one key has all the weight.
pub fn gradient(weights: impl Iterator<Item = f64>) -> f64 {
    weights.map(|p| p * (1.0 - p)).sum()
}
