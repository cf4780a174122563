//! Billing outcome of a failed provider call.

use protocol::hook::HookMoment;
use serde_json::Value;

use super::api_error::ApiError;

/// Usage of a call if the provider sent no token count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BillingOutcome {
    /// The request was rejected or did not reach a provider.
    Nothing,
    /// The request and the received answer. The answer was read to its end.
    Received,
    /// The request and the received part of an answer. If no part was received, the full reservation counts:
    /// the provider may continue and bill it.
    Unconfirmed,
    /// The answer exceeded the read limit.
    AllReserved,
}

impl ApiError {
    /// The billing outcome for this error.
    pub fn billing_outcome(&self) -> BillingOutcome {
        let detail = |name: &str| self.details.get(name).and_then(Value::as_str);
        let moment = detail("moment").and_then(HookMoment::parse);
        // Only errors of hooks have a moment. The provider has answered before this one.
        if moment.is_some_and(HookMoment::is_of_answer) {
            return BillingOutcome::Received;
        }
        let reason = detail("reason");
        match (self.code, reason) {
            // The rest of the answer was not read, so its size is unknown.
            (_, Some("upstream_too_large")) => BillingOutcome::AllReserved,
            // A shutdown aborts calls after they were sent.
            (
                _,
                Some("upstream_broken" | "upstream_malformed" | "upstream_timeout" | "stopping"),
            )
            // These end a call whose request was sent: the provider may bill it.
            | ("cancelled" | "deadline_exceeded" | "unauthenticated", _) => {
                BillingOutcome::Unconfirmed
            }
            _ => BillingOutcome::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use egress::upstream::UpstreamError;
    use runs::hooks::{HookCause, HookRefused};
    use runs::intake::IntakeError;

    fn refused(moment: HookMoment) -> ApiError {
        let refused = HookRefused {
            hook: "guard".to_owned(),
            moment,
            cause: HookCause::Denied("upstream_too_large".to_owned()),
        };
        refused.into()
    }

    #[test]
    fn bills_aborted_calls_but_not_rejected_ones() {
        let broken = UpstreamError::Lost("it went".to_owned());
        for (error, billing_outcome) in [
            (IntakeError::Stopping.into(), BillingOutcome::Unconfirmed),
            (ApiError::cancelled(), BillingOutcome::Unconfirmed),
            (ApiError::deadline_exceeded(), BillingOutcome::Unconfirmed),
            (broken.into(), BillingOutcome::Unconfirmed),
            (UpstreamError::Timeout.into(), BillingOutcome::Unconfirmed),
            (
                UpstreamError::Malformed("half".to_owned()).into(),
                BillingOutcome::Unconfirmed,
            ),
            (
                UpstreamError::Away("nobody".to_owned()).into(),
                BillingOutcome::Nothing,
            ),
            (
                UpstreamError::TooLarge { max: 1 }.into(),
                BillingOutcome::AllReserved,
            ),
            (
                UpstreamError::Credential { status: 401 }.into(),
                BillingOutcome::Nothing,
            ),
            (ApiError::not_found("model", "m"), BillingOutcome::Nothing),
            (refused(HookMoment::ModelRequest), BillingOutcome::Nothing),
            (refused(HookMoment::ModelResponse), BillingOutcome::Received),
            (refused(HookMoment::ToolResult), BillingOutcome::Received),
        ] {
            let error: ApiError = error;
            assert_eq!(
                error.billing_outcome(),
                billing_outcome,
                "{:?}",
                error.details
            );
        }
    }
}
