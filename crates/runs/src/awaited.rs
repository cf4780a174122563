//! Waits for the answer to a question of a live run, on any replica.

use std::sync::Arc;
use std::time::Duration;

use domain::approval::{ApprovalDecision, HeldCall, decision_of, denial_reason, question};
use domain::canonical::canonical_json;
use domain::interaction::MAX_SECONDS;
use domain::normalize::RunQuestion;
use protocol::approval::ApprovalScope;
use protocol::interaction::AwaitedInteraction;
use store::{
    AskAboutCall, AskAboutRun, AskedAboutCall, AuditEntry, AwaitedRecord, CloseAwaited, StoreError,
    sha256_hex,
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::call_abort::{AbortReason, CallAborts};
use crate::call_limits::CallKind;
use crate::call_wait::{BETWEEN_LOOKS, CallWait, Looked, WaitError, Waited};
use crate::deps::RunDeps;
use crate::grant::Grant;

/// Time for the result with the question to be committed, within the call's own wait. A call may come earlier.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Cause of a call that cannot wait for an answer.
#[derive(Debug, thiserror::Error)]
pub enum AwaitError {
    #[error("the run has no question with this id")]
    Unknown,
    #[error("the question has no `await`: its answer is an event")]
    NotAwaited,
    #[error(transparent)]
    Wait(#[from] WaitError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Decision about a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallDecision {
    /// An approval exists.
    Allowed,
    Denied {
        reason: Option<String>,
    },
    /// No decision yet. `question`: the gateway's id.
    Open {
        question: String,
    },
    Expired,
    Cancelled,
    /// The arguments are too long for a question.
    TooLong,
    /// The run has as many questions about calls as amendments may add to.
    Full,
}

impl CallDecision {
    fn of(state: AwaitedInteraction, question: String) -> Self {
        match state {
            AwaitedInteraction::Submitted {
                action_id, values, ..
            } => match decision_of(action_id.as_deref()) {
                Some(
                    ApprovalDecision::Once | ApprovalDecision::Conversation | ApprovalDecision::Run,
                ) => Self::Allowed,
                // An unknown action allows nothing.
                Some(ApprovalDecision::Deny) | None => Self::Denied {
                    reason: denial_reason(&values),
                },
            },
            AwaitedInteraction::Open => Self::Open { question },
            AwaitedInteraction::Expired => Self::Expired,
            AwaitedInteraction::Cancelled => Self::Cancelled,
        }
    }
}

/// State of a question in the database.
enum QuestionState {
    /// The question is not committed, or does not exist.
    Absent,
    /// The question can be answered until `expires_at`, in epoch milliseconds.
    Open {
        expires_at: i64,
    },
    Final(AwaitedInteraction),
}

/// Waits for the answers to questions of live runs.
pub struct AwaitedInteractions {
    pub(super) deps: Arc<RunDeps>,
    pub(super) aborts: CallAborts,
}

impl AwaitedInteractions {
    /// Asks a question of the gateway about a live run, and waits until its state is final. Calls with the same id wait
    /// for the same answer. A stopping gateway returns `open`.
    pub async fn ask(
        &self,
        grant: &Grant,
        question: RunQuestion,
    ) -> Result<AwaitedInteraction, AwaitError> {
        let id = question.interaction_id.clone();
        let at = self.deps.clock.now_ms();
        let wait = self
            .deps
            .time_until(question.expires_at.saturating_mul(1000))
            + COMMIT_TIMEOUT;
        let asking = self.deps.store.write(AskAboutRun {
            id: Uuid::now_v7(),
            workspace: grant.run.workspace.clone(),
            run_id: grant.run.id,
            question,
            at,
        });
        if !asking.await? {
            return Err(WaitError::Over(AbortReason::Ended).into());
        }
        // Lists of questions learn of it on each replica.
        self.deps.notifier.notify_question(grant.run.id);
        self.await_interaction(grant, &id, wait).await
    }

    /// Asks whether a live run may call a tool, and waits for the decision. Equal calls wait for the same question.
    /// `denial`: audit row of a call that needs an amendment. `wait`: maximum; `None`: until the question is final.
    pub async fn ask_about_call(
        &self,
        grant: &Grant,
        call: &HeldCall,
        denial: Option<AuditEntry>,
        wait: Option<Duration>,
    ) -> Result<CallDecision, AwaitError> {
        let now = self.deps.clock.now_ms();
        let expires_at = now.div_euclid(1000) + MAX_SECONDS;
        let id = Uuid::now_v7();
        let widest = match grant.run.conversation_key {
            Some(_) => ApprovalScope::Conversation,
            None => ApprovalScope::Run,
        };
        // The id of the question is not predictable, so a runner cannot ask under it before.
        let request = question(&format!("tool_ask.{id}"), call, widest, expires_at);
        let Some(request) = request else {
            return Ok(CallDecision::TooLong);
        };
        let text = call.text();
        let asking = self.deps.store.write(AskAboutCall {
            id,
            workspace: grant.run.workspace.clone(),
            run_id: grant.run.id,
            question: RunQuestion {
                expires_at,
                request: canonical_json(&request),
                is_awaited: request.awaits,
                interaction_id: request.interaction_id,
            },
            call_sha256: sha256_hex(text.as_bytes()),
            call: text,
            denial,
            at: now,
        });
        let (question_id, interaction_id) = match asking.await? {
            AskedAboutCall::Open { id, interaction_id } => (id, interaction_id),
            AskedAboutCall::Denied(answer) => return Ok(CallDecision::of(answer, String::new())),
            AskedAboutCall::Full => return Ok(CallDecision::Full),
            AskedAboutCall::RunEnded => return Err(WaitError::Over(AbortReason::Ended).into()),
        };
        if question_id == id.to_string() {
            // Lists of questions learn of it on each replica.
            self.deps.notifier.notify_question(grant.run.id);
        }
        let longest = Duration::from_secs(MAX_SECONDS.unsigned_abs()) + COMMIT_TIMEOUT;
        let wait = wait.unwrap_or(longest);
        let state = self.await_interaction(grant, &interaction_id, wait).await?;
        Ok(CallDecision::of(state, question_id))
    }

    /// State of a question of a live run, by the id that its runner chose. It returns when the state is final or
    /// `wait` is over. A stopping gateway returns `open` at once.
    pub async fn await_interaction(
        &self,
        grant: &Grant,
        id: &str,
        wait: Duration,
    ) -> Result<AwaitedInteraction, AwaitError> {
        let kind = CallKind::InteractionWait;
        let call = CallWait::begin(&self.aborts, grant, kind, grant.run.id)?;
        let began = Instant::now();
        let (deadline, absent_until) = (began + wait, began + wait.min(COMMIT_TIMEOUT));
        let waited = call.until_done(|looked_at| async move {
            let next_look = match self.look_at_interaction(grant, id).await? {
                QuestionState::Final(state) => return Ok(Looked::Done(state)),
                // The runner may call before the result with its question is committed.
                QuestionState::Absent if looked_at >= absent_until => {
                    return Err(AwaitError::Unknown);
                }
                QuestionState::Absent => looked_at + BETWEEN_LOOKS,
                QuestionState::Open { .. } if self.deps.live.is_cancel_requested(grant) => {
                    return Ok(Looked::Done(AwaitedInteraction::Cancelled));
                }
                QuestionState::Open { .. } if looked_at >= deadline => {
                    return Ok(Looked::Done(AwaitedInteraction::Open));
                }
                QuestionState::Open { expires_at } => {
                    let expires_in = self.deps.time_until(expires_at);
                    looked_at + expires_in.min(self.deps.limits.poll)
                }
            };
            Ok(Looked::Again(next_look.min(deadline)))
        });
        match waited.await? {
            Waited::Done(state) => Ok(state),
            Waited::Over(over) => self.interaction_when_over(grant, id, over).await,
        }
    }

    /// State of a question whose run has ended or is being cancelled.
    async fn interaction_when_over(
        &self,
        grant: &Grant,
        id: &str,
        over: AbortReason,
    ) -> Result<AwaitedInteraction, AwaitError> {
        let looked = match over {
            AbortReason::Cancelled | AbortReason::Stopping => {
                self.look_at_interaction(grant, id).await?
            }
            AbortReason::Ended | AbortReason::Deadline => return Err(WaitError::Over(over).into()),
        };
        match (looked, over) {
            (QuestionState::Final(state), _) => Ok(state),
            (QuestionState::Absent, _) => Err(WaitError::Over(over).into()),
            (QuestionState::Open { .. }, AbortReason::Cancelled) => {
                Ok(AwaitedInteraction::Cancelled)
            }
            (QuestionState::Open { .. }, _) => Ok(AwaitedInteraction::Open),
        }
    }

    async fn look_at_interaction(
        &self,
        grant: &Grant,
        id: &str,
    ) -> Result<QuestionState, AwaitError> {
        let find = || {
            self.deps
                .store
                .interactions()
                .find_awaited(grant.run.id, id)
        };
        let Some(mut record) = find().await? else {
            return Ok(QuestionState::Absent);
        };
        let now = self.deps.clock.now_ms();
        if record.given.is_none()
            && !record.is_closed
            && record.is_awaited
            && record.expires_at <= now
        {
            // Closed before the response: no answer may be accepted once the run has received `expired`.
            let close = CloseAwaited {
                workspace: grant.run.workspace.clone(),
                run_id: grant.run.id,
                interaction_id: id.to_owned(),
                at: now,
            };
            self.deps.store.write(close).await?;
            // Read again: an answer may have been stored before the close.
            record = find().await?.ok_or(AwaitError::Unknown)?;
        }
        match record {
            AwaitedRecord {
                is_awaited: false, ..
            } => Err(AwaitError::NotAwaited),
            AwaitedRecord {
                given: Some(given), ..
            } => {
                let state = serde_json::from_str(&given).map_err(|_| StoreError::Corrupt {
                    column: "interactions.given_answer",
                    row: grant.run.id.to_string(),
                })?;
                Ok(QuestionState::Final(state))
            }
            AwaitedRecord {
                is_closed: true, ..
            } => Ok(QuestionState::Final(AwaitedInteraction::Expired)),
            AwaitedRecord { expires_at, .. } => Ok(QuestionState::Open { expires_at }),
        }
    }
}
