//! Budget use of one call: reserved before it, settled after it.
//!
//! A budget limits calls, tokens, cost or duration of a subject in a window. The subject is a run, an agent, an
//! endpoint or a workspace. A row of sums per budget, subject and window has settled use plus all reservations.
//! Calls of all replicas count in the same rows.
//!
//! # Sequence
//!
//! 0. The limits `tokens_per_minute` of key and agent reserve the tokens of 2 (`runs::own_limits`), and those of the
//!    model and its provider when it is called (`Payment`). All of them settle with 6.
//! 1. `CallUsage::budgets_of` finds the budgets of the call: those of the configuration, or those that the API has set
//!    in the workspace, read at most half a second ago. A call of a child run counts for the runs above it as well, and
//!    once per subject.
//! 2. [`Spending::reserve`] computes the amount from the bounds ([`Spend`]): one call, the prompt's tokens, completion
//!    tokens, and their price. A stream reserves its expected use (`domain::budget::RecentCalls`), because it can be
//!    stopped. The duration is unknown, so 0 ms are reserved.
//! 3. `CallUsage::hold_reservation` registers the call for keep-alive. This precedes the write, because a commit may
//!    succeed although its reply is late.
//! 4. [`ReserveBudget`] adds the bound to each sum, checks each limit, and stores a row per budget with a lease. If one
//!    budget is exceeded, it reverts all sums. The call is rejected, or with `on_reached = "pause"` waits for a raise
//!    and then begins again with 1 (`runs::budget_waits`). No provider was called then.
//! 5. The provider is called. A stream that uses more than is reserved reserves more ([`Spending::grow`]), with 4; if a
//!    budget has nothing left, the stream ends.
//! 6. [`SettleUsage`] deletes the reservation, replaces the bound by the actual use, and records the call. It runs in
//!    the background, also if the caller has disconnected ([`Spending::settle`]).
//!
//! Both use the window in which the call began.
//!
//! # Actual use
//!
//! The provider's count comes first, limited to `MAX_COUNTED`. Without one, the use is an estimate: the prompt's bound,
//! and one completion token per `TOKEN_BYTES` of text. A rejected call used no tokens. An answer that broke before its
//! first text counts as the full reservation, because the provider may bill it.
//!
//! # Parallel calls
//!
//! Agents share budgets, and their calls run in parallel. On `PostgreSQL` an advisory lock (`LOCK` in `store::usage`)
//! lets one transaction at a time change sums; `SQLite` has one writer. The reservation comes before the check within
//! the transaction, so the rows are locked. Parallel calls therefore cannot spend the same remainder twice. No lock is
//! held during the provider's call.
//!
//! # Keep-alive
//!
//! A reservation has the lease of a run. Each process renews those of its calls five times per lease, then releases
//! expired ones. A loop of its own does this, because leases of runs must not wait for it. [`Reservation`] ends the
//! keep-alive on drop.
//!
//! # Faults
//!
//! | fault | consequence |
//! |---|---|
//! | gateway stops or crashes during a wait | the question stays open; the runner repeats the call, which joins it |
//! | gateway crashes | its reservations expire with their lease and another process, or the next start, releases them |
//! | run ends during the call | the reservation is released; the call still settles in full |
//! | call settles after its release | `SettleUsage` subtracts only reservations that it found; no sum is too low |
//! | reply of the reservation lost | the retry finds its row; without a retry the lease expires |
//! | reply of the settlement lost | the retry finds the record of the call and adds nothing |
//! | database away | no reservation, no call; settlements are retained by the writer within its limits |
//! | crash before the settlement commits | its reservation is released, and the call counts nothing |
//!
//! # Bounds
//!
//! * A raise sets the limit for one run, subject and window: the limit that refused the call plus the amount.
//! * Tokens and cost exceed a limit only if a provider counts more than the bound, or after an early release.
//!   Durations may exceed it by the calls in flight: a call needs only 1 ms of the remainder.
//! * A call without a price is rejected if a budget of cost applies: it would count nothing.
//! * A release handles `BATCH` rows per transaction, a renewal `IDS` calls per statement (both in `usage::reserved`).
//!
//! # Rejected alternatives
//!
//! * Reservations without a lease, as older gateways wrote them, last until the run ends, even after a crash.
//! * A check before the reservation locks no rows until the sums change.

