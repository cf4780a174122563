//! A platform action to store.

use domain::canonical::canonical_json;
use domain::interaction::expires_at;
use domain::normalize::RunQuestion;
use domain::platform_action::CheckedAction;
use protocol::id::RunId;
use protocol::platform_action::{ActionApproval, PlatformActionStatus};
use secrets::digest::sha256_hex;
use uuid::Uuid;

use crate::error::signed;

/// A platform action to store.
#[derive(Clone, Debug)]
pub struct NewPlatformAction {
    pub id: Uuid,
    /// Sequence of the result that requests it. `None`: a host call requests it, and its event follows.
    pub sequence: Option<u64>,
    pub action: CheckedAction,
    /// Id of the question for approval.
    question_id: Option<Uuid>,
}

impl NewPlatformAction {
    /// The id is that of the run and idempotency key, so a repeated request has the same one.
    pub fn new(run: RunId, action: CheckedAction, sequence: Option<u64>) -> Self {
        let id = match &action.idempotency_key {
            Some(key) => keyed_id(run, key),
            None => Uuid::now_v7(),
        };
        let question_id = (action.approval == ActionApproval::Ask).then(Uuid::now_v7);
        Self {
            id,
            sequence,
            action,
            question_id,
        }
    }

    /// Status after the insert.
    pub fn status(&self) -> PlatformActionStatus {
        match self.question_id {
            Some(_) => PlatformActionStatus::AwaitingApproval,
            None => PlatformActionStatus::Open,
        }
    }

    /// True if a person decides about it.
    pub fn is_questioned(&self) -> bool {
        self.question_id.is_some()
    }

    /// Key of the row: unique in the run.
    pub(crate) fn key(&self) -> String {
        match &self.action.idempotency_key {
            Some(key) => format!("key:{key}"),
            None => format!("id:{}", self.id),
        }
    }

    pub(crate) fn request_sha256(&self) -> String {
        sha256_hex(format!("{}\n{}", self.action.action, self.action.request))
    }

    pub(crate) fn timeout_ms(&self) -> i64 {
        signed(self.action.timeout_seconds.saturating_mul(1000))
    }

    /// `at`: epoch milliseconds.
    pub(crate) fn question(&self, at: i64) -> Option<(Uuid, RunQuestion)> {
        let request = self.action.question(self.id);
        let question = RunQuestion {
            expires_at: expires_at(&request, at.div_euclid(1000)),
            request: canonical_json(&request),
            is_awaited: request.awaits,
            interaction_id: request.interaction_id,
        };
        self.question_id.map(|id| (id, question))
    }
}

fn keyed_id(run: RunId, key: &str) -> Uuid {
    let digest = sha256_hex(format!("{run}/{key}"));
    let half = digest.get(..32).unwrap_or_default();
    let bytes = u128::from_str_radix(half, 16).unwrap_or_default();
    uuid::Builder::from_custom_bytes(bytes.to_be_bytes()).into_uuid()
}
