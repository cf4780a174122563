//! Errors of changes to schedules, and of wakes.

use protocol::schedule::MAX_AGENT_WAKES;
use runs::schedules::{ScheduleError, WakeError};

use super::api_error::ApiError;
use super::routing;

impl From<ScheduleError> for ApiError {
    fn from(error: ScheduleError) -> Self {
        match error {
            ScheduleError::Faults(faults) => Self::faults(&faults),
            ScheduleError::NameTaken => Self::conflict("name_taken", error.to_string()),
            ScheduleError::Store(error) => error.into(),
        }
    }
}

impl From<WakeError> for ApiError {
    fn from(error: WakeError) -> Self {
        match error {
            WakeError::Mismatch => {
                let message =
                    "another wake of this conversation has this key; cancel it, or use a new key";
                Self::conflict("key_mismatch", message)
            }
            WakeError::TooMany => {
                let message = format!(
                    "this agent has {MAX_AGENT_WAKES} pending wakes, the most that it may; cancel one of them first"
                );
                Self::conflict("too_many_wakes", message)
            }
            WakeError::TooLate => {
                let message = "this wake is due already; its event is stored, or will be";
                Self::conflict("wake_due", message)
            }
            WakeError::Unknown => {
                routing::no_such("this agent has no wake with this key in this conversation")
            }
            WakeError::Over(over) => over.into(),
            WakeError::Store(error) => error.into(),
        }
    }
}
