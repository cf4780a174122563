//! Bounds of a call's use, from which its reservation is derived.

use domain::budget::{CallBound, ExpectedCall};
use domain::usage::TokenParts;

use models::{Model, Price};

/// Completion tokens of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompletionTokens {
    /// Upper bound by the request.
    pub(crate) bound: u64,
    /// Reserved if the use of earlier calls is unknown.
    pub(crate) reserved: u64,
}

impl CompletionTokens {
    /// Agents often ask for the maximum of their model and use a small part of it, so upper bounds of concurrent calls
    /// would fill a budget of which nothing is spent.
    pub(crate) fn of(of_model: Option<u64>, answers: u64, bound: u64) -> Self {
        let reserved = of_model.unwrap_or(u64::MAX).saturating_mul(answers);
        Self {
            bound,
            reserved: reserved.min(bound),
        }
    }
}

/// Upper bound of a call's use.
#[derive(Clone, Debug)]
pub(crate) struct Spend {
    /// `model`, `tool` or `knowledge`.
    pub(crate) kind: &'static str,
    pub(crate) resource: String,
    pub(crate) prompt_tokens: u64,
    /// Reserved without an expectation.
    pub(crate) max_completion_tokens: u64,
    /// Upper bound of the completion by the request.
    pub(crate) completion_bound: u64,
    /// The request itself limits the completion. Otherwise the bound is an assumption, which an answer may exceed.
    pub(crate) is_limited: bool,
    pub(crate) price: Option<Price>,
    /// Basis of the reservation.
    pub(crate) basis: ReservationBasis,
}

/// Basis of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservationBasis {
    /// The bound of the request.
    Bound,
    /// The bound, limited to some thousand tokens; for a stream, the last calls of the agent if there are any.
    Limited,
    /// The last calls of the agent.
    Expected,
}

impl Spend {
    /// The use of a model call with these bounds, in tokens.
    pub(crate) fn of_model(
        id: &str,
        model: &Model,
        prompt: u64,
        completion: CompletionTokens,
    ) -> Self {
        Self {
            kind: "model",
            resource: id.to_owned(),
            prompt_tokens: prompt,
            max_completion_tokens: completion.reserved,
            completion_bound: completion.bound,
            is_limited: false,
            price: model.price.clone(),
            basis: match model.reserved_tokens {
                Some(_) => ReservationBasis::Limited,
                None => ReservationBasis::Bound,
            },
        }
    }

    /// The use of a stream: it reserves its expected use, unless the model reserves the bound.
    pub(crate) fn expected(self) -> Self {
        let basis = match self.basis {
            ReservationBasis::Bound => ReservationBasis::Bound,
            ReservationBasis::Limited | ReservationBasis::Expected => ReservationBasis::Expected,
        };
        Self { basis, ..self }
    }

    /// Bounds of the call by its request.
    pub(super) fn bound(&self) -> CallBound {
        let cached = TokenParts {
            cache_read: self.prompt_tokens,
            ..TokenParts::default()
        };
        CallBound {
            prompt_tokens: self.prompt_tokens,
            cached_cost_micros: self.cost(cached),
            max_completion_tokens: self.completion_bound,
        }
    }

    /// The use without any earlier call.
    pub(super) fn unknown(&self) -> ExpectedCall {
        ExpectedCall {
            prompt_cost_micros: self.cost(TokenParts::split(self.prompt_tokens, 0, None)),
            completion_tokens: self.max_completion_tokens,
        }
    }

    /// Cost of a completion. The size of the prompt selects the price.
    pub(super) fn completion_cost(&self, tokens: u64) -> u64 {
        let cost = |tokens| self.cost(TokenParts::split(self.prompt_tokens, tokens, None));
        cost(tokens).saturating_sub(cost(0))
    }

    /// The use of a tool call.
    pub(crate) fn of_tool(name: &str) -> Self {
        Self::without_tokens("tool", name)
    }

    /// The use of a knowledge search. `embedding` is the model for the query vector.
    pub(crate) fn of_retrieval(kb_id: &str, query: &String, embedding: Option<&Model>) -> Self {
        let of_query = |model: &Model| model.count.of_texts([query].into_iter());
        Self {
            prompt_tokens: embedding.map_or(0, of_query),
            price: embedding.and_then(|model| model.price.clone()),
            ..Self::without_tokens("knowledge", kb_id)
        }
    }

    fn without_tokens(kind: &'static str, resource: &str) -> Self {
        Self {
            kind,
            resource: resource.to_owned(),
            prompt_tokens: 0,
            max_completion_tokens: 0,
            completion_bound: 0,
            is_limited: false,
            price: None,
            basis: ReservationBasis::Bound,
        }
    }

    pub(super) fn cost(&self, tokens: TokenParts) -> u64 {
        self.price.as_ref().map_or(0, |price| price.cost(tokens))
    }

    /// True if the configuration has no price for the call.
    pub(super) fn is_unpriced(&self) -> bool {
        self.price.is_none() && (self.kind == "model" || self.prompt_tokens > 0)
    }
}
