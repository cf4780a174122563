//! Errors of changes to sources.

use super::api_error::ApiError;
use runs::sources::SourceError;

impl From<SourceError> for ApiError {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Faults(faults) => Self::faults(&faults),
            SourceError::NameTaken => Self::conflict("name_taken", error.to_string()),
            SourceError::Store(error) => error.into(),
        }
    }
}
