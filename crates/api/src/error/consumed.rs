//! What a failed call has used of whoever was asked for it.

use serde_json::Value;

use super::ApiError;

/// What a call may have used of its provider, where nobody has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consumed {
    /// It was refused, or nobody was there.
    Nothing,
    /// What it was asked, and what came of its answer: that was heard to its end.
    WhatCame,
    /// What came of an answer that was not waited for, or could not be read. Where nothing came of it, all that it may
    /// have been: its provider may go on and bill it.
    Unheard,
    /// More than is read of an answer.
    AllReserved,
}

impl ApiError {
    /// What a call that ended by this error may have used.
    pub(crate) fn consumed(&self) -> Consumed {
        let reason = self.details.get("reason").and_then(Value::as_str);
        match (self.code, reason) {
            (_, Some("upstream_too_large")) => Consumed::AllReserved,
            // A stop of the gateway cuts off what was sent before.
            (
                _,
                Some("upstream_broken" | "upstream_malformed" | "upstream_timeout" | "stopping"),
            )
            | ("cancelled" | "deadline_exceeded" | "unauthenticated", _) => Consumed::Unheard,
            _ => Consumed::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use egress::upstream::UpstreamError;
    use runs::start::StartError;

    #[test]
    fn what_was_sent_and_not_waited_for_is_used_and_what_was_refused_is_not() {
        let broken = UpstreamError::Lost("it went".to_owned());
        for (error, consumed) in [
            (StartError::Stopping.into(), Consumed::Unheard),
            (ApiError::cancelled(), Consumed::Unheard),
            (ApiError::deadline_exceeded(), Consumed::Unheard),
            (broken.into(), Consumed::Unheard),
            (UpstreamError::Timeout.into(), Consumed::Unheard),
            (
                UpstreamError::Malformed("half".to_owned()).into(),
                Consumed::Unheard,
            ),
            (
                UpstreamError::Away("nobody".to_owned()).into(),
                Consumed::Nothing,
            ),
            (
                UpstreamError::TooLarge { most: 1 }.into(),
                Consumed::AllReserved,
            ),
            (
                UpstreamError::Credential { status: 401 }.into(),
                Consumed::Nothing,
            ),
            (ApiError::not_found("model"), Consumed::Nothing),
        ] {
            let error: ApiError = error;
            assert_eq!(error.consumed(), consumed, "{:?}", error.details);
        }
    }
}
