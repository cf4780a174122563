//! Jobs: an act on many runs, which continues without its request.

use serde::{Deserialize, Serialize};

use crate::id::{JobId, RunId};
use crate::pause::reason_fault;
use crate::principal::Principal;
use crate::run::AgentRun;

/// Maximum runs of a job.
pub const MAX_JOB_RUNS: usize = 10_000;

/// Act of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    Cancel,
    Retry,
}

impl JobKind {
    /// Returns the name used on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
        }
    }

    /// Parses the name of a kind.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Cancel, Self::Retry]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }
}

/// Status of a job. The last two are terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    Queued,
    Running,
    Completed,
    /// Stopped between two batches of 50 runs; `done` and `failed` count the runs before.
    Cancelled,
}

/// Body of `POST /v1/runs/cancel` and `POST /v1/runs/retry`. The filters are in the query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    /// True: count the runs, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Maximum number of runs that the filters may match: the `count` of a dry run. Required without `dry_run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<u64>,
    /// 1 to 200 characters. The `status_reason` of cancelled runs. Not for a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl BulkRequest {
    /// Returns the JSON pointer of the first invalid member and the error message.
    pub fn fault(&self, kind: JobKind) -> Option<(&'static str, &'static str)> {
        if kind == JobKind::Retry && self.reason.is_some() {
            return Some(("/reason", "is for a cancel only; leave it out"));
        }
        if !self.dry_run && self.expect.is_none() {
            let message =
                "is required; send {\"dry_run\": true} first, and then the `count` of its answer";
            return Some(("/expect", message));
        }
        reason_fault(self.reason.as_deref())
    }
}

/// Response to a dry run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BulkPreview {
    /// Number of runs that match.
    pub count: u64,
    /// The first ten of them, in the order of the act.
    pub first: Vec<AgentRun>,
}

/// A job. Finished jobs are deleted after seven days.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BulkJob {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: JobId,
    pub kind: JobKind,
    pub status: JobStatus,
    /// Number of runs.
    pub total: u64,
    /// Runs on which the act had its effect, or that had ended before.
    pub done: u64,
    /// Runs that the gateway refused to change.
    pub failed: u64,
    /// The first ten failures.
    pub errors: Vec<JobError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The API key that started the job.
    pub created_by: Principal,
    /// Epoch seconds.
    pub created_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<i64>,
}

/// A run that a job could not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobError {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: RunId,
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requires_number_unless_dry_run() {
        let dry_run = BulkRequest {
            dry_run: true,
            ..BulkRequest::default()
        };
        assert_eq!(dry_run.fault(JobKind::Cancel), None);
        let pointer = |request: &BulkRequest, kind| request.fault(kind).map(|(pointer, _)| pointer);
        assert_eq!(
            pointer(&BulkRequest::default(), JobKind::Retry),
            Some("/expect")
        );
        let reasoned = BulkRequest {
            expect: Some(1),
            reason: Some("incident".to_owned()),
            ..BulkRequest::default()
        };
        assert_eq!(pointer(&reasoned, JobKind::Cancel), None);
        assert_eq!(pointer(&reasoned, JobKind::Retry), Some("/reason"));
    }
}
