//! Billing outcome of a failed provider call.

use serde_json::Value;

use super::api_error::ApiError;

/// Usage of a call if the provider sent no token count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consumed {
    /// The request was rejected or did not reach a provider.
    Nothing,
    /// The request and the received answer. The answer was read to its end.
    WhatCame,
    /// The request and the received part of an answer. If no part was received, the whole reservation counts:
    /// the provider may continue and bill it.
    Unheard,
    /// The answer exceeded the read limit.
    AllReserved,
}

impl ApiError {
    /// The billing outcome for this error.
    pub(crate) fn consumed(&self) -> Consumed {
        let reason = self.details.get("reason").and_then(Value::as_str);
        match (self.code, reason) {
            (_, Some("upstream_too_large")) => Consumed::AllReserved,
            // A shutdown aborts calls after they were sent.
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
    use runs::intake::IntakeError;

    #[test]
    fn what_was_sent_and_not_waited_for_is_used_and_what_was_refused_is_not() {
        let broken = UpstreamError::Lost("it went".to_owned());
        for (error, consumed) in [
            (IntakeError::Stopping.into(), Consumed::Unheard),
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
