//! Errors of endpoint registration.

use serde_json::json;

use super::api_error::ApiError;
use runs::discovery::RegisterError;

impl From<RegisterError> for ApiError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Faults(faults) => Self::faults(&faults),
            RegisterError::NameTaken => Self::conflict("name_taken", error.to_string()),
            RegisterError::Conflict(taken) => {
                let taken: Vec<_> = taken
                    .iter()
                    .map(|(runner, endpoint)| json!({"runner_id": runner, "endpoint": endpoint}))
                    .collect();
                let message = "runner ids are served by another endpoint; name it in `replaces`";
                Self::conflict("runner_id_taken", message).with("runners", json!(taken))
            }
            RegisterError::Store(error) => error.into(),
        }
    }
}
