//! Errors of changes to webhooks.

use super::api_error::ApiError;
use runs::webhooks::WebhookError;

impl From<WebhookError> for ApiError {
    fn from(error: WebhookError) -> Self {
        match error {
            WebhookError::Faults(faults) => Self::faults(&faults),
            WebhookError::NameTaken => Self::conflict("name_taken", error.to_string()),
            WebhookError::Busy => Self::rate_limited_by("webhook_tests", error.to_string(), 5),
            WebhookError::Store(error) => error.into(),
        }
    }
}
