//! Models of a run in fallback order.

use std::fmt;

use runner_kit::HostError;
use serde_json::Value;

/// Maximum repeated calls after a lost gateway, for one answer.
const MAX_LOST: u32 = 3;

/// Models of a run. The first one that answers serves the rest of the run.
#[derive(Debug)]
pub struct FallbackChain<M> {
    choices: Vec<M>,
}

/// Cause of a failed model call.
#[derive(Debug)]
pub enum ModelFailure {
    /// The request exceeds the model's context window.
    Overflow(HostError),
    /// The call ended with its run: cancelled, or past its deadline.
    Over(HostError),
    /// The stream broke off after text was sent.
    Broken(HostError),
    /// The connection to the gateway was lost. The same model is called again: a resumable run has a new gateway then.
    Lost(HostError),
    /// No model answered.
    Silent(Silence),
}

/// Summary of models that did not answer.
#[derive(Debug)]
pub struct Silence {
    /// Error text of the last model called.
    pub last: String,
    /// Models called.
    pub models: usize,
    /// Models that reject this request permanently.
    pub refused: usize,
    /// True if one of them may answer later.
    pub is_passing: bool,
}

impl<M> FallbackChain<M> {
    /// Chain of these models, the primary one first.
    pub fn new(choices: Vec<M>) -> Self {
        Self { choices }
    }

    /// Primary model; the one that answered after the first answer.
    pub fn first(&self) -> Option<&M> {
        self.choices.first()
    }

    /// Starts one call of the chain.
    pub fn attempts(&mut self) -> ModelAttempts<'_, M> {
        ModelAttempts {
            choices: &mut self.choices,
            next: 0,
            lost: 0,
            silence: None,
        }
    }
}

/// One call of a chain: each model is tried once, until one answers.
#[derive(Debug)]
pub struct ModelAttempts<'a, M> {
    choices: &'a mut Vec<M>,
    next: usize,
    /// Calls that lost their gateway.
    lost: u32,
    silence: Option<Silence>,
}

impl<M> ModelAttempts<'_, M> {
    /// Next model to call; the summary of all failures after the last one.
    pub fn next_model(&mut self) -> Result<&mut M, ModelFailure> {
        let silence = &mut self.silence;
        let choice = self.choices.get_mut(self.next);
        self.next += 1;
        choice.ok_or_else(|| {
            let none = || Silence::of_one("no model was granted");
            ModelFailure::Silent(silence.take().unwrap_or_else(none))
        })
    }

    /// Records the failure of the last model, so that the next one is called; after a lost gateway the same one.
    /// Fails if no other model can help: text was sent, or the run is over.
    pub fn failed(&mut self, id: &str, failed: ModelFailure) -> Result<(), ModelFailure> {
        let silence = match failed {
            ModelFailure::Silent(silence) => silence,
            ModelFailure::Lost(lost) if self.lost < MAX_LOST => {
                tracing::warn!(model.id = id, "the call of model {id} is repeated: {lost}");
                self.lost += 1;
                self.next -= 1;
                return Ok(());
            }
            ModelFailure::Lost(lost) => Silence {
                is_passing: true,
                ..Silence::of_one(lost.to_string())
            },
            failed => return Err(failed),
        };
        tracing::warn!(model.id = id, "model {id} failed: {}", silence.last);
        self.silence = Some(silence.after(self.silence.as_ref()));
        Ok(())
    }

    /// Drops the other models, so that later calls do not wait for failed ones again.
    pub fn answered(self) {
        let chosen = self.choices.swap_remove(self.next - 1);
        *self.choices = vec![chosen];
    }
}

impl Silence {
    /// Summary of one model, which would fail again.
    pub fn of_one(last: impl Into<String>) -> Self {
        Self {
            last: last.into(),
            models: 1,
            refused: 0,
            is_passing: false,
        }
    }

    /// Adds this failure to those of earlier models.
    fn after(self, others: Option<&Self>) -> Self {
        let Some(others) = others else { return self };
        Self {
            models: self.models + others.models,
            refused: self.refused + others.refused,
            is_passing: self.is_passing || others.is_passing,
            last: self.last,
        }
    }

    /// True if every model rejected the request itself.
    pub fn is_refusal(&self) -> bool {
        self.refused == self.models
    }
}

/// Failure before the first text of an answer.
impl From<HostError> for ModelFailure {
    fn from(failed: HostError) -> Self {
        let reason = failed.details.get("reason").and_then(Value::as_str);
        if is_over(&failed) {
            return Self::Over(failed);
        }
        if failed.is_gateway_lost() || failed.is_run_moved() {
            return Self::Lost(failed);
        }
        if reason == Some("context_length_exceeded") {
            return Self::Overflow(failed);
        }
        // A truncated or malformed answer may succeed at the next attempt, although the call itself is not retryable.
        let is_passing = failed.retryable || reason == Some("upstream_malformed");
        Self::Silent(Silence {
            refused: usize::from(failed.code == "invalid_argument"),
            is_passing,
            ..Silence::of_one(failed.to_string())
        })
    }
}

impl fmt::Display for ModelFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow(failed) => {
                let message = &failed.message;
                write!(
                    formatter,
                    "The model's context window is too small: {message}"
                )
            }
            Self::Over(failed) | Self::Lost(failed) => write!(formatter, "{failed}"),
            Self::Broken(failed) => write!(formatter, "The model broke off: {}", failed.message),
            Self::Silent(Silence {
                last, models: 1, ..
            }) => {
                write!(formatter, "The model failed: {last}")
            }
            Self::Silent(Silence { last, .. }) => {
                write!(formatter, "All models failed. The last: {last}")
            }
        }
    }
}

/// True for the errors of a run that has ended: cancelled, or past its deadline.
pub fn is_over(failed: &HostError) -> bool {
    failed.is_cancelled() || failed.is_deadline_exceeded()
}
