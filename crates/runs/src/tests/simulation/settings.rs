//! Times of the simulation in milliseconds, and its fixed values.

use std::sync::OnceLock;
use std::time::Duration;

use domain::authorization::AuthorizationSnapshot;
use domain::normalize::ResultLimits;
use domain::run::Run;
use protocol::id::{AgentId, EndpointId, RunId, WorkspaceId};
use protocol::manifest::{AgentRunnerManifest, I18n};
use protocol::raw::RawJson;
use protocol::run::RunStatus;
use serde_json::json;
use uuid::Uuid;

pub(super) const LEASE: u64 = 3_000;
pub(super) const APPEND_LEASE: u64 = 2_500;
pub(super) const CREATED_AGE: u64 = 1_500;
pub(super) const SWEEP: u64 = 1_000;
/// Chance that a sweep takes a live owner for dead, in percent.
pub(super) const UNLOCKED: u64 = 10;
pub(super) const SILENCE: u64 = 2_000;
pub(super) const GRACE: u64 = 500;
pub(super) const FIRST_BYTE: u64 = 2_000;
pub(super) const DEADLINE: u64 = 9_000;
pub(super) const POLL: u64 = 400;
/// Time in which a resumable runner can be attached to.
pub(super) const RESUME_WITHIN: u64 = 6_000;
/// End of the faults. From here on all must come to rest.
pub(super) const HEALED: u64 = 12_000;
/// Latest time of rest.
pub(super) const REST: u64 = 90_000;
/// Maximum number of events, and thus of runs.
pub(super) const EVENTS: usize = 8;
/// Epoch milliseconds at the start.
const START: i64 = 1_700_000_000_000;

pub(super) const LIMITS: ResultLimits = ResultLimits {
    event_bytes: 4_000,
    run_bytes: 40_000,
    run_events: 60,
    state_value_bytes: 100,
};

pub(super) fn millis(time: u64) -> Duration {
    Duration::from_millis(time)
}

pub(super) fn epoch_ms(time: u64) -> i64 {
    START + i64::try_from(time).unwrap()
}

/// Manifest of a runner.
pub(in crate::tests) fn manifest(is_resumable: bool) -> AgentRunnerManifest {
    let id = "plugin:a/b/c".parse().unwrap();
    let mut manifest = AgentRunnerManifest::new(id, I18n::new());
    manifest.capabilities.resumable = is_resumable;
    manifest
}

pub(super) fn agent(number: usize) -> AgentId {
    AgentId(Uuid::from_u128(0xA0 + number as u128))
}

/// Id of the run of an event.
pub(in crate::tests) fn run_id(event: usize) -> RunId {
    RunId(Uuid::from_u128(0x100 + event as u128))
}

/// Number of the event of a run.
pub(super) fn event_of(id: RunId) -> usize {
    usize::try_from(id.0.as_u128() - 0x100).unwrap()
}

/// Snapshots of all runs.
pub(in crate::tests) fn snapshots() -> &'static [AuthorizationSnapshot] {
    static SNAPSHOTS: OnceLock<Vec<AuthorizationSnapshot>> = OnceLock::new();
    SNAPSHOTS.get_or_init(|| {
        let snapshot = |event| {
            serde_json::from_value(json!({
                "v": 1, "run_id": run_id(event), "workspace_id": "default", "agent_id": Uuid::nil(),
                "agent_version": 1, "runner_id": "plugin:a/b/c", "endpoint_id": Uuid::nil(),
                "event_id": "e", "conversation": null, "resources": {}, "available_apis": {},
                "operations": [], "state": {}, "decisions": [],
            }))
            .unwrap()
        };
        (0..EVENTS).map(snapshot).collect()
    })
}

/// A created run of an event.
pub(in crate::tests) fn run(
    event: usize,
    agent_number: usize,
    conversation: usize,
    now: u64,
) -> Run {
    Run {
        id: run_id(event),
        workspace: WorkspaceId("default".to_owned()),
        event_id: format!("event-{event}"),
        parent_run_id: None,
        retry_of: None,
        retry_from: None,
        posted_by: None,
        trace_parent: None,
        agent_id: agent(agent_number),
        agent_version: 1,
        runner_id: "plugin:a/b/c".parse().unwrap(),
        endpoint_id: EndpointId(Uuid::nil()),
        conversation_key: Some(format!("conversation-{conversation}")),
        status: RunStatus::Created,
        status_reason: None,
        attempt: 0,
        fencing_token: 0,
        last_sequence: 0,
        deadline_at: epoch_ms(now + DEADLINE),
        cancel_requested_at: None,
        cancelled_by: None,
        snapshot_sha256: String::new(),
        output: None,
        error: None,
        usage: None,
        metadata: RawJson::from(json!({})),
        created_at: epoch_ms(now),
        started_at: None,
        finished_at: None,
        pruned_at: None,
    }
}