use std::sync::Arc;
use std::time::Duration;

use domain::budget::{Amount, ExpectedCall, PastCall, growth};
use domain::usage::TokenParts;
use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::message::LlmTokenUsage;
use store::{BudgetLine, BudgetRefusal, ReserveBudget, SettleUsage, UsedCall};
use uuid::Uuid;

use super::budget_errors::{cut_off, refusal, unpriced};
use super::spend::{ReservationBasis, Spend};
use models::Payment;
use runs::budget_waits::BudgetWaitError;
use runs::grant::Grant;
use runs::own_limits::HeldTokens;
use runs::{Reservation, Runs};
use telemetry::metrics;
use web::error::{ApiError, BillingOutcome};

/// Bytes per token for estimates. Low, so that estimates are rather too high.
const TOKEN_BYTES: u64 = 3;

/// Tokens that a stream reserves in addition; the next one is tried if a budget refuses.
const GROWTH_TOKENS: [u64; 2] = [1024, 128];

/// Upper bound of a provider's token count, so that sums do not overflow.
const MAX_COUNTED: u64 = 1_000_000_000;

/// The reservation of a call and its reported use.
pub(super) struct Spending {
    spend: Spend,
    lines: Vec<BudgetLine>,
    reserved: Amount,
    /// Cost of the prompt in the reservation, until the provider counts it.
    prompt_cost_micros: u64,
    /// Present if anything is reserved. Held until the drop.
    reservation: Option<Reservation>,
    /// Tokens reserved in the limits of the key and the agent.
    tokens: HeldTokens,
    /// Holds the tokens reserved in the limits of the model and its provider.
    payment: Arc<Payment>,
    waited: Duration,
    counted: Option<LlmTokenUsage>,
    /// Bytes of generated text.
    generated_bytes: u64,
}

/// A call that has ended.
pub(super) struct EndedCall {
    pub(super) id: Uuid,
    pub(super) workspace: WorkspaceId,
    pub(super) run_id: RunId,
    pub(super) agent_id: AgentId,
    /// Name of this gateway process.
    pub(super) gateway: String,
    pub(super) outcome: &'static str,
    pub(super) billing_outcome: BillingOutcome,
    pub(super) wall_ms: u64,
    pub(super) at: i64,
}

impl Spending {
    /// Reserves the upper bound of the call in each budget that applies. A call beyond a budget that pauses waits for a
    /// raise.
    pub(super) async fn reserve(
        runs: &Runs,
        grant: &Grant,
        call_id: Uuid,
        spend: Spend,
    ) -> Result<Self, ApiError> {
        let expected = match spend.basis {
            ReservationBasis::Expected => {
                let bound = spend.bound();
                let agent = grant.run.agent_id;
                runs.usage.expected_call(agent, &spend.resource, bound)
            }
            ReservationBasis::Bound | ReservationBasis::Limited => None,
        };
        let ExpectedCall {
            prompt_cost_micros,
            completion_tokens,
        } = expected.unwrap_or_else(|| spend.unknown());
        let completion_cost = spend.completion_cost(completion_tokens);
        let reserved = Amount {
            calls: 1,
            tokens: spend.prompt_tokens.saturating_add(completion_tokens),
            cost_micros: prompt_cost_micros.saturating_add(completion_cost),
            // The duration is unknown before the call.
            wall_ms: 0,
        };
        let mut spending = Self {
            spend,
            lines: Vec::new(),
            reserved,
            prompt_cost_micros,
            reservation: None,
            // Before the budgets: a refused call must not count for them.
            tokens: runs.reserve_tokens(grant, reserved.tokens).await??,
            payment: Arc::new(Payment::reserved(reserved.tokens)),
            waited: Duration::ZERO,
            counted: None,
            generated_bytes: 0,
        };
        let mut wait = runs.budget_waits.of_call(grant);
        loop {
            // Read for each try: the budgets and their windows change meanwhile.
            let lines = runs.usage.budgets_of(grant).await?;
            let Err(refused) = spending.try_reserve(runs, grant, call_id, lines).await? else {
                // Boxed, because few calls wait.
                spending.waited = Box::pin(wait.end()).await?;
                return Ok(spending);
            };
            let BudgetRefusal { line, exceeded } = &refused;
            let waiting = Box::pin(wait.wait(&spending.lines[*line], exceeded));
            waiting.await.map_err(|error| match error {
                BudgetWaitError::Refused => refusal(exceeded, runs.clock().now_ms()),
                BudgetWaitError::Full(limit) => limit.into(),
                BudgetWaitError::Over(over) => over.into(),
                BudgetWaitError::Store(error) => error.into(),
            })?;
            // An operator may have frozen the run during the wait.
            runs.pauses.delay_call(grant).await?;
        }
    }

