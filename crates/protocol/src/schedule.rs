//! Schedules: events at planned times, and runs that wake their agent later (`docs/schedules.md`).

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::context::{ActorContext, AgentInput, DeliveryContext, SubjectContext};
use crate::event::EventConversation;
use crate::id::{AgentId, RunId, ScheduleId};
use crate::principal::Principal;
use crate::run::RunStatus;

/// Event type of an occurrence of a schedule.
pub const SCHEDULE_TRIGGERED: &str = "schedule.triggered";
/// Event type of a wake.
pub const AGENT_WAKE: &str = "agent.wake";

/// Due times that passed while no replica ran, for more than a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// None of them runs.
    Skip,
    /// The newest of them runs.
    #[default]
    Once,
    /// The newest 100 of them run.
    All,
}

/// Content of the events of a schedule. All members are optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct EventTemplate {
    // Type, id and time are those of the occurrence, so a template has none.
    /// Input for the agent, without attachments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<AgentInput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<String>,
    /// Language of the answer, such as `en_US`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// Conversation of the runs. Absent: they belong to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<EventConversation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<ActorContext>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<SubjectContext>,
    pub delivery: DeliveryContext,
    /// Additional data. The gateway adds the member `schedule`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
}

/// Body of `POST /v1/schedules` and `PUT /v1/schedules/{schedule_id}`, with the keys of `[[schedules]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// 1 to 128 bytes, unique in the workspace.
    pub name: String,
    /// Id or name of the agent that gets the events. Absent: event types and scopes of the agents decide, as for a posted
    /// event. Required without `event`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Content of the events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventTemplate>,
    /// Cron expression: minute, hour, day, month, weekday, or six fields with seconds first. Excludes `every`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Interval from 1 second to 366 days, such as `90s`, `15m`, `6h` or `1d`. It counts from `starts_at`, or else from the
    /// creation. Excludes `cron`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// IANA time zone of `cron`, such as `Europe/Berlin`. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Maximum random delay of each occurrence, such as `5m`, at most one day. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<String>,
    /// First possible due time, in epoch seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<i64>,
    /// Last possible due time, in epoch seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<i64>,
    /// Handling of missed due times. Default: `once`.
    #[serde(default)]
    pub misfire: Misfire,
    /// Default: true. False: it has no due times.
    #[serde(default = "enabled")]
    #[cfg_attr(feature = "openapi", schema(default = true))]
    pub enabled: bool,
}

fn enabled() -> bool {
    // serde takes a function only.
    true
}

/// A schedule. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Schedule {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: ScheduleId,
    /// `config` or `api`.
    pub origin: String,
    /// The agent of `agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// Time of the pause, while it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<i64>,
    /// The next due times, at most five, without jitter. Empty if disabled, paused or over.
    pub next_due: Vec<i64>,
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    pub updated_by: Principal,
    // The settings of a request, so that a changed copy can be sent back.
    #[serde(flatten)]
    pub spec: ScheduleSpec,
}

/// Status of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OccurrenceStatus {
    /// Waits for its jitter, for a replica, or for another try.
    Pending,
    /// Its event is stored.
    Triggered,
    /// Missed, and not run because of `misfire`.
    Skipped,
    /// Its event was refused; `reason` has the cause.
    Failed,
    /// A wake that a run cancelled.
    Cancelled,
}

impl OccurrenceStatus {
    /// Returns the name used on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        // Stored names: a changed one would need a migration.
        match self {
            Self::Pending => "pending",
            Self::Triggered => "triggered",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Parses the name of a status.
    pub fn parse(text: &str) -> Option<Self> {
        // A newer gateway may have stored another name.
        [
            Self::Pending,
            Self::Triggered,
            Self::Skipped,
            Self::Failed,
            Self::Cancelled,
        ]
        .into_iter()
        .find(|status| status.as_str() == text)
    }
}

/// An occurrence of a schedule, with its run. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleOccurrence {
    /// Id of its event: `schedule/{schedule_id}/{due time}`.
    pub event_id: String,
    pub due_at: i64,
    /// True for `POST /v1/schedules/{schedule_id}/run`.
    pub manual: bool,
    pub status: OccurrenceStatus,
    /// Cause of a failure, of a skip, of the last refused try, or of a missing run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    // Of the time of the response: a list of occurrences needs no further request.
    /// Current status of the run, as long as the run is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_status: Option<RunStatus>,
    /// Tries to store the event.
    pub tries: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<i64>,
}

/// The newest occurrences of a schedule, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OccurrenceList {
    pub items: Vec<ScheduleOccurrence>,
}

/// Maximum characters of the key of a wake.
pub const WAKE_KEY_CHARS: usize = 128;
/// Maximum bytes of `data` of a wake, as JSON.
pub const WAKE_DATA_BYTES: usize = 16 * 1024;
/// Maximum pending wakes of an agent.
pub const MAX_AGENT_WAKES: u64 = 1000;
/// Latest time of a wake after its request, in seconds: 366 days.
pub const MAX_WAKE_SECONDS: i64 = 366 * 24 * 3600;

/// Body of `POST /host/v1/schedules`: `at` or `after_seconds` is required.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WakeRequest {
    /// Key of the wake, 1 to 128 characters. A conversation of the agent has at most one wake with this key.
    pub key: String,
    /// Time of the wake, in epoch seconds, at most 366 days from now. A time of the past wakes at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<i64>,
    /// Time until the wake, in seconds: 0 to 31,622,400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_seconds: Option<i64>,
    /// Becomes `data.wake.data` of the event, at most 16 KiB as JSON.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
}

/// A wake of the run's agent. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentWake {
    pub key: String,
    pub at: i64,
    pub status: OccurrenceStatus,
    /// Id of its event.
    pub event_id: String,
    pub created_at: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_names_equal_stored_names() {
        for name in ["pending", "triggered", "skipped", "failed", "cancelled"] {
            let status = OccurrenceStatus::parse(name).unwrap();
            assert_eq!(serde_json::to_value(status).unwrap(), name);
        }
        assert_eq!(OccurrenceStatus::parse("other"), None);
    }
}
