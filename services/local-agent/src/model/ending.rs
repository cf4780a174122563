//! Finish reason of a model.

use protocol::JsonObject;

/// Finish reason, from chat completions or provider-specific values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FinishKind {
    /// Complete, or not reported.
    #[default]
    Complete,
    /// `length`: token limit reached.
    CutOff,
    /// `content_filter`: the provider withheld the rest.
    Filtered,
    /// `error`: the provider failed.
    Broken,
}

impl FinishKind {
    /// Reason from provider fields, else `self`.
    pub(crate) fn or(self, fields: Option<&JsonObject>) -> Self {
        let reason = fields.and_then(|fields| fields.get("finish_reason")?.as_str());
        match reason {
            Some("length" | "max_tokens" | "MAX_TOKENS" | "model_length") => Self::CutOff,
            Some("content_filter" | "safety" | "SAFETY" | "sensitive") => Self::Filtered,
            Some("error" | "network_error" | "insufficient_system_resource") => Self::Broken,
            _ => self,
        }
    }

    /// `finish_reason` of the run.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "stop",
            Self::CutOff => "length",
            Self::Filtered => "content_filter",
            Self::Broken => "error",
        }
    }
}