    /// Reserves in each of these lines, or in none.
    async fn try_reserve(
        &mut self,
        runs: &Runs,
        grant: &Grant,
        call_id: Uuid,
        lines: Vec<BudgetLine>,
    ) -> Result<Result<(), BudgetRefusal>, ApiError> {
        let of_cost = lines.iter().find(|line| line.budget.cost_micros.is_some());
        // Without a price, the budget of cost would count nothing.
        if let Some(line) = of_cost.filter(|_| self.spend.is_unpriced()) {
            return Err(unpriced(&self.spend, &line.budget.name));
        }
        self.lines = lines;
        if self.lines.is_empty() {
            return Ok(Ok(()));
        }
        // Registered before the write: the commit may succeed even if its confirmation is late.
        self.reservation
            .get_or_insert_with(|| runs.usage.hold_reservation(call_id));
        let reserve = ReserveBudget {
            call_id,
            run_id: grant.run.id,
            lines: self.lines.clone(),
            amount: self.reserved,
            before: Amount::default(),
            lease: runs.limits().lease,
        };
        Ok(runs.store().write(reserve).await?)
    }

    /// Reserves more if the answer has used more than is reserved. Fails with the budget that has nothing left.
    pub(super) async fn grow(
        &mut self,
        runs: &Runs,
        grant: &Grant,
        call_id: Uuid,
    ) -> Result<(), ApiError> {
        let limits_use =
            |line: &BudgetLine| line.budget.tokens.or(line.budget.cost_micros).is_some();
        if !self.lines.iter().any(limits_use) {
            return Ok(());
        }
        let mut refused = None;
        for tokens in GROWTH_TOKENS {
            let step = Amount {
                tokens,
                cost_micros: self.spend.completion_cost(tokens),
                ..Amount::default()
            };
            let Some(amount) = growth(self.running(), self.reserved, step) else {
                return Ok(());
            };
            let reserve = ReserveBudget {
                call_id,
                run_id: grant.run.id,
                lines: self.lines.clone(),
                amount,
                before: self.reserved,
                lease: runs.limits().lease,
            };
            match runs.store().write(reserve).await? {
                Ok(()) => {
                    self.reserved = self.reserved.plus(amount);
                    return Ok(());
                }
                // A smaller step may fit.
                Err(BudgetRefusal { exceeded, .. }) => refused = Some(exceeded),
            }
        }
        match refused {
            Some(exceeded) => Err(cut_off(&exceeded, runs.clock().now_ms())),
            None => Ok(()),
        }
    }

    /// Use of the answer so far. An estimate until the provider counts it.
    fn running(&self) -> Amount {
        let number = |count: Option<i64>| u64::try_from(count?).ok().filter(|count| *count > 0);
        let counted = self.counted.as_ref();
        let counted_prompt = counted.and_then(|counted| number(counted.prompt_tokens));
        let counted_completion = counted.and_then(|counted| number(counted.completion_tokens));
        let estimate = self.generated_bytes.div_ceil(TOKEN_BYTES);
        // Some tokens are longer than the estimate assumes: a limit of the request bounds their number.
        let limit = if self.spend.is_limited {
            self.spend.completion_bound
        } else {
            u64::MAX
        };
        let completion = estimate
            .min(limit)
            .max(counted_completion.unwrap_or(0))
            .min(MAX_COUNTED);
        let prompt = counted_prompt
            .unwrap_or(self.spend.prompt_tokens)
            .min(MAX_COUNTED);
        let cost_micros = if counted_prompt.is_some() {
            let parts = TokenParts::split(prompt, completion, counted);
            self.spend.cost(parts)
        } else {
            let of_answer = self.spend.completion_cost(completion);
            self.prompt_cost_micros.saturating_add(of_answer)
        };
        Amount {
            tokens: prompt.saturating_add(completion),
            cost_micros,
            ..Amount::default()
        }
    }

