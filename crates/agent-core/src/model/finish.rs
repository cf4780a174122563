//! Finish reason of a model.

use protocol::JsonObject;

/// Finish reason, from chat completions or provider-specific values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FinishKind {
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
    #[must_use]
    pub fn or(self, fields: Option<&JsonObject>) -> Self {
        let reason = fields.and_then(|fields| fields.get("finish_reason")?.as_str());
        let Some(reason) = reason else { return self };
        match reason.to_ascii_lowercase().as_str() {
            "length" | "max_tokens" | "model_length" => Self::CutOff,
            "content_filter" | "safety" | "sensitive" => Self::Filtered,
            "error" | "network_error" | "insufficient_system_resource" => Self::Broken,
            // Other reasons, such as `stop`, must not hide an earlier one.
            _ => self,
        }
    }

    /// `finish_reason` of the run.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "stop",
            Self::CutOff => "length",
            Self::Filtered => "content_filter",
            Self::Broken => "error",
        }
    }
}
