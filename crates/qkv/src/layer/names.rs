//! What the names of a layer's arrays mean: the lessons' `w_q` and `b_q`, and those that torch's modules save.

/// What a weight or bias is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Query,
    Key,
    Value,
    Output,
}

impl Role {
    pub(super) const ALL: [Self; 4] = [Self::Query, Self::Key, Self::Value, Self::Output];

    /// The lesson's name of its weight, which errors use.
    pub(super) fn weight(self) -> &'static str {
        match self {
            Self::Query => "w_q",
            Self::Key => "w_k",
            Self::Value => "w_v",
            Self::Output => "w_o",
        }
    }

    /// The lesson's name of its bias.
    pub(super) fn bias(self) -> &'static str {
        match self {
            Self::Query => "b_q",
            Self::Key => "b_k",
            Self::Value => "b_v",
            Self::Output => "b_o",
        }
    }

    /// What people call the `nn.Linear` that does it. A dot within stands for the module around it.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Query => &["q", "wq", "w_q", "q_proj", "q_lin", "query", "query_proj", "to_q"],
            Self::Key => &["k", "wk", "w_k", "k_proj", "k_lin", "key", "key_proj", "to_k"],
            Self::Value => &["v", "wv", "w_v", "v_proj", "v_lin", "value", "value_proj", "to_v"],
            Self::Output => &[
                "o",
                "wo",
                "w_o",
                "o_proj",
                "out_proj",
                "out_lin",
                "out",
                "output",
                "to_out",
                "to_out.0",
                "attention.output.dense",
            ],
        }
    }
}

/// Which of a layer's arrays a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// `(in, out)`, for `X · W`
    Weight(Role),
    /// `(out, in)`, for `X · Wᵀ`
    Transposed(Role),
    /// As `Transposed`, of `nn.MultiheadAttention` where keys and values have widths of their own.
    Multihead(Role),
    Bias(Role),
    /// Query, key and value weights of `nn.MultiheadAttention`, one below the other.
    InProjWeight,
    /// Their biases, one after the other.
    InProjBias,
    /// What torch's `add_bias_kv` saves.
    AddedBias(&'static str),
}

/// `None` for a name that is no layer's.
pub(super) fn meaning(name: &str) -> Option<Meaning> {
    let name = name.to_ascii_lowercase();
    let (modules, last) = name.rsplit_once('.').unwrap_or(("", &name));
    match last {
        "weight" => linear(modules).map(Meaning::Transposed),
        "bias" => linear(modules).map(Meaning::Bias),
        "in_proj_weight" => Some(Meaning::InProjWeight),
        "in_proj_bias" => Some(Meaning::InProjBias),
        "q_proj_weight" => Some(Meaning::Multihead(Role::Query)),
        "k_proj_weight" => Some(Meaning::Multihead(Role::Key)),
        "v_proj_weight" => Some(Meaning::Multihead(Role::Value)),
        "bias_k" => Some(Meaning::AddedBias("bias_k")),
        "bias_v" => Some(Meaning::AddedBias("bias_v")),
        _ => Role::ALL.into_iter().find_map(|role| match last {
            _ if last == role.weight() => Some(Meaning::Weight(role)),
            _ if last == role.bias() => Some(Meaning::Bias(role)),
            _ => None,
        }),
    }
}

/// Whose `nn.Linear` a dotted name is.
fn linear(modules: &str) -> Option<Role> {
    let ends_in =
        |own: &str| modules.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    Role::ALL.into_iter().find(|role| role.modules().iter().any(|own| ends_in(own)))
}
