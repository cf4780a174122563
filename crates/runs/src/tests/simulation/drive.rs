//! A task before and after its relay: claim, POST, end. The decisions are those of the product.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::retry::{AttemptFailure, RetryDecision, after_failure};
use domain::run::{Failure, FailureCode};
use protocol::run::RunStatus;
use runner_client::{ResultFormat, StartError};
use serde_json::value::RawValue;
use store::{
    Appended, Dispatch, DispatchPurpose, Dispatched, LeaseFilter, Promotion, SharedParts,
    StoreError,
};

use super::database::{Answer, Op};
use super::driver::Driver;
use super::network::{Connection, Happening};
use super::relaying::restored;
use super::resuming::{
    hands_over, is_resume_over, restart_answered, restore, restore_from, resume_failed,
    resume_refused,
};
use super::runner::PostAnswer;
use super::settings::{self, FIRST_BYTE, LEASE, LIMITS, millis};
use super::task::{ClaimStage, CommitStage, FinishStage, RelayStage, Retry, Stage};
use crate::dispatch::is_fresh;
use crate::dispatch::resuming::runner_unattached;
use crate::executor::next_step::{OrphanClaim, TaskStep, after_relay, claim_of, failure_after};
use crate::finish::output::terminal_of;
use crate::ledger::commit::CommitMachine;
use crate::relay::reader::ResultReader;
use crate::relay::{RelaySource, RelayStop, Relayed};

/// Retries of a POST that did not start the run.
const RETRIES: u32 = 1;

