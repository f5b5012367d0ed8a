//! What can be wrong with a call, said so that it can be mended: which argument, what was got, what is wanted.

/// Why a call was refused or did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An array has a shape that does not fit the others.
    #[error("{argument}: got shape {got}, want {wanted}{}", mend(.hint))]
    Shape {
        /// The argument at fault.
        argument: &'static str,
        /// Its shape.
        got: String,
        /// The shape that would do.
        wanted: String,
        /// The usual mend, where there is one.
        hint: Option<String>,
    },
    /// A number or an option that has no meaning here.
    #[error("{argument}: got {got}, want {wanted}{}", mend(.hint))]
    Value {
        /// The argument at fault.
        argument: &'static str,
        /// What it was.
        got: String,
        /// What would do.
        wanted: String,
        /// The usual mend, where there is one.
        hint: Option<String>,
    },
    /// There is no memory for a result, or for what is kept of an argument.
    #[error("{what}: no memory for an array of shape {shape}")]
    Memory {
        /// The result or argument.
        what: &'static str,
        /// Its shape.
        shape: String,
    },
    /// The progress function asked to stop.
    #[error("cancelled")]
    Cancelled,
}

fn mend(hint: &Option<String>) -> String {
    hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default()
}

impl Error {
    pub(crate) fn shape(argument: &'static str, got: &[usize], wanted: impl Into<String>) -> Self {
        Self::Shape { argument, got: show_shape(got), wanted: wanted.into(), hint: None }
    }

    pub(crate) fn value(
        argument: &'static str,
        got: impl std::fmt::Display,
        wanted: impl Into<String>,
    ) -> Self {
        Self::Value { argument, got: got.to_string(), wanted: wanted.into(), hint: None }
    }

    /// Of a number that may have any size: `1e300` is not written out.
    pub(crate) fn number(argument: &'static str, got: f64, wanted: impl Into<String>) -> Self {
        Self::value(argument, format!("{got:?}"), wanted)
    }

    pub(crate) fn no_memory(what: &'static str, shape: &[usize]) -> Self {
        Self::Memory { what, shape: show_shape(shape) }
    }

    pub(crate) fn mended_by(mut self, mend: impl Into<String>) -> Self {
        if let Self::Shape { hint, .. } | Self::Value { hint, .. } = &mut self {
            *hint = Some(mend.into());
        }
        self
    }
}

/// A shape as Python and torch write it: `(2, 8, 5, 64)`, `(5,)`.
pub(crate) fn show_shape(shape: &[usize]) -> String {
    match shape {
        [only] => format!("({only},)"),
        _ => format!("({})", shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}
