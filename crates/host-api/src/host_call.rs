//! Host calls to external services. A call is authorized, audited from begin to end, and aborted when its run
//! ends.

use std::fmt::Display;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures_util::{Stream, StreamExt as _, stream};
use protocol::id::ApprovalId;
use protocol::message::LlmTokenUsage;
use store::{ApprovalReference, AuditEntry, AuditOutcome, TicketEffect};
use tokio_util::task::task_tracker::TaskTrackerToken;
use uuid::Uuid;

use egress::upstream::UpstreamError;
use models::Payment;
use runs::Runs;
use runs::call_abort::RowPoll;
use runs::call_limits::{CallKind, CallPermit};
use runs::grant::Grant;
use telemetry::spans::SpanStart;
use web::auth::{AuditedCall, RunCaller};
use web::error::{ApiError, ApiResult, BillingOutcome};
use web::state::ApiState;

mod attempt_error;
mod budget_errors;
mod spend;
mod spending;
mod traced;

pub(super) use attempt_error::AttemptError;
pub(super) use spend::{CompletionTokens, Spend};
use spending::{EndedCall, Spending};
use traced::CallTrace;

/// A runner's call to a provider. If it is dropped early (the runner disconnected), the audit log records
/// `abandoned`.
pub(super) struct HostCall {
    runs: Runs,
    grant: Arc<Grant>,
    id: Uuid,
    bytes: u64,
    spending: Option<Spending>,
    traced: CallTrace,
    ended: bool,
    /// The run's concurrency slot for such calls.
    permit: Option<CallPermit>,
    last_look: RowPoll,
    /// Ticket and effect of a tool call. A mutex, because the call is shared while its future runs.
    effect: Mutex<Option<TicketEffect>>,
    /// Approval that a tool call used.
    approval: OnceLock<ApprovalId>,
    /// Actor whose token a tool call used.
    on_behalf_of: OnceLock<String>,
    _under_way: TaskTrackerToken,
}

impl HostCall {
    /// Begins a call if the snapshot grants it, and audits the decision.
    pub(super) async fn begin<T, E: Display + Into<ApiError>>(
        caller: &RunCaller,
        state: &ApiState,
        call: AuditedCall<'_>,
        permission: Result<T, E>,
    ) -> ApiResult<(Self, T)> {
        Self::begin_approved(caller, state, call, permission, None).await
    }

    /// Like `begin`, and records the question that the runner names as approval of the call.
    pub(super) async fn begin_approved<T, E: Display + Into<ApiError>>(
        caller: &RunCaller,
        state: &ApiState,
        call: AuditedCall<'_>,
        permission: Result<T, E>,
        approval: Option<&ApprovalReference>,
    ) -> ApiResult<(Self, T)> {
        let refusal = permission.as_ref().err().map(ToString::to_string);
        let mut entry = caller.audit_entry(state, call, refusal.as_deref(), 0);
        if let Some(approval) = approval.filter(|_| entry.allowed) {
            let store = state.runs.store();
            let run = &caller.grant.run;
            entry.interaction_id = store.interactions().find_approval(run, approval).await?;
        }
        let begun = Self::begun(caller, state, entry).await?;
        Ok((begun, permission.map_err(Into::into)?))
    }

    /// Begins a call that a rule allows without a grant, and audits the rule.
    pub(super) async fn begin_by(
        caller: &RunCaller,
        state: &ApiState,
        call: AuditedCall<'_>,
        rule: &'static str,
    ) -> ApiResult<Self> {
        let mut entry = caller.audit_entry(state, call, None, 0);
        entry.rule = rule.into();
        Self::begun(caller, state, entry).await
    }

    async fn begun(caller: &RunCaller, state: &ApiState, entry: AuditEntry) -> ApiResult<Self> {
        // The run may have ended since the token was checked.
        caller.access.check_local(state).await?;
        // Check the memory for the response before the call: its effect cannot be undone.
        caller.answer.check_available()?;
        let (id, allowed) = (entry.id, entry.allowed);
        // Committed before the provider is called: no call is without an entry.
        state.runs.store().audit_log().audit(entry).await?;
        Ok(Self {
            runs: state.runs.clone(),
            grant: Arc::clone(&caller.grant),
            id,
            bytes: 0,
            spending: None,
            traced: CallTrace {
                begun: SpanStart::now(*state.runs.clock()),
                trace_parent: caller.trace_parent,
                span: None,
                fault: None,
            },
            // A denied call has its outcome in the entry already.
            ended: !allowed,
            permit: None,
            last_look: RowPoll::default(),
            effect: Mutex::default(),
            approval: OnceLock::new(),
            on_behalf_of: OnceLock::new(),
            // A shutdown waits for this token, so that the outcome is still written.
            _under_way: state.runs.aborts.track_call(),
        })
    }

    /// Takes a concurrency slot of the run until the call is dropped. Without a free slot, fails with 429.
    pub(super) fn take_slot(&mut self, kind: CallKind) -> ApiResult<()> {
        self.permit = Some(self.runs.calls().begin(&self.grant, kind)?);
        Ok(())
    }

    /// Reserves the upper bound of the call's use in each budget that applies. Fails with 429 if it does not
    /// fit, or waits for a raise. Provider calls need the returned [`Payment`].
    pub(super) async fn reserve(&mut self, spend: Spend) -> ApiResult<Arc<Payment>> {
        let spending = Spending::reserve(&self.runs, &self.grant, self.id, spend).await?;
        let paid = spending.payment();
        self.spending = Some(spending);
        Ok(paid)
    }