    pub(super) fn payment(&self) -> Arc<Payment> {
        Arc::clone(&self.payment)
    }

    /// The time for which the call has waited for raises of budgets.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// Records the provider's count. A count without numbers is ignored.
    pub(super) fn count(&mut self, usage: LlmTokenUsage) {
        let numbers = [
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.total_tokens,
        ];
        // Many providers send an empty usage in each chunk but the last.
        if numbers.into_iter().any(|number| number.is_some()) {
            self.counted = Some(usage);
        }
    }

    /// No model was called.
    pub(super) fn clear_prompt_tokens(&mut self) {
        self.spend.prompt_tokens = 0;
    }

    /// Counts bytes of generated text.
    pub(super) fn count_text(&mut self, bytes: usize) {
        self.generated_bytes += bytes as u64;
    }

    /// Builds the settlement of the ended call.
    pub(super) fn settle(mut self, runs: &Runs, ended: EndedCall) -> SettleUsage {
        let (agent, price) = (ended.agent_id, self.spend.price.clone());
        let (held, payment) = (std::mem::take(&mut self.tokens), self.payment());
        let settled = self.settled(ended);
        let used = settled.call.tokens.prompt() + settled.call.tokens.completion();
        held.settle(used);
        payment.settle_tokens(used);
        let UsedCall {
            kind,
            resource,
            outcome,
            tokens,
            ..
        } = &settled.call;
        if *kind == "model" && *outcome == "ok" && tokens.completion() > 0 {
            let of_prompt = TokenParts {
                output: 0,
                reasoning: 0,
                ..*tokens
            };
            let call = PastCall {
                prompt_tokens: tokens.prompt(),
                prompt_cost_micros: price.map_or(0, |price| price.cost(of_prompt)),
                completion_tokens: tokens.completion(),
            };
            runs.usage.note_call(agent, resource, call);
        }
        settled
    }

    fn settled(self, ended: EndedCall) -> SettleUsage {
        let (prompt_tokens, completion_tokens, is_estimate) = self.used(&ended);
        let tokens = TokenParts::split(prompt_tokens, completion_tokens, self.counted.as_ref());
        let cost_micros = self.spend.cost(tokens);
        if self.spend.kind == "model" {
            metrics::model_called(&self.spend.resource, ended.outcome, tokens, cost_micros);
        }
        SettleUsage {
            call: UsedCall {
                id: ended.id,
                workspace: ended.workspace,
                run_id: ended.run_id,
                agent_id: ended.agent_id,
                gateway: ended.gateway,
                kind: self.spend.kind,
                resource: self.spend.resource,
                outcome: ended.outcome,
                tokens,
                is_estimate,
                cost_micros,
                wall_ms: ended.wall_ms,
                at: ended.at,
            },
            lines: self.lines,
            reserved: self.reserved,
        }
    }

