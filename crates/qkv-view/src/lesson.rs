//! The lesson of the page: embeddings and weights that its reader may change, and the steps that the engine makes of them.

use ndarray::Array2;
use qkv::{Alignment, Attention, Layer, Projections};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::explain;
use crate::json;
use crate::scene::{Embedding, Scale, Scene, Shapes};

/// Rows and columns of a matrix, at most: a lesson is small.
const MOST: usize = 64;

/// What attention is taught with: as the page and the server hand it over.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Lesson {
    /// A name for each token; none are numbered.
    pub words: Option<Vec<String>>,
    /// Embeddings, a row for each token: `(tokens, dim_model)`.
    pub x: Vec<Vec<f32>>,
    /// `(dim_model, dim)`
    pub w_q: Vec<Vec<f32>>,
    /// `(dim_model, dim)`
    pub w_k: Vec<Vec<f32>>,
    /// `(dim_model, dim_value)`
    pub w_v: Vec<Vec<f32>>,
    /// What scores are multiplied by; `1/√dim` where it is not given.
    pub scale: Option<f64>,
    /// Whether a token reads only itself and those before it.
    pub causal: bool,
}

/// Why a lesson has no steps.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LessonError {
    /// A matrix has no numbers, too many, or rows of different lengths.
    #[error("{0}: want 1 to {MOST} rows of as many numbers each, 1 to {MOST}")]
    Matrix(&'static str),
    /// The matrices do not fit one another.
    #[error(transparent)]
    Attention(#[from] qkv::Error),
}

impl Lesson {
    /// `{"steps": […]}` as `qkv explain --json` prints them.
    ///
    /// # Errors
    /// If the matrices do not fit one another.
    pub fn steps(&self) -> Result<Value, LessonError> {
        let x = matrix("x", &self.x)?;
        let weights = [("w_q", &self.w_q), ("w_k", &self.w_k), ("w_v", &self.w_v)];
        let weights = weights.map(|(name, rows)| Ok((name, matrix(name, rows)?)));
        let weights = weights.into_iter().collect::<Result<Vec<_>, LessonError>>()?;
        let named = weights.iter().map(|(name, weight)| (*name, weight.view().into_dyn()));
        let layer = Layer::from_arrays(named, None)?;
        let Projections { query, key, value } = layer.project(x.view().into_dyn())?;
        let mut attention = Attention::new();
        if let Some(scale) = self.scale {
            attention = attention.scale(scale);
        }
        if self.causal {
            attention = attention.causal(Alignment::TopLeft);
        }
        let trace = attention.trace(query.view(), key.view(), value.view())?.widened();
        let (tokens, dim, dim_value) = (query.shape()[0], query.shape()[1], value.shape()[1]);
        let scene = Scene {
            trace: &trace,
            shapes: Shapes {
                lead: vec![],
                key_lead: vec![],
                len_query: tokens,
                len_key: tokens,
                dim,
                dim_value,
            },
            plane: 0,
            first_query: 0,
            queries: 0..tokens,
            keys: 0..tokens,
            embedding: Some(Embedding {
                x: x.mapv(f64::from),
                x_shape: x.shape().to_vec(),
                weights: [0, 1, 2].map(|index| Some(weights[index].1.mapv(f64::from))),
                biased: [false; 3],
                has_output: false,
            }),
            scale: self.scale.map_or(Scale::Default, Scale::Given),
            softcap: None,
            biased: false,
            masks: if self.causal { vec!["Causal.".to_string()] } else { vec![] },
            tokens: self.words.clone().filter(|words| words.len() == tokens),
        };
        Ok(json!({ "steps": json::steps(&explain::steps(&scene)) }))
    }
}

fn matrix(name: &'static str, rows: &[Vec<f32>]) -> Result<Array2<f32>, LessonError> {
    let wrong = || LessonError::Matrix(name);
    let columns = rows.first().map_or(0, Vec::len);
    let fits = (1..=MOST).contains(&rows.len()) && (1..=MOST).contains(&columns);
    if !fits || rows.iter().any(|row| row.len() != columns) {
        return Err(wrong());
    }
    let numbers = rows.iter().flatten().copied().collect();
    Array2::from_shape_vec((rows.len(), columns), numbers).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lesson() -> Lesson {
        serde_json::from_str(
            r#"{"words": null, "x": [[1, 0], [0, 2]], "w_q": [[1, 0], [0, 1]], "w_k": [[1, 0], [0, 1]],
                "w_v": [[1], [3]], "scale": 0.5, "causal": true}"#,
        )
        .unwrap()
    }

    #[test]
    fn steps_are_those_of_the_engine() {
        let steps = lesson().steps().unwrap();
        let step = |name: &str| {
            let steps = steps["steps"].as_array().unwrap();
            steps.iter().find(|step| step["name"] == name).unwrap()["values"].clone()
        };
        assert_eq!(step("scores"), json!([[1.0, 0.0], [0.0, 4.0]]));
        assert_eq!(step("scaled"), json!([[0.5, 0.0], [0.0, 2.0]]));
        assert_eq!(step("masked"), json!([[0.5, "-Infinity"], [0.0, 2.0]]));
        assert_eq!(step("v"), json!([[1.0], [6.0]]));
        assert_eq!(step("output")[0], json!([1.0]));
    }

    #[test]
    fn queries_keys_and_values_are_told_to_come_of_x() {
        let steps = lesson().steps().unwrap();
        let formulas =
            steps["steps"].as_array().unwrap().iter().map(|step| step["formula"].as_str().unwrap());
        let made: Vec<_> = formulas.filter(|formula| formula.contains("W_")).collect();
        assert_eq!(made, ["Q = X · W_q", "K = X · W_k", "V = X · W_v"]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |change: fn(&mut Lesson)| {
            let mut changed = lesson();
            change(&mut changed);
            changed.steps().unwrap_err().to_string()
        };
        assert!(refused(|lesson| lesson.x[1].clear()).starts_with("x: want 1 to 64 rows"));
        assert!(refused(|lesson| lesson.w_q = vec![vec![0.0; 65]; 2]).starts_with("w_q"));
        assert!(refused(|lesson| lesson.w_k = vec![vec![1.0, 2.0]; 3]).contains("w_k"));
        assert!(refused(|lesson| lesson.scale = Some(f64::MAX)).contains("scale"));
    }
}
