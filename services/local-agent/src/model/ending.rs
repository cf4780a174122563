//! Why a model has ended its answer.

use protocol::JsonObject;

/// How the provider says that an answer ended, in the words of chat completions or its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The model had said it all, or the provider says nothing of it.
    #[default]
    Whole,
    /// `length`: it had no tokens left.
    CutOff,
    /// `content_filter`: the provider took the rest away.
    Filtered,
    /// `error`: the provider could not go on.
    Broken,
}

impl Ending {
    /// What the fields of the provider say, or this.
    pub(crate) fn or(self, fields: Option<&JsonObject>) -> Self {
        let reason = fields.and_then(|fields| fields.get("finish_reason")?.as_str());
        match reason {
            Some("length" | "max_tokens" | "MAX_TOKENS" | "model_length") => Self::CutOff,
            Some("content_filter" | "safety" | "SAFETY" | "sensitive") => Self::Filtered,
            Some("error" | "network_error" | "insufficient_system_resource") => Self::Broken,
            _ => self,
        }
    }

    /// The `finish_reason` of the run.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Whole => "stop",
            Self::CutOff => "length",
            Self::Filtered => "content_filter",
            Self::Broken => "error",
        }
    }
}
