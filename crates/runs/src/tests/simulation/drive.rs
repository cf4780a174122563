//! Tasks before and after the relay: claim, POST, end. The decisions are those of the product.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::normalize::{ResultCounts, RunMessages};
use domain::retry::{AttemptFailure, RetryDecision, after_failure};
use domain::run::{Failure, FailureCode, Run};
use protocol::id::RunId;
use protocol::run::RunStatus;
use serde_json::value::RawValue;
use store::{
    Appended, Dispatch, Dispatched, LeaseFilter, Promotion, ResumePoint, SharedParts, StoreError,
};
use tokio::time::Instant;

use super::Plant;
use super::database::{Answer, Op};
use super::gateway::Waiter;
use super::runner::PostAnswer;
use super::settings::{self, FIRST_BYTE, GRACE, LEASE, millis};
use super::task::{ClaimStage, CommitStage, FinishStage, Stage, Task, TaskKey};
use super::world::{Connection, Happening, World};
use crate::dispatch::is_fresh;
use crate::ending::EndCause;
use crate::event_buffer::EventBuffer;
use crate::executor::next_step::{NextStep, OrphanClaim, after_relay, claim_of, failure_after};
use crate::finish::output::terminal_of;
use crate::interrupts::{deadline_failure, shutdown_failure};
use crate::ledger::commit::{AfterError, CommitMachine, CommitOutput, RetryWindow};
use crate::live::LiveRun;
use crate::relay::{RelaySource, RelayStop, Relayed};

/// Retries of a POST that did not start the run.
const RETRIES: u32 = 1;

impl World {
    pub(super) fn new_task(&mut self, live: Arc<LiveRun>, run: Run) -> Task {
        self.serial += 1;
        Task {
            key: (run.id, self.serial),
            live,
            run,
            stage: Stage::Done,
            connection: 0,
        }
    }

    /// Stores a task, or removes its entry of the registry when it is done.
    pub(super) fn keep_task(&mut self, gateway: usize, task: Task) {
        let gateway = &mut self.gateways[gateway];
        if !matches!(task.stage, Stage::Done) {
            gateway.tasks.insert(task.key, task);
        } else if self.plant != Plant::ForgottenRelease || !task.live.lost.is_cancelled() {
            // The guard of the registry removes the entry on drop.
            drop(gateway.live.guard(task.key.0, &task.live));
        }
    }

    /// Drives a created run. `dispatched_at`: request time of the commit that has dispatched it already.
    pub(super) fn spawn(&mut self, gateway: usize, run: Run, dispatched_at: Option<u64>) {
        let Some(live) = self.gateways[gateway].live.enter_new(run.id) else {
            return;
        };
        let id = run.id;
        let mut task = self.new_task(live, run);
        if let Some(requested_at) = dispatched_at {
            self.claimed(gateway, &mut task, 1, requested_at);
        } else {
            task.stage = Stage::Prepare;
            self.ask(gateway, &task, Op::FindRun(id));
        }
        self.keep_task(gateway, task);
    }

    /// Resumes an async run after a take-over.
    pub(super) fn resume(
        &mut self,
        gateway: usize,
        run: Run,
        point: ResumePoint,
        held_until: Instant,
    ) {
        let Some(live) = self.gateways[gateway].live.enter_new(run.id) else {
            return;
        };
        live.appends.store(true, Ordering::Release);
        live.hold_until(held_until);
        live.log.begin_after(run.last_sequence);
        if let Some(at) = run.cancel_requested_at {
            live.request_cancel(at);
        }
        let mut task = self.new_task(live, run);
        self.begin_relay(gateway, &mut task, RelaySource::Backlog(point));
        self.pump(gateway, &mut task);
        self.keep_task(gateway, task);
    }

    /// Sends an operation whose answer the task gets.
    pub(super) fn ask(&mut self, gateway: usize, task: &Task, op: Op) -> u64 {
        let process = self.gateways[gateway].process;
        self.request(process, Waiter::Task(task.key), op)
    }

    pub(super) fn wake_task(&mut self, gateway: usize, task: &Task, at: u64) {
        self.wake(self.gateways[gateway].process, task.key, at);
    }

    /// Continues a task.
    pub(super) fn advance(&mut self, gateway: usize, key: TaskKey) {
        if let Some(mut task) = self.gateways[gateway].tasks.remove(&key) {
            self.pump(gateway, &mut task);
            self.keep_task(gateway, task);
        }
    }

