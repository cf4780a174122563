//! What a failed call has used of whoever was asked for it.

use serde_json::Value;

use super::ApiError;

/// What a call may have used of its provider, where nobody has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum Consumed {
    /// It was refused, or nobody was there.
    Nothing,
    /// What it was asked, and what came of its answer: that was not waited for, or could not be read.
    WhatCame,
    /// More than is read of an answer.
    AllReserved,
}

impl ApiError {
    /// What a call that ended by this error may have used.
    pub(in crate::api) fn consumed(&self) -> Consumed {
        let reason = self.details.get("reason").and_then(Value::as_str);
        match (self.code, reason) {
            (_, Some("upstream_too_large")) => Consumed::AllReserved,
            (_, Some("upstream_broken" | "upstream_malformed" | "upstream_timeout"))
            | ("cancelled" | "deadline_exceeded" | "unauthenticated", _) => Consumed::WhatCame,
            _ => Consumed::Nothing,
        }
    }
}