impl Driver<'_> {
    pub(super) fn pump(&mut self) {
        let is_lost = self.task.live.lost.is_cancelled();
        let now = self.net.now;
        // Each branch stores the next stage, unless the task is done.
        match mem::replace(&mut self.task.stage, Stage::Done) {
            Stage::Relay(relay) => self.pump_relay(relay),
            Stage::Finish(mut finish) => {
                finish.commit.send_due(self);
                self.task.stage = Stage::Finish(finish);
            }
            Stage::Restart(mut restart) => {
                restart.commit.send_due(self);
                self.task.stage = Stage::Restart(restart);
            }
            Stage::Post { .. } | Stage::Backoff { .. } if is_lost => {}
            Stage::Post {
                attempt,
                first_byte_until,
                answer,
            } => self.pump_post(attempt, first_byte_until, answer),
            Stage::Backoff { .. } if hands_over(self) => self.release(),
            Stage::Backoff { attempt, until } => {
                if let Some(failure) = self.interruption() {
                    self.finish_with(failure);
                } else if now >= until {
                    self.claim(attempt + 1);
                } else {
                    self.task.stage = Stage::Backoff { attempt, until };
                }
            }
            Stage::Restore(mut retry) => {
                if retry.is_due(now) {
                    self.request(Op::ReadLedger(self.task.run.id));
                }
                self.task.stage = Stage::Restore(retry);
            }
            Stage::Claim(mut claim) => {
                if claim.retry.is_due(now) {
                    self.request(Op::Claim(Box::new(claim.dispatch.clone())));
                }
                self.task.stage = Stage::Claim(claim);
            }
            Stage::Defer(mut retry) => {
                if retry.is_due(now) {
                    self.start_async();
                }
                self.task.stage = Stage::Defer(retry);
            }
            stage => self.task.stage = stage,
        }
    }

    pub(super) fn take_answer(&mut self, token: u64, answer: Result<Answer, StoreError>) {
        // Each branch stores the next stage, unless the task is done.
        match (mem::replace(&mut self.task.stage, Stage::Done), answer) {
            (Stage::Relay(mut relay), answer) => {
                relay.answered(self, token, answer);
                self.task.stage = Stage::Relay(relay);
            }
            (Stage::Finish(finish), answer) if finish.commit.token == Some(token) => {
                self.finish_answered(finish, answer);
            }
            (Stage::Restart(restart), answer) if restart.commit.token == Some(token) => {
                restart_answered(self, restart, answer);
            }
            // A read of the relay that has ended.
            (stage @ Stage::Finish(_), _) => self.task.stage = stage,
            (Stage::Prepare, Ok(Answer::Run(Some(run)))) if run.status == RunStatus::Created => {
                self.task.run = *run;
                self.claim(1);
            }
            (Stage::Restore(_), Ok(Answer::Ledger(Some(ledger))))
                if ledger.run.fencing_token == self.task.run.fencing_token =>
            {
                restore_from(self, *ledger);
            }
            (Stage::Restore(mut retry), Err(error)) => match retry.after(self, error) {
                None => self.task.stage = Stage::Restore(retry),
                Some(error) => self.stop_driving(&error),
            },
            (Stage::Claim(claim), Ok(Answer::Claimed(Dispatched::Owned(run)))) => {
                self.task.run = *run;
                self.claimed(claim.dispatch.attempt, claim.requested_at);
            }
            (Stage::Claim(mut claim), Err(error)) => match claim.retry.after(self, error) {
                None => self.task.stage = Stage::Claim(claim),
                Some(error) => self.stop_driving(&error),
            },
            (
                Stage::Extend {
                    attempt,
                    requested_at,
                },
                Ok(Answer::Renewed(renewed)),
            ) if renewed.held.contains_key(&self.task.run.id) => {
                self.owned(attempt, requested_at + LEASE);
            }
            (Stage::Defer(_), Ok(Answer::Flag(true))) => self.begin_relay(RelaySource::Appends),
            (Stage::Defer(mut retry), Err(error)) => match retry.after(self, error) {
                None => self.task.stage = Stage::Defer(retry),
                Some(error) => self.stop_driving(&error),
            },
            (Stage::Own { leases, failure }, Ok(answer)) => {
                self.own_answered(leases, failure, answer);
            }
            // Another process owns the run, or recovery takes it over.
            _ => {}
        }
    }

    fn own_answered(&mut self, leases: LeaseFilter, failure: Failure, answer: Answer) {
        let taken = match answer {
            Answer::Run(Some(run)) => {
                self.task.run = *run;
                let op = match claim_of(self.task.run.status, leases) {
                    Some(OrphanClaim::TakeOver(leases)) => Op::TakeOver {
                        owner: self.gateway.owner.clone(),
                        ids: vec![self.task.run.id],
                        leases,
                    },
                    Some(OrphanClaim::Begin) => {
                        Op::Claim(Box::new(self.dispatch(self.task.run.attempt + 1)))
                    }
                    None => return,
                };
                self.request(op);
                self.task.stage = Stage::Own { leases, failure };
                return;
            }
            Answer::Taken(mut taken) => taken.pop().map(|(run, _)| run),
            Answer::Claimed(Dispatched::Owned(run)) => Some(*run),
            _ => None,
        };
        if let Some(run) = taken {
            self.gateway.end_owned(self.net, failure, run);
        }
    }

    // --- claim and POST ---

    fn dispatch(&self, attempt: u32) -> Dispatch {
        Dispatch {
            run: self.task.run.clone(),
            attempt,
            owner: self.gateway.owner.clone(),
            lease: millis(LEASE),
            context: RawValue::NULL.to_owned().into(),
            shared: SharedParts::default(),
            deadline_at: self.task.run.deadline_at,
            purpose: DispatchPurpose::Call,
            at: self.epoch_ms(),
        }
    }

    pub(super) fn claim(&mut self, attempt: u32) {
        let dispatch = self.dispatch(attempt);
        self.request(Op::Claim(Box::new(dispatch.clone())));
        self.task.stage = Stage::Claim(Box::new(ClaimStage {
            dispatch,
            requested_at: self.net.now,
            retry: Retry::new(),
        }));
    }

    pub(super) fn claimed(&mut self, attempt: u32, requested_at: u64) {
        if is_fresh(self.net.instant(requested_at), self.now(), millis(LEASE)) {
            return self.owned(attempt, requested_at + LEASE);
        }
        self.task.stage = Stage::Extend {
            attempt,
            requested_at: self.net.now,
        };
        let owner = self.gateway.owner.clone();
        let ids = vec![self.task.run.id];
        self.request(Op::Renew { owner, ids });
    }

    /// Posts the run, if the lease still holds.
    fn owned(&mut self, attempt: u32, held_until: u64) {
        let live = &self.task.live;
        live.hold_until(self.net.instant(held_until));
        if let Some(at) = self.task.run.cancel_requested_at {
            live.request_cancel(at);
        }
        if !live.is_held(self.now()) {
            return;
        }
        // A cancelled run must not reach its runner.
        if live.cancel.is_cancelled() {
            return self.finish_with(Failure::cancelled());
        }
        if is_resume_over(self) {
            return self.finish_with(runner_unattached());
        }
        self.task.connection = self.net.number();
        let first_byte_until = self.net.now + FIRST_BYTE;
        self.task.stage = Stage::Post {
            attempt,
            first_byte_until,
            answer: None,
        };
        let connection = Connection {
            key: self.task.key,
            number: self.task.connection,
        };
        let process = self.gateway.process;
        let post = match &self.task.resumption {
            Some(resumption) if resumption.start.is_none() => {
                Happening::RunnerResumes(process, connection, resumption.after)
            }
            resumption => {
                let start = resumption.as_ref().and_then(|resumption| resumption.start);
                Happening::RunnerReceives(process, connection, start)
            }
        };
        self.net.within(1, 20, post);
        self.wake(first_byte_until);
        self.wake_at_deadline();
    }

    fn pump_post(&mut self, attempt: u32, first_byte_until: u64, answer: Option<PostAnswer>) {
        if let Some(failure) = self.interruption() {
            let is_cancel = failure.code == FailureCode::Cancelled;
            // The runner may already work, so it gets its grace.
            if !is_cancel || self.is_grace_over() {
                return self.finish_with(failure);
            }
        }
        if hands_over(self) {
            return self.release();
        }
        let (class, failure) = match answer {
            Some(PostAnswer::Refused(status)) => return resume_refused(self, attempt, status),
            None if self.net.now >= first_byte_until && self.task.resumption.is_some() => {
                return resume_failed(self, attempt, &StartError::Silent);
            }
            Some(PostAnswer::Stream) => {
                let reader = ResultReader::new(ResultFormat::JsonLines, 4_000, LIMITS);
                self.begin_relay(RelaySource::Stream(Box::new(reader)));
                return self.pump();
            }
            Some(PostAnswer::Deferred) => {
                self.task.live.appends.store(true, Ordering::Release);
                self.task.stage = Stage::Defer(Retry::new());
                return self.start_async();
            }
            Some(PostAnswer::Failed(class, failure)) => (class, failure),
            None if self.net.now >= first_byte_until => {
                let code = FailureCode::RunnerFirstByteTimeout;
                (AttemptFailure::Uncertain, Failure::new(code, "no answer"))
            }
            None => {
                self.task.stage = Stage::Post {
                    attempt,
                    first_byte_until,
                    answer,
                };
                return;
            }
        };
        let left = self.task.run.deadline_at - self.epoch_ms();
        let left = millis(u64::try_from(left).unwrap_or(0));
        let jitter = f64::from(u8::try_from(self.net.random.between(0, 255)).unwrap()) / 255.0;
        match after_failure(attempt, RETRIES, class, left, jitter) {
            RetryDecision::RetryAfter(wait) => {
                let until = self.wake_after(wait);
                self.task.stage = Stage::Backoff { attempt, until };
            }
            RetryDecision::Fail => self.finish_with(failure),
        }
    }

    fn start_async(&mut self) {
        let op = Op::StartAsync {
            run: self.task.run.id,
            attempt: self.task.run.attempt,
            epoch: self.task.run.fencing_token,
        };
        self.request(op);
    }

    // --- relay and end ---

    pub(super) fn begin_relay(&mut self, source: RelaySource) {
        self.task.stage = Stage::Relay(Box::new(RelayStage::new(self, source)));
        self.task.resumption = None;
        self.wake_at_deadline();
    }

    fn pump_relay(&mut self, mut relay: Box<RelayStage>) {
        let Some(outcome) = relay.pump(self) else {
            self.task.stage = Stage::Relay(relay);
            return;
        };
        self.relayed(outcome.map(|cause| relay.machine.into_relayed(cause)));
    }

    /// Acts on the end of a relay.
    fn relayed(&mut self, outcome: Result<Relayed, RelayStop>) {
        match after_relay(outcome) {
            TaskStep::Finish(relayed) => self.finish(*relayed),
            TaskStep::Leave => {}
            TaskStep::Release => self.release(),
            TaskStep::Resume => restore(self),
            TaskStep::Stop(error) => self.stop_driving(&error),
        }
    }

    fn release(&mut self) {
        self.task.stage = Stage::Release;
        let op = Op::Release {
            run: self.task.run.id,
            epoch: self.task.run.fencing_token,
        };
        self.request(op);
    }

    pub(super) fn stop_driving(&mut self, error: &StoreError) {
        if let Some(failure) = failure_after(error) {
            let run = self.task.run.clone();
            self.gateway.own(self.net, run, LeaseFilter::Own, failure);
        }
    }

    /// Ends a run with a failure of the gateway.
    pub(super) fn finish_with(&mut self, failure: Failure) {
        let (buffer, tally, ending) = restored(self).ended(&self.task.run, failure);
        self.finish(Relayed {
            buffer,
            tally,
            ending,
        });
    }

    fn finish(&mut self, relayed: Relayed) {
        let Relayed {
            mut buffer,
            tally,
            ending,
        } = relayed;
        let (at, run) = (self.epoch_ms(), &self.task.run);
        let mut terminal = terminal_of(run, &mut buffer, tally, ending, at / 1000);
        terminal.promotion = run.conversation_key.as_ref().map(|key| Promotion {
            conversation_key: key.clone(),
            promote_next: Arc::new(|_, _, _| None),
        });
        let (append, frames) = buffer.take(Some(terminal), at);
        self.task.live.begin_end();
        let mut commit = CommitStage::new(CommitMachine::new(Arc::new(append), millis(LEASE)));
        commit.send_due(self);
        self.task.stage = Stage::Finish(Box::new(FinishStage { commit, frames }));
    }

    fn finish_answered(
        &mut self,
        mut finish: Box<FinishStage>,
        answer: Result<Answer, StoreError>,
    ) {
        match finish.commit.answered(self, answer) {
            None => self.task.stage = Stage::Finish(finish),
            Some(Ok(Appended::Written { next })) => {
                let id = self.task.run.id;
                self.net.db.check_published(id, finish.frames.last());
                let live = Arc::clone(&self.gateway.live);
                live.settle(id, &self.task.live, finish.frames);
                if !self.gateway.is_stopping {
                    for id in next {
                        let run = settings::run(settings::event_of(id), 0, 0, self.net.now);
                        self.gateway.spawn(self.net, run, None);
                    }
                }
            }
            Some(Ok(Appended::Lost | Appended::Overtaken)) => {}
            Some(Err(error)) => self.stop_driving(&error),
        }
    }
}