    pub(super) fn advance_all(&mut self, gateway: usize) {
        let keys: Vec<_> = self.gateways[gateway].tasks.keys().copied().collect();
        for key in keys {
            self.advance(gateway, key);
        }
    }

    /// Continues tasks with a signal.
    pub(super) fn advance_signalled(&mut self, gateway: usize) {
        let tasks = self.gateways[gateway].tasks.values();
        let has_signal =
            |task: &&Task| task.live.lost.is_cancelled() || task.live.cancel.is_cancelled();
        let keys: Vec<_> = tasks.filter(has_signal).map(|task| task.key).collect();
        for key in keys {
            self.advance(gateway, key);
        }
    }

    /// Failure of a run that must end now.
    pub(super) fn interruption(&self, gateway: usize, task: &Task) -> Option<Failure> {
        if task.live.cancel.is_cancelled() {
            Some(Failure::cancelled())
        } else if self.gateways[gateway].is_closing {
            Some(shutdown_failure())
        } else if self.epoch_ms(gateway) >= task.run.deadline_at {
            Some(deadline_failure())
        } else {
            None
        }
    }

    /// True when the grace of a cancelled run is over. The first call begins it.
    pub(super) fn is_grace_over(&mut self, gateway: usize, task: &Task) -> bool {
        let now = self.instant(self.now);
        let mut is_first = false;
        let until = task.live.grace_until(|| {
            is_first = true;
            now + millis(GRACE)
        });
        if is_first {
            self.wake_task(gateway, task, self.now + GRACE);
        }
        now >= until || self.gateways[gateway].is_closing
    }

    pub(super) fn pump(&mut self, gateway: usize, task: &mut Task) {
        let is_lost = task.live.lost.is_cancelled();
        match &mut task.stage {
            Stage::Relay(_) => self.pump_relay(gateway, task),
            Stage::Finish(_) => self.pump_finish(gateway, task),
            Stage::Post { .. } | Stage::Backoff { .. } if is_lost => task.stage = Stage::Done,
            Stage::Post { .. } => self.pump_post(gateway, task),
            Stage::Backoff { attempt, until } => {
                let (next, is_due) = (*attempt + 1, self.now >= *until);
                if let Some(failure) = self.interruption(gateway, task) {
                    self.finish_with(gateway, task, failure);
                } else if is_due {
                    self.claim(gateway, task, next);
                }
            }
            Stage::Claim(claim) if claim.retry_at.is_some_and(|at| at <= self.now) => {
                claim.retry_at = None;
                let op = Op::Claim(Box::new(claim.dispatch.clone()));
                self.ask(gateway, task, op);
            }
            Stage::Defer { retry_at, .. } if retry_at.is_some_and(|at| at <= self.now) => {
                *retry_at = None;
                self.start_async(gateway, task);
            }
            _ => {}
        }
    }

    /// Passes an answer of the database to its task.
    pub(super) fn task_answered(
        &mut self,
        gateway: usize,
        key: TaskKey,
        token: u64,
        answer: Result<Answer, StoreError>,
    ) {
        let Some(mut task) = self.gateways[gateway].tasks.remove(&key) else {
            return;
        };
        self.take_answer(gateway, &mut task, token, answer);
        self.pump(gateway, &mut task);
        self.keep_task(gateway, task);
    }