    /// Prompt tokens, completion tokens, and whether these are an estimate. The provider's count comes first,
    /// then an estimate from the request and the received text.
    ///
    /// A rejected call used nothing. An answer that was not read to its end counts as the full reservation, unless part
    /// of it arrived.
    fn used(&self, ended: &EndedCall) -> (u64, u64, bool) {
        let number = |count: Option<i64>| Some(u64::try_from(count?).ok()?.min(MAX_COUNTED));
        if let Some(counted) = &self.counted {
            // Treat zero as no count, both for the prompt and for the completion.
            let prompt = number(counted.prompt_tokens).filter(|prompt| *prompt > 0);
            let total = number(counted.total_tokens).filter(|total| *total > 0);
            let prompt = prompt.or(total).unwrap_or(self.spend.prompt_tokens);
            let rest = total.map(|total| total.saturating_sub(prompt));
            let completion = number(counted.completion_tokens).or(rest);
            // A zero count in the middle of an answer is not final.
            let is_last = ended.billing_outcome != BillingOutcome::Unconfirmed;
            let lacks_completion =
                counted.completion_tokens == Some(0) && (self.generated_bytes > 0 || !is_last);
            let completion =
                completion.filter(|completion| *completion > 0 || (is_last && !lacks_completion));
            let estimate = self.estimated_completion(ended.billing_outcome);
            let is_estimate = completion.is_none() && estimate > 0;
            return (prompt, completion.unwrap_or(estimate), is_estimate);
        }
        let is_rejected =
            self.generated_bytes == 0 && ended.billing_outcome == BillingOutcome::Nothing;
        if is_rejected || self.spend.prompt_tokens == 0 {
            return (0, 0, false);
        }
        (
            self.spend.prompt_tokens,
            self.estimated_completion(ended.billing_outcome),
            true,
        )
    }

