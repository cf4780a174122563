//! Waits for the answer to a question of a live run, on any replica.

use std::pin::pin;
use std::time::Duration;

use protocol::interaction::AwaitedInteraction;
use store::{AwaitedRecord, CloseAwaited, StoreError};
use tokio::time::Instant;

use crate::Runs;
use crate::doorbell::Bell;
use crate::grant::Grant;
use crate::over::{LastLook, Over};

/// A call may come before the result that asks is committed: it is looked for so long, within the call's own wait.
const COMMIT_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks for a question that is not there yet, and the least between any two.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Why a call cannot wait for an answer.
#[derive(Debug, thiserror::Error)]
pub enum AwaitError {
    #[error("the run has asked no question of this id")]
    Unknown,
    #[error("the question was asked without `await`: its answer is an event")]
    NotAwaited,
    #[error("as many calls of the run wait for answers as may")]
    Full,
    #[error("the run is over")]
    Over(Over),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One look at a question.
enum Looked {
    /// It is not committed, or was not asked.
    Absent,
    /// It can be answered until then, in epoch milliseconds.
    Open {
        expires_at: i64,
    },
    Final(AwaitedInteraction),
}

impl Runs {
    /// The state of a question of a live run, by the id that its runner chose: at once when it is final, else when it
    /// is or `wait` is over. A gateway that stops says `open` at once.
    pub async fn await_interaction(
        &self,
        grant: &Grant,
        id: &str,
        wait: Duration,
    ) -> Result<AwaitedInteraction, AwaitError> {
        let _place = self.begin_interaction_wait(grant).ok_or(AwaitError::Full)?;
        let bell = Bell::of(&self.0, grant.run.id);
        let began = Instant::now();
        let (give_up, absent_until) = (began + wait, began + wait.min(COMMIT_PATIENCE));
        let last_look = LastLook::default();
        let mut over = pin!(self.until_over(grant, &last_look));
        loop {
            let rings = bell.ring();
            let mut rung = pin!(rings.notified());
            // Enabled before the look: no ring is missed.
            rung.as_mut().enable();
            let looked_at = Instant::now();
            let next_look = match self.look_at_interaction(grant, id).await? {
                Looked::Final(state) => return Ok(state),
                Looked::Absent if looked_at >= absent_until => return Err(AwaitError::Unknown),
                Looked::Absent => looked_at + BETWEEN_LOOKS,
                Looked::Open { .. } if self.is_cancel_requested(grant) => {
                    return Ok(AwaitedInteraction::Cancelled);
                }
                Looked::Open { .. } if looked_at >= give_up => return Ok(AwaitedInteraction::Open),
                Looked::Open { expires_at } => {
                    let expires = looked_at + self.until_ms(expires_at);
                    expires.min(looked_at + self.0.limits.poll)
                }
            };
            tokio::select! {
                () = &mut rung => tokio::time::sleep_until(looked_at + BETWEEN_LOOKS).await,
                () = tokio::time::sleep_until(next_look.min(give_up)) => {}
                over = &mut over => return self.interaction_when_over(grant, id, over).await,
            }
        }
    }

    /// The last word on a question of a run that is over or is being cancelled.
    async fn interaction_when_over(
        &self,
        grant: &Grant,
        id: &str,
        over: Over,
    ) -> Result<AwaitedInteraction, AwaitError> {
        let looked = match over {
            Over::Cancelled | Over::Stopping => self.look_at_interaction(grant, id).await?,
            Over::Ended | Over::Deadline => return Err(AwaitError::Over(over)),
        };
        match (looked, over) {
            (Looked::Final(state), _) => Ok(state),
            (Looked::Absent, _) => Err(AwaitError::Over(over)),
            (Looked::Open { .. }, Over::Cancelled) => Ok(AwaitedInteraction::Cancelled),
            (Looked::Open { .. }, _) => Ok(AwaitedInteraction::Open),
        }
    }

    async fn look_at_interaction(&self, grant: &Grant, id: &str) -> Result<Looked, AwaitError> {
        let find = || self.0.store.interactions().find_awaited(grant.run.id, id);
        let Some(mut record) = find().await? else {
            return Ok(Looked::Absent);
        };
        let now = self.0.clock.now_ms();
        if record.given.is_none()
            && !record.is_closed
            && record.is_awaited
            && record.expires_at <= now
        {
            // Closed first: no answer is taken after the run was told that there is none.
            let close = CloseAwaited {
                workspace: grant.run.workspace.clone(),
                run_id: grant.run.id,
                interaction_id: id.to_owned(),
                at: now,
            };
            self.0.store.write(close).await?;
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
                Ok(Looked::Final(state))
            }
            AwaitedRecord {
                is_closed: true, ..
            } => Ok(Looked::Final(AwaitedInteraction::Expired)),
            AwaitedRecord { expires_at, .. } => Ok(Looked::Open { expires_at }),
        }
    }

    /// How long until a time in epoch milliseconds.
    fn until_ms(&self, at: i64) -> Duration {
        let left = at - self.0.clock.now_ms();
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }
}
