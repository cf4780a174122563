//! A host call that goes out of the house: allowed first, audited from its beginning to its end, and given
//! up with its run.

use std::sync::Arc;

use domain::authorization::NotGranted;
use futures_util::{Stream, StreamExt as _, stream};
use protocol::message::LlmTokenUsage;
use store::{AuditEntry, AuditOutcome};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;
use uuid::Uuid;

use crate::ApiState;
use crate::auth::{Call, RunCaller};
use crate::error::{ApiError, ApiResult, Consumed};
use egress::upstream::UpstreamError;
use models::Paid;
use runs::Runs;
use runs::grant::Grant;
use runs::over::LastLook;
use telemetry::spans::Begun;

mod spending;
mod traced;

use spending::{Ended, Spending};
pub(super) use spending::{Spend, micros};
use traced::Traced;

/// The call of a runner to a provider. Dropped before its end (the runner has gone), it is audited as
/// `abandoned`.
pub(super) struct HostCall {
    runs: Runs,
    grant: Arc<Grant>,
    id: Uuid,
    bytes: u64,
    spending: Option<Spending>,
    traced: Traced,
    ended: bool,
    /// One of the places that its run has for such calls.
    place: Option<OwnedSemaphorePermit>,
    last_look: LastLook,
    _under_way: TaskTrackerToken,
}

impl RunCaller {
    /// Begins a call that the snapshot grants, and records the answer either way.
    pub(super) async fn begin<T>(
        &self,
        state: &ApiState,
        call: Call<'_>,
        asked: Result<T, NotGranted>,
    ) -> ApiResult<(HostCall, T)> {
        let refusal = asked.as_ref().err().map(ToString::to_string);
        let entry = self.audit_entry(state, call, refusal.as_deref(), 0);
        let begun = self.begun(state, entry).await?;
        Ok((begun, asked?))
    }

    /// Begins a call that this rule allows without a grant, and records the rule.
    pub(super) async fn begin_by(
        &self,
        state: &ApiState,
        call: Call<'_>,
        rule: &'static str,
    ) -> ApiResult<HostCall> {
        let mut entry = self.audit_entry(state, call, None, 0);
        entry.rule = rule.into();
        self.begun(state, entry).await
    }

    async fn begun(&self, state: &ApiState, entry: AuditEntry) -> ApiResult<HostCall> {
        self.access.check_known(state).await?;
        // Check the memory for the answer before the call: its effect cannot be undone.
        self.answer.has_room()?;
        let (id, allowed) = (entry.id, entry.allowed);
        state.runs.store().audit(entry).await?;
        Ok(HostCall {
            runs: state.runs.clone(),
            grant: Arc::clone(&self.grant),
            id,
            bytes: 0,
            spending: None,
            traced: Traced {
                begun: Begun::now(*state.runs.clock()),
                told: self.trace_parent,
                span: None,
                fault: None,
            },
            ended: !allowed,
            place: None,
            last_look: LastLook::default(),
            _under_way: state.runs.under_way(),
        })
    }
}

impl HostCall {
    /// Keeps the place that was taken for it, until it is dropped; 429 for this reason where all are taken.
    pub(super) fn keep(
        &mut self,
        place: Option<OwnedSemaphorePermit>,
        (reason, message): (&str, &str),
    ) -> ApiResult<()> {
        let full = || ApiError::rate_limited_by(reason, message.to_owned(), 1);
        self.place = Some(place.ok_or_else(full)?);
        Ok(())
    }

    /// Takes the most that it may use out of the budgets that it counts for: 429 when it does not fit. Providers of
    /// vectors want the [`Paid`] that this gives.
    pub(super) async fn reserve(&mut self, spend: Spend) -> ApiResult<Paid> {
        let spending = Spending::reserve(&self.runs, &self.grant, self.id, spend).await?;
        self.spending = Some(spending);
        Ok(Paid::reserved())
    }

    /// Counts what a provider of vectors has read: what it told, else what was reserved, and nothing where none was asked.
    pub(super) fn count_paid(&mut self, paid: &Paid) {
        if paid.is_used() {
            self.count(paid.counted());
        } else if let Some(spending) = &mut self.spending {
            spending.read_nothing();
        }
    }

    /// What the provider has counted.
    pub(super) fn count(&mut self, usage: Option<LlmTokenUsage>) {
        if let (Some(spending), Some(usage)) = (&mut self.spending, usage) {
            spending.count(usage);
        }
    }

    /// Text that the model has said, in bytes: what counts where its provider does not.
    pub(super) fn say(&mut self, bytes: usize) {
        if let Some(spending) = &mut self.spending {
            spending.say(bytes);
        }
    }

    /// Does it while the run lives: a cancel, an end or the deadline of the run ends it.
    pub(super) async fn within<T, E: Into<ApiError>>(
        &self,
        doing: impl Future<Output = Result<T, E>>,
    ) -> ApiResult<T> {
        tokio::select! {
            done = doing => done.map_err(Into::into),
            over = self.runs.until_over(&self.grant, &self.last_look) => Err(over.into()),
        }
    }

    /// What comes while the run lives. The first error, the run's end among them, is the last item.
    pub(super) fn while_live<T, S>(&self, items: S) -> impl Stream<Item = ApiResult<T>> + use<T, S>
    where
        S: Stream<Item = Result<T, UpstreamError>> + Unpin,
    {
        let (runs, grant) = (self.runs.clone(), Arc::clone(&self.grant));
        let over = Box::pin(async move { runs.until_over(&grant, &LastLook::default()).await });
        let items = items.take_until(over);
        stream::unfold(Some(items), |items| async move {
            let mut items = items?;
            match items.next().await {
                Some(Ok(item)) => Some((Ok(item), Some(items))),
                Some(Err(error)) => Some((Err(error.into()), None)),
                None => items.take_result().map(|over| (Err(over.into()), None)),
            }
        })
    }

    /// Counts bytes that went to the runner.
    pub(super) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Ends it with what came of it.
    pub(super) fn end<T>(mut self, result: ApiResult<T>) -> ApiResult<T> {
        let failed = result.as_ref().err();
        let consumed = failed.map_or(Consumed::WhatCame, ApiError::consumed);
        self.record(failed.map_or("ok", ApiError::code), consumed);
        result
    }

    fn record(&mut self, outcome: &'static str, consumed: Consumed) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let wall_ms = u64::try_from(self.traced.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let run_id = self.grant.run.id;
        let ended = Ended {
            id: self.id,
            workspace: self.grant.run.workspace.clone(),
            run_id,
            outcome,
            consumed,
            wall_ms,
            at: self.runs.clock().now_ms(),
        };
        let used = self.spending.take().map(|spending| spending.settle(ended));
        let of_model = used.as_ref().map(|used| &used.call);
        let of_model = of_model.filter(|call| call.kind == "model");
        let counted =
            of_model.map(|call| (call.prompt_tokens, call.completion_tokens, call.is_estimate));
        self.tell(outcome, counted);
        let outcome = AuditOutcome {
            id: self.id,
            run_id,
            bytes: self.bytes,
            outcome,
            duration_ms: i64::try_from(wall_ms).unwrap_or(i64::MAX),
        };
        self.runs.record_later(outcome, used);
    }
}

impl Drop for HostCall {
    fn drop(&mut self) {
        self.record("abandoned", Consumed::Unheard);
    }
}