    /// Reserves more for a stream that uses more than expected. Fails when a budget has nothing left.
    pub(super) async fn grow(&mut self) -> ApiResult<()> {
        match &mut self.spending {
            Some(spending) => spending.grow(&self.runs, &self.grant, self.id).await,
            None => Ok(()),
        }
    }

    /// Counts the tokens of an embedding or rerank call: the provider's count, else the reserved amount, or
    /// nothing if no provider was called.
    pub(super) fn count_paid(&mut self, paid: &Payment) {
        if paid.is_used() {
            self.count(paid.counted());
        } else if let Some(spending) = &mut self.spending {
            spending.clear_prompt_tokens();
        }
    }

    /// Records the provider's token count.
    pub(super) fn count(&mut self, usage: Option<LlmTokenUsage>) {
        if let (Some(spending), Some(usage)) = (&mut self.spending, usage) {
            spending.count(usage);
        }
    }

    /// Counts bytes of generated text, used for an estimate if the provider sends no count.
    pub(super) fn count_text(&mut self, bytes: usize) {
        if let Some(spending) = &mut self.spending {
            spending.count_text(bytes);
        }
    }

    /// Runs this future until the run is cancelled, ends or reaches its deadline.
    pub(super) async fn within<T, E: Into<ApiError>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> ApiResult<T> {
        tokio::select! {
            done = work => done.map_err(Into::into),
            over = self.runs.aborts.until_aborted(&self.grant, &self.last_look) => Err(over.into()),
        }
    }

    /// Like `within`, and tells a failure of the provider from the end of the run.
    pub(super) async fn attempt<T>(
        &self,
        work: impl Future<Output = Result<T, UpstreamError>>,
    ) -> Result<T, AttemptError> {
        let done = self.within(async { Ok::<_, ApiError>(work.await) }).await?;
        done.map_err(AttemptError::Upstream)
    }

    /// Yields items until the run is over. The first error, or the end of the run, is the last item.
    pub(super) fn while_live<T, S>(&self, items: S) -> impl Stream<Item = ApiResult<T>> + use<T, S>
    where
        S: Stream<Item = Result<T, UpstreamError>> + Unpin,
    {
        let (runs, grant) = (self.runs.clone(), Arc::clone(&self.grant));
        let over =
            // Boxed, because `next` needs a stream that can be moved.
            Box::pin(async move { runs.aborts.until_aborted(&grant, &RowPoll::default()).await });
        let items = items.take_until(over);
        stream::unfold(Some(items), |items| async move {
            let mut items = items?;
            match items.next().await {
                Some(Ok(item)) => Some((Ok(item), Some(items))),
                Some(Err(error)) => Some((Err(error.into()), None)),
                // The items end normally or by the end of the run; only the latter is an error.
                None => items.take_result().map(|over| (Err(over.into()), None)),
            }
        })
    }

    /// Notes what is known about the effect of a tool call, for the audit log. The last note counts.
    pub(super) fn note_effect(&self, effect: TicketEffect) {
        let mut noted = self.effect.lock().unwrap_or_else(PoisonError::into_inner);
        *noted = Some(effect);
    }

    /// Notes the approval that a tool call used, for the audit log.
    pub(super) fn note_approval(&self, approval: ApprovalId) {
        // A call uses one approval, so there is nothing to replace.
        let _ = self.approval.set(approval);
    }

    /// Notes the actor for whom a tool is called, for the audit log.
    pub(super) fn note_actor(&self, actor: String) {
        // A run has one actor, so there is nothing to replace.
        let _ = self.on_behalf_of.set(actor);
    }

    /// Counts bytes sent to the runner.
    pub(super) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Ends the call and records its outcome.
    pub(super) fn end<T>(mut self, result: ApiResult<T>) -> ApiResult<T> {
        let failed = result.as_ref().err();
        let billing_outcome = failed.map_or(BillingOutcome::Received, ApiError::billing_outcome);
        self.record(failed.map_or("ok", ApiError::code), billing_outcome);
        result
    }

    fn record(&mut self, outcome: &'static str, billing_outcome: BillingOutcome) {
        // `end` and the drop after it would record the outcome twice.
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        // The wait for a raise is no duration of the call: it would count for budgets of seconds.
        let waited = self.spending.as_ref().map(Spending::waited);
        let wall = self.traced.begun.elapsed();
        let wall = wall.saturating_sub(waited.unwrap_or_default());
        let wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        let run_id = self.grant.run.id;
        let ended = EndedCall {
            id: self.id,
            workspace: self.grant.run.workspace.clone(),
            run_id,
            agent_id: self.grant.run.agent_id,
            gateway: self.runs.owner().to_owned(),
            outcome,
            billing_outcome,
            wall_ms,
            at: self.runs.clock().now_ms(),
        };
        let spending = self.spending.take();
        let used = spending.map(|spending| spending.settle(&self.runs, ended));
        let of_model = used.as_ref().map(|used| &used.call);
        let of_model = of_model.filter(|call| call.kind == "model");
        let counted = of_model.map(|call| (call.tokens, call.is_estimate));
        self.export(outcome, counted);
        let outcome = AuditOutcome {
            id: self.id,
            run_id,
            bytes: self.bytes,
            outcome,
            duration_ms: i64::try_from(wall_ms).unwrap_or(i64::MAX),
            effect: self
                .effect
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
            approval: self.approval.get().copied(),
            on_behalf_of: self.on_behalf_of.take(),
        };
        // In the background: `Drop` cannot wait, and the caller should not.
        self.runs.usage.record_later(outcome, used);
    }
}

impl Drop for HostCall {
    fn drop(&mut self) {
        self.record("abandoned", BillingOutcome::Unconfirmed);
    }
}