    fn take_answer(
        &mut self,
        gateway: usize,
        task: &mut Task,
        token: u64,
        answer: Result<Answer, StoreError>,
    ) {
        let now = self.instant(self.now);
        match (&mut task.stage, answer) {
            (Stage::Relay(_), answer) => self.relay_answered(gateway, task, token, answer),
            (Stage::Finish(finish), answer) if finish.commit.token == Some(token) => {
                finish.commit.token = None;
                let output = commit_output(&mut finish.commit.machine, answer, now);
                self.continue_finish(gateway, task, output);
            }
            // A read of the relay that has ended.
            (Stage::Finish(_), _) => {}
            (Stage::Prepare, Ok(Answer::Run(Some(run)))) if run.status == RunStatus::Created => {
                task.run = *run;
                self.claim(gateway, task, 1);
            }
            (Stage::Claim(claim), Ok(Answer::Claimed(Dispatched::Owned(run)))) => {
                let (attempt, requested_at) = (claim.dispatch.attempt, claim.requested_at);
                task.run = *run;
                self.claimed(gateway, task, attempt, requested_at);
            }
            (Stage::Claim(claim), Err(error)) => match claim.window.after(error, now) {
                AfterError::Retry { pause, .. } => {
                    let at = self.now + u64::try_from(pause.as_millis()).unwrap();
                    claim.retry_at = Some(at);
                    self.wake_task(gateway, task, at);
                }
                AfterError::Fail(error) => self.stop_driving(gateway, task, &error),
            },
            (
                Stage::Extend {
                    attempt,
                    requested_at,
                },
                Ok(Answer::Renewed(renewed)),
            ) if renewed.held.contains_key(&task.key.0) => {
                let (attempt, held_until) = (*attempt, *requested_at + LEASE);
                self.owned(gateway, task, attempt, held_until);
            }
            (Stage::Defer { .. }, Ok(Answer::Flag(true))) => {
                self.begin_relay(gateway, task, RelaySource::Appends);
            }
            (Stage::Defer { window, retry_at }, Err(error)) => match window.after(error, now) {
                AfterError::Retry { pause, .. } => {
                    let at = self.now + u64::try_from(pause.as_millis()).unwrap();
                    *retry_at = Some(at);
                    self.wake_task(gateway, task, at);
                }
                AfterError::Fail(error) => self.stop_driving(gateway, task, &error),
            },
            (Stage::Own { leases, failure }, Ok(answer)) => {
                let (leases, failure) = (*leases, failure.clone());
                self.own_answered(gateway, task, leases, failure, answer);
            }
            // Another process owns the run, or recovery takes it over.
            _ => task.stage = Stage::Done,
        }
    }

    fn own_answered(
        &mut self,
        gateway: usize,
        task: &mut Task,
        leases: LeaseFilter,
        failure: Failure,
        answer: Answer,
    ) {
        let taken = match answer {
            Answer::Run(Some(run)) => {
                task.run = *run;
                let owner = self.gateways[gateway].owner.clone();
                match claim_of(task.run.status, leases) {
                    Some(OrphanClaim::TakeOver(leases)) => {
                        let ids = vec![task.run.id];
                        let op = Op::TakeOver { owner, ids, leases };
                        self.ask(gateway, task, op);
                    }
                    Some(OrphanClaim::Begin) => {
                        let dispatch = self.dispatch(gateway, &task.run, task.run.attempt + 1);
                        self.ask(gateway, task, Op::Claim(Box::new(dispatch)));
                    }
                    None => task.stage = Stage::Done,
                }
                return;
            }
            Answer::Taken(mut taken) => taken.pop().map(|(run, _)| run),
            Answer::Claimed(Dispatched::Owned(run)) => Some(*run),
            _ => None,
        };
        task.stage = Stage::Done;
        if let Some(run) = taken {
            self.end_owned(gateway, run, failure);
        }
    }

    // --- claim and POST ---

    fn dispatch(&self, gateway: usize, run: &Run, attempt: u32) -> Dispatch {
        Dispatch {
            run: run.clone(),
            attempt,
            owner: self.gateways[gateway].owner.clone(),
            lease: millis(LEASE),
            context: RawValue::NULL.to_owned().into(),
            shared: SharedParts::default(),
            deadline_at: run.deadline_at,
            at: self.epoch_ms(gateway),
        }
    }

    fn claim(&mut self, gateway: usize, task: &mut Task, attempt: u32) {
        let dispatch = self.dispatch(gateway, &task.run, attempt);
        let op = Op::Claim(Box::new(dispatch.clone()));
        task.stage = Stage::Claim(Box::new(ClaimStage {
            dispatch,
            requested_at: self.now,
            window: RetryWindow::new(millis(LEASE)),
            retry_at: None,
        }));
        self.ask(gateway, task, op);
    }

    fn claimed(&mut self, gateway: usize, task: &mut Task, attempt: u32, requested_at: u64) {
        let (requested, now) = (self.instant(requested_at), self.instant(self.now));
        if is_fresh(requested, now, millis(LEASE)) {
            return self.owned(gateway, task, attempt, requested_at + LEASE);
        }
        task.stage = Stage::Extend {
            attempt,
            requested_at: self.now,
        };
        let owner = self.gateways[gateway].owner.clone();
        let ids = vec![task.run.id];
        self.ask(gateway, task, Op::Renew { owner, ids });
    }