    /// Estimated completion tokens, without a provider's count.
    fn estimated_completion(&self, billing_outcome: BillingOutcome) -> u64 {
        match billing_outcome {
            BillingOutcome::AllReserved => self.spend.max_completion_tokens,
            BillingOutcome::Unconfirmed if self.generated_bytes == 0 => {
                self.spend.max_completion_tokens
            }
            BillingOutcome::Nothing | BillingOutcome::Received | BillingOutcome::Unconfirmed => {
                self.generated_bytes.div_ceil(TOKEN_BYTES)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use models::{Price, TokenRates};

    const RATES: TokenRates = TokenRates {
        input: 2.5,
        cache_read: 0.25,
        cache_write_5m: 3.0,
        cache_write_1h: 5.0,
        output: 10.0,
        reasoning: 12.0,
    };

    fn spending(counted: Option<LlmTokenUsage>, generated_bytes: u64) -> Spending {
        Spending {
            spend: Spend {
                kind: "model",
                resource: "m".to_owned(),
                prompt_tokens: 100,
                max_completion_tokens: 50,
                completion_bound: 50,
                is_limited: true,
                basis: ReservationBasis::Limited,
                price: Some(Price::new(RATES, Vec::new())),
            },
            lines: Vec::new(),
            reserved: Amount::default(),
            prompt_cost_micros: 250,
            reservation: None,
            tokens: HeldTokens::default(),
            payment: Arc::new(Payment::by_operator()),
            waited: Duration::ZERO,
            counted,
            generated_bytes,
        }
    }

    #[test]
    fn empty_counts_keep_earlier_numbers() {
        let mut spending = spending(None, 30);
        spending.count(LlmTokenUsage::default());
        assert_eq!(spending.counted, None);
        let counted = LlmTokenUsage {
            completion_tokens: Some(4),
            ..LlmTokenUsage::default()
        };
        spending.count(counted.clone());
        spending.count(LlmTokenUsage::default());
        assert_eq!(spending.counted, Some(counted));
    }

    #[test]
    fn running_use_is_estimated_until_it_is_counted() {
        let running = |counted, bytes| {
            let running = spending(counted, bytes).running();
            (running.tokens, running.cost_micros)
        };
        // 10 tokens of 3 bytes at 10, next to the prompt.
        assert_eq!(running(None, 30), (110, 350));
        // The request bounds the estimate.
        assert_eq!(running(None, 900), (150, 750));
        let counted = |prompt, completion| {
            Some(LlmTokenUsage {
                prompt_tokens: Some(prompt),
                completion_tokens: Some(completion),
                ..LlmTokenUsage::default()
            })
        };
        assert_eq!(running(counted(10, 0), 30), (20, 125));
        assert_eq!(running(counted(10, 60), 30), (70, 625));
    }

    fn ended(outcome: &'static str, billing_outcome: BillingOutcome) -> EndedCall {
        EndedCall {
            id: Uuid::nil(),
            workspace: WorkspaceId("w".to_owned()),
            run_id: RunId(Uuid::nil()),
            agent_id: AgentId(Uuid::nil()),
            gateway: "g".to_owned(),
            outcome,
            billing_outcome,
            wall_ms: 7,
            at: 0,
        }
    }

    #[test]
    fn settles_cached_tokens_at_their_price() {
        let further = serde_json::json!({"prompt_tokens_details": {"cached_tokens": 900, "cache_write_tokens": 60},
            "completion_tokens_details": {"reasoning_tokens": 5}});
        let counted = LlmTokenUsage {
            prompt_tokens: Some(1000),
            completion_tokens: Some(15),
            further: further.as_object().unwrap().clone(),
            ..LlmTokenUsage::default()
        };
        let ended = ended("ok", BillingOutcome::Received);
        let call = spending(Some(counted), 99).settled(ended).call;
        assert_eq!(
            (
                call.tokens.input,
                call.tokens.cache_read,
                call.tokens.cache_write_5m
            ),
            (40, 900, 60)
        );
        // 40 at 2.5, 900 at 0.25, 60 at 3, 10 at 10, 5 at 12.
        assert_eq!(call.cost_micros, 100 + 225 + 180 + 100 + 60);
    }

    #[test]
    fn finds_models_without_price() {
        let spend = |price| Spend {
            price,
            ..spending(None, 0).spend
        };
        assert!(spend(None).is_unpriced());
        assert!(!spend(Some(Price::default())).is_unpriced());
        assert!(!Spend::of_tool("t").is_unpriced());
        assert!(!Spend::of_retrieval("kb", &"query".to_owned(), None).is_unpriced());
    }

    #[test]
    fn settles_by_provider_count_or_received_text() {
        let of_consumed = |counted, outcome, generated_bytes, billing_outcome| {
            let call = spending(counted, generated_bytes)
                .settled(ended(outcome, billing_outcome))
                .call;
            (
                call.tokens.prompt(),
                call.tokens.completion(),
                call.is_estimate,
                call.cost_micros,
            )
        };
        let of = |counted, outcome, generated_bytes| {
            of_consumed(counted, outcome, generated_bytes, BillingOutcome::Received)
        };
        let counted = |prompt, completion, total| {
            Some(LlmTokenUsage {
                prompt_tokens: prompt,
                completion_tokens: completion,
                total_tokens: total,
                ..LlmTokenUsage::default()
            })
        };
        assert_eq!(
            of(counted(Some(10), Some(4), Some(14)), "ok", 99),
            (10, 4, false, 65)
        );
        assert_eq!(
            of(counted(Some(10), None, Some(14)), "ok", 99),
            (10, 4, false, 65)
        );
        assert_eq!(
            of(counted(None, None, Some(14)), "ok", 99),
            (14, 0, false, 35)
        );
        // The provider counts the prompt only, so the completion is estimated.
        let prompt_only = counted(Some(10), None, None);
        assert_eq!(of(prompt_only.clone(), "ok", 30), (10, 10, true, 125));
        assert_eq!(of(prompt_only, "ok", 0), (10, 0, false, 25));
        assert_eq!(of(None, "ok", 30), (100, 10, true, 350));
        assert_eq!(of(None, "ok", 0), (100, 0, true, 250));
        let refused = of_consumed(None, "rate_limited", 0, BillingOutcome::Nothing);
        assert_eq!(refused, (0, 0, false, 0));
        let too_large = of_consumed(None, "runtime_error", 0, BillingOutcome::AllReserved);
        assert_eq!(too_large, (100, 50, true, 750));
        for outcome in ["abandoned", "cancelled", "deadline_exceeded"] {
            let unconfirmed = |counted, generated_bytes| {
                of_consumed(
                    counted,
                    outcome,
                    generated_bytes,
                    BillingOutcome::Unconfirmed,
                )
            };
            assert_eq!(unconfirmed(None, 0), (100, 50, true, 750));
            assert_eq!(unconfirmed(None, 3), (100, 1, true, 260));
            let so_far = |tokens| counted(Some(10), Some(tokens), None);
            assert_eq!(unconfirmed(so_far(4), 3), (10, 4, false, 65));
            assert_eq!(unconfirmed(so_far(0), 3), (10, 1, true, 35));
            assert_eq!(unconfirmed(so_far(0), 0), (10, 50, true, 525));
        }
    }
}
