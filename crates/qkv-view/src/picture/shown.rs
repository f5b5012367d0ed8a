//! What maps of a head show, in words and colours: the same in every picture and on the page.

use qkv::{Of, Pool};

use super::colour::{Colours, Map};

/// What is shown, as a title.
pub fn title(of: Of) -> &'static str {
    match of {
        Of::Mask => "Who may attend whom",
        Of::Scores => "Scores",
        Of::Scaled => "Scaled scores",
        Of::Weights => "Attention weights",
        Of::Influence => "Influence",
    }
}

/// What a number is, beside a colour bar.
pub fn quantity(of: Of) -> &'static str {
    match of {
        Of::Mask => "1: may attend",
        Of::Scores => "q · k",
        Of::Scaled => "q · k × scale",
        Of::Weights => "weight",
        Of::Influence => "how far the output would move",
    }
}

/// Of the mask two blues, of scores red to blue, of what is never below 0 viridis by the square root.
pub fn colours(of: Of) -> Colours {
    match of {
        Of::Mask => Colours::sequential().map(Map::Blues).range(0.0, 1.0).two("masked", "may attend"),
        Of::Scores | Of::Scaled => Colours::diverging(),
        Of::Weights | Of::Influence => Colours::sequential().square_root().trimmed(),
    }
}

/// How the largest numbers are kept: of scores the lowest say as much as the highest.
pub fn farthest_for_scores(of: Of, pool: Pool) -> Pool {
    match (of, pool) {
        (Of::Scores | Of::Scaled, Pool::Max) => Pool::Farthest,
        _ => pool,
    }
}
