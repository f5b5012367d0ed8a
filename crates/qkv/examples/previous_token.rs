//! One head of attention learns to copy the previous token, and prints its loss as it falls.
//!
//! Embeddings of token and position go through `W_q`, `W_k` and `W_v`; what the head returns is compared with the embedding of every
//! token, and the token before should win. Only the three projections are learned, by Adam. Nothing tells the head where to look: it
//! finds out that a position's query should meet the key of the position before.
//!
//! `cargo run --release -p qkv --example previous_token`

use ndarray::{Array1, Array2, Array4, ArrayView2, Zip, s};
use qkv::{Alignment, Attention, Error, Generator};

const SEQUENCES: usize = 8;
const LEN: usize = 32;
const TOKENS: usize = 12;
const DIM: usize = 32;

fn main() -> Result<(), Error> {
    for (step, loss) in train(201)?.into_iter().enumerate().step_by(20) {
        print_line(&format!("step {step:3}   loss {loss:.4}"));
    }
    Ok(())
}

#[allow(clippy::print_stdout)] // what an example is for
fn print_line(line: &str) {
    println!("{line}");
}

/// The mean cross-entropy at each step.
pub fn train(steps: usize) -> Result<Vec<f32>, Error> {
    let mut generator = Generator::new(42);
    let mut draw = |rows: usize, columns: usize, scale: f32| -> Result<Array2<f32>, Error> {
        let drawn = generator.randn(&[rows, columns])?;
        Ok(drawn.into_dimensionality().expect("two axes") * scale)
    };
    let (tokens, positions) = (draw(TOKENS, DIM, 1.0)?, draw(LEN, DIM, 1.0)?);
    let mut projections =
        [draw(DIM, DIM, 0.1)?, draw(DIM, DIM, 0.1)?, draw(DIM, DIM, 0.1)?].map(Learned::new);
    let attention = Attention::new().causal(Alignment::TopLeft);
    let mut losses = Vec::new();
    for step in 1..=steps {
        let ids: Vec<usize> =
            draw(SEQUENCES, LEN, 1.0)?.iter().map(|x| (x.abs() * 1e4) as usize % TOKENS).collect();
        let x = Array2::from_shape_fn((SEQUENCES * LEN, DIM), |(row, column)| {
            tokens[[ids[row], column]] + positions[[row % LEN, column]]
        });

        // Forward: project, attend, compare with every token.
        let [q, k, v] = projections.each_ref().map(|weight| heads(x.dot(&weight.value).view()));
        let forward = attention.call(q.view(), k.view(), v.view()).row_stats().run()?;
        let logits = rows(&forward.output).dot(&tokens.t());
        let (loss, d_logits) = cross_entropy(logits.view(), &ids);
        losses.push(loss);

        // Backward: the same way in the other direction.
        let d_output = heads(d_logits.dot(&tokens).view());
        let gradients = attention.backward(q.view(), k.view(), v.view(), &forward, d_output.view())?;
        let of_projections = [gradients.query, gradients.key, gradients.value];
        for (weight, gradient) in projections.iter_mut().zip(of_projections) {
            weight.learn(x.t().dot(&rows(&gradient.expect("asked for"))), step);
        }
    }
    Ok(losses)
}

/// `(sequences · len, dim)` as `(sequences, 1, len, dim)`.
fn heads(rows: ArrayView2<'_, f32>) -> Array4<f32> {
    let flat = rows.iter().copied().collect();
    Array4::from_shape_vec((SEQUENCES, 1, LEN, DIM), flat).expect("as many numbers")
}

/// `(sequences, 1, len, dim)` as `(sequences · len, dim)`.
fn rows(heads: &Array4<f32>) -> Array2<f32> {
    Array2::from_shape_vec((SEQUENCES * LEN, DIM), heads.iter().copied().collect()).expect("as many numbers")
}

/// Of the previous token, and its gradient; the first position of a sequence has none before it and does not count.
fn cross_entropy(logits: ArrayView2<'_, f32>, ids: &[usize]) -> (f32, Array2<f32>) {
    let counted = (SEQUENCES * (LEN - 1)) as f32;
    let mut gradient = Array2::zeros(logits.dim());
    let mut loss = 0.0;
    for row in (0..ids.len()).filter(|row| row % LEN > 0) {
        let logits = logits.row(row);
        let max = logits.fold(f32::NEG_INFINITY, |max, &x| max.max(x));
        let shares: Array1<f32> = logits.mapv(|x| libm::expf(x - max));
        let wanted = ids[row - 1];
        loss -= libm::logf(shares[wanted] / shares.sum()) / counted;
        let mut gradient = gradient.slice_mut(s![row, ..]);
        gradient.assign(&(&shares / (shares.sum() * counted)));
        gradient[wanted] -= 1.0 / counted;
    }
    (loss, gradient)
}

/// A matrix that Adam moves.
struct Learned {
    value: Array2<f32>,
    mean: Array2<f32>,
    square: Array2<f32>,
}

impl Learned {
    fn new(value: Array2<f32>) -> Self {
        let zeros = Array2::zeros(value.dim());
        Self { value, mean: zeros.clone(), square: zeros }
    }

    /// Source: Kingma and Ba, “Adam” (2015), algorithm 1.
    fn learn(&mut self, gradient: Array2<f32>, step: usize) {
        const RATE: f32 = 0.01;
        let (keep_mean, keep_square) = (0.9f32, 0.999f32);
        let correct = |keep: f32| 1.0 - (0..step).fold(1.0, |power, _| power * keep);
        let (of_mean, of_square) = (correct(keep_mean), correct(keep_square));
        Zip::from(&mut self.value).and(&mut self.mean).and(&mut self.square).and(&gradient).for_each(
            |value, mean, square, &gradient| {
                *mean = keep_mean * *mean + (1.0 - keep_mean) * gradient;
                *square = keep_square * *square + (1.0 - keep_square) * gradient * gradient;
                *value -= RATE * (*mean / of_mean) / ((*square / of_square).sqrt() + 1e-8);
            },
        );
    }
}
