//! Errors of values that a hook refused.

use http::StatusCode;
use runs::hooks::{HookCause, HookRefused};
use serde_json::json;

use super::api_error::ApiError;

impl From<HookRefused> for ApiError {
    fn from(refused: HookRefused) -> Self {
        let (code, message) = (refused.code(), refused.to_string());
        let error = match refused.cause {
            // The text of the hook is no `details.reason`: those are names of the gateway.
            HookCause::Denied(reason) => {
                Self::new(StatusCode::FORBIDDEN, code, message).with("hook_reason", json!(reason))
            }
            // A result is not checked again: its tool was called, and its model is paid.
            HookCause::Unavailable => {
                let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
                if refused.moment.is_of_answer() {
                    error
                } else {
                    error.retryable_after(5)
                }
            }
        };
        error
            .with("hook", json!(refused.hook))
            .with("moment", json!(refused.moment))
    }
}