    /// Posts the run, if the lease still holds.
    fn owned(&mut self, gateway: usize, task: &mut Task, attempt: u32, held_until: u64) {
        task.live.hold_until(self.instant(held_until));
        if let Some(at) = task.run.cancel_requested_at {
            task.live.request_cancel(at);
        }
        if !task.live.is_held(self.instant(self.now)) {
            task.stage = Stage::Done;
            return;
        }
        // A cancelled run must not reach its runner.
        if task.live.cancel.is_cancelled() {
            return self.finish_with(gateway, task, Failure::cancelled());
        }
        self.serial += 1;
        task.connection = self.serial;
        let first_byte_until = self.now + FIRST_BYTE;
        task.stage = Stage::Post {
            attempt,
            first_byte_until,
            answer: None,
        };
        let connection = Connection {
            process: self.gateways[gateway].process,
            key: task.key,
            number: task.connection,
        };
        let at = self.now + self.random.between(1, 20);
        self.at(at, Happening::RunnerReceives(connection));
        self.wake_task(gateway, task, first_byte_until);
        let deadline = u64::try_from(task.run.deadline_at - self.epoch_ms(gateway)).unwrap_or(0);
        self.wake_task(gateway, task, self.now + deadline);
    }

    pub(super) fn post_answered(&mut self, connection: Connection, answered: PostAnswer) {
        let gateway = connection.process.gateway;
        let task = self.gateways[gateway].tasks.get_mut(&connection.key);
        if let Some(task) = task
            && task.connection == connection.number
            && let Stage::Post { answer, .. } = &mut task.stage
        {
            *answer = Some(answered);
            self.advance(gateway, connection.key);
        }
    }

    fn pump_post(&mut self, gateway: usize, task: &mut Task) {
        let interruption = self.interruption(gateway, task);
        let Stage::Post {
            attempt,
            first_byte_until,
            answer,
        } = &mut task.stage
        else {
            return;
        };
        let (attempt, is_late) = (*attempt, self.now >= *first_byte_until);
        let answer = answer.take();
        if let Some(failure) = interruption {
            let is_cancel = failure.code == FailureCode::Cancelled;
            // The runner may already work, so it gets its grace.
            if !is_cancel || self.is_grace_over(gateway, task) {
                return self.finish_with(gateway, task, failure);
            }
        }
        let (class, failure) = match answer {
            Some(PostAnswer::Stream) => {
                return self.begin_stream(gateway, task);
            }
            Some(PostAnswer::Deferred) => {
                task.live.appends.store(true, Ordering::Release);
                task.stage = Stage::Defer {
                    window: RetryWindow::new(millis(LEASE)),
                    retry_at: None,
                };
                return self.start_async(gateway, task);
            }
            Some(PostAnswer::Failed(class, failure)) => (class, failure),
            None if is_late => {
                let code = FailureCode::RunnerFirstByteTimeout;
                (AttemptFailure::Uncertain, Failure::new(code, "no answer"))
            }
            None => return,
        };
        let left = task.run.deadline_at - self.epoch_ms(gateway);
        let left = millis(u64::try_from(left).unwrap_or(0));
        let jitter = f64::from(u8::try_from(self.random.between(0, 255)).unwrap()) / 255.0;
        match after_failure(attempt, RETRIES, class, left, jitter) {
            RetryDecision::RetryAfter(wait) => {
                let until = self.now + u64::try_from(wait.as_millis()).unwrap();
                task.stage = Stage::Backoff { attempt, until };
                self.wake_task(gateway, task, until);
            }
            RetryDecision::Fail => self.finish_with(gateway, task, failure),
        }
    }

    fn start_async(&mut self, gateway: usize, task: &Task) {
        let op = Op::StartAsync {
            run: task.run.id,
            attempt: task.run.attempt,
        };
        self.ask(gateway, task, op);
    }

    // --- end ---

    /// Acts on the end of a relay.
    pub(super) fn relayed(
        &mut self,
        gateway: usize,
        task: &mut Task,
        outcome: Result<Relayed, RelayStop>,
    ) {
        match after_relay(outcome) {
            NextStep::Finish(relayed) => self.finish(gateway, task, *relayed),
            NextStep::Leave => task.stage = Stage::Done,
            NextStep::Release => {
                task.stage = Stage::Release;
                let op = Op::Release {
                    run: task.run.id,
                    epoch: task.run.fencing_token,
                };
                self.ask(gateway, task, op);
            }
            NextStep::Stop(error) => self.stop_driving(gateway, task, &error),
        }
    }

    fn stop_driving(&mut self, gateway: usize, task: &mut Task, error: &StoreError) {
        task.stage = Stage::Done;
        if let Some(failure) = failure_after(error) {
            self.own(gateway, task.run.clone(), LeaseFilter::Own, failure);
        }
    }

    /// Ends a run with a failure of the gateway.
    pub(super) fn finish_with(&mut self, gateway: usize, task: &mut Task, failure: Failure) {
        let relayed = Relayed {
            buffer: EventBuffer::new(&task.run),
            tally: ResultCounts::default(),
            ending: EndCause::Gateway {
                failure,
                messages: RunMessages::default(),
            },
        };
        self.finish(gateway, task, relayed);
    }

    fn finish(&mut self, gateway: usize, task: &mut Task, relayed: Relayed) {
        let Relayed {
            mut buffer,
            tally,
            ending,
        } = relayed;
        let at = self.epoch_ms(gateway);
        let mut terminal = terminal_of(&task.run, &mut buffer, tally, ending, at / 1000);
        terminal.promotion = task.run.conversation_key.as_ref().map(|key| Promotion {
            conversation_key: key.clone(),
            promote_next: Arc::new(|_, _, _| None),
        });
        let (append, frames) = buffer.take(Some(terminal), at);
        task.live.begin_end();
        let commit = CommitStage::new(CommitMachine::new(Arc::new(append), millis(LEASE)));
        task.stage = Stage::Finish(Box::new(FinishStage { commit, frames }));
        self.pump_finish(gateway, task);
    }

    fn pump_finish(&mut self, gateway: usize, task: &mut Task) {
        let Stage::Finish(finish) = &mut task.stage else {
            return;
        };
        if let Some(op) = finish.commit.due(self.now) {
            let token = self.ask(gateway, task, op);
            if let Stage::Finish(finish) = &mut task.stage {
                finish.commit.token = Some(token);
            }
        }
    }

    fn continue_finish(&mut self, gateway: usize, task: &mut Task, output: CommitOutput) {
        let Stage::Finish(finish) = &mut task.stage else {
            return;
        };
        if let CommitOutput::Pause { pause, .. } = &output {
            let at = self.now + u64::try_from(pause.as_millis()).unwrap();
            finish.commit.retry_at = Some(at);
            return self.wake_task(gateway, task, at);
        }
        let CommitOutput::Done(outcome) = output else {
            finish.commit.retry_at = Some(self.now);
            return;
        };
        let frames = std::mem::take(&mut finish.frames);
        match outcome {
            Ok(Appended::Written { next }) => {
                self.check_published(task.run.id, frames.last());
                let live = Arc::clone(&self.gateways[gateway].live);
                live.settle(task.run.id, &task.live, frames);
                task.stage = Stage::Done;
                if !self.gateways[gateway].is_stopping {
                    for id in next {
                        self.spawn_promoted(gateway, id);
                    }
                }
            }
            Ok(Appended::Lost) => task.stage = Stage::Done,
            Err(error) => self.stop_driving(gateway, task, &error),
        }
    }

    fn spawn_promoted(&mut self, gateway: usize, id: RunId) {
        let run = settings::run(settings::event_of(id), 0, 0, self.now);
        self.spawn(gateway, run, None);
    }
}

impl CommitStage {
    pub(super) fn new(machine: CommitMachine) -> Self {
        Self {
            machine,
            token: None,
            retry_at: Some(0),
        }
    }

    /// The operation to send, if one is due.
    pub(super) fn due(&mut self, now: u64) -> Option<Op> {
        self.retry_at.take_if(|at| *at <= now)?;
        let append = self.machine.append();
        Some(match self.machine.next() {
            CommitOutput::FindRun => Op::FindRun(append.run_id),
            _ => Op::Append(Arc::clone(append)),
        })
    }
}

/// Passes the answer of a write or of a read to the machine.
pub(super) fn commit_output(
    machine: &mut CommitMachine,
    answer: Result<Answer, StoreError>,
    now: Instant,
) -> CommitOutput {
    let is_confirming = matches!(machine.next(), CommitOutput::FindRun);
    match answer {
        Ok(Answer::Run(row)) => machine.on_found(Ok(row.map(|row| *row)), now),
        Ok(Answer::Appended(appended)) => machine.on_written(Ok(appended), now),
        Ok(_) => unreachable!("the answer of another operation"),
        Err(error) if is_confirming => machine.on_found(Err(error), now),
        Err(error) => machine.on_written(Err(error), now),
    }
}
