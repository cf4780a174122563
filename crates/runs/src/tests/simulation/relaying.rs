//! The relay of a simulated gateway: it executes the outputs of the real [`RelayMachine`].

use std::collections::VecDeque;

use domain::normalize::ResultValidator;
use protocol::admin::DeltaMode;
use runner_client::ResultFormat;
use store::StoreError;

use super::database::{Answer, Op};
use super::drive::commit_output;
use super::settings::{LEASE, LIMITS, POLL, SILENCE, event_of, millis, snapshots};
use super::task::{CommitStage, Lookup, RelayStage, Source, Stage, Task, Watches};
use super::world::{Connection, World};
use crate::ledger::commit::{AfterError, CommitMachine, CommitOutput, RetryWindow};
use crate::relay::reader::ResultReader;
use crate::relay::source::{AppendCursor, SourceRead};
use crate::relay::{
    RelayFacts, RelayInput, RelayMachine, RelayOutput, RelaySource, RelayStop, RelayWait,
};

impl World {
    pub(super) fn begin_stream(&mut self, gateway: usize, task: &mut Task) {
        let reader = ResultReader::new(ResultFormat::JsonLines, 4_000, LIMITS);
        self.begin_relay(gateway, task, RelaySource::Stream(Box::new(reader)));
        self.pump_relay(gateway, task);
    }

    pub(super) fn begin_relay(&mut self, gateway: usize, task: &mut Task, source: RelaySource) {
        let snapshot = &snapshots()[event_of(task.run.id)];
        let validator = ResultValidator::new(snapshot, LIMITS, DeltaMode::Increment, true);
        let appends = |backlog_end| Source::Appends {
            cursor: AppendCursor::new(backlog_end),
            token: None,
            look_at: 0,
        };
        let results = match &source {
            RelaySource::Stream(_) => Source::Stream,
            RelaySource::Appends => appends(None),
            RelaySource::Backlog(point) => appends(Some(point.accepted_through)),
        };
        let now = self.instant(self.now);
        let machine = RelayMachine::new(&task.run, validator, source, millis(SILENCE), now);
        task.stage = Stage::Relay(Box::new(RelayStage {
            machine,
            source: results,
            reads: VecDeque::new(),
            commit: None,
            committed: None,
            lookup: None,
            watches: Watches::default(),
        }));
        let deadline = u64::try_from(task.run.deadline_at - self.epoch_ms(gateway)).unwrap_or(0);
        self.wake_task(gateway, task, self.now + deadline);
    }

    /// Bytes of the runner's response.
    pub(super) fn read(&mut self, connection: Connection, read: SourceRead) {
        let gateway = connection.process.gateway;
        let task = self.gateways[gateway].tasks.get_mut(&connection.key);
        if let Some(task) = task
            && task.connection == connection.number
            && let Stage::Relay(relay) = &mut task.stage
        {
            relay.reads.push_back(read);
            self.advance(gateway, connection.key);
        }
    }

    fn facts(&self, gateway: usize, task: &Task) -> RelayFacts {
        RelayFacts {
            now: self.instant(self.now),
            epoch_ms: self.epoch_ms(gateway),
            is_cancelled: task.live.cancel.is_cancelled(),
        }
    }

    pub(super) fn pump_relay(&mut self, gateway: usize, task: &mut Task) {
        loop {
            self.send_due(gateway, task);
            let facts = self.facts(gateway, task);
            let signal = self.signal(gateway, task);
            let Stage::Relay(relay) = &mut task.stage else {
                return;
            };
            if relay.lookup.is_some() {
                // The product waits for the answer or the loss of the run.
                if signal != Some(Signal::Lost) {
                    return;
                }
                relay.lookup = None;
                relay.machine.on(RelayInput::Lost, facts);
            }
            let input = match relay.machine.step(facts) {
                RelayOutput::Wait(wait) => match self.next_input(gateway, task, wait, signal) {
                    Some(input) => input,
                    None => return,
                },
                RelayOutput::AwaitCommit => match relay.committed.take() {
                    Some(outcome) => RelayInput::Committed(outcome),
                    None => return,
                },
                RelayOutput::End(cause) => {
                    let stage = std::mem::replace(&mut task.stage, Stage::Done);
                    let Stage::Relay(relay) = stage else { return };
                    let relayed = relay.machine.into_relayed(cause);
                    return self.relayed(gateway, task, Ok(relayed));
                }
                RelayOutput::Stop(stop) => return self.stopped(gateway, task, stop),
                other => {
                    self.execute(gateway, task, other);
                    continue;
                }
            };
            if let Stage::Relay(relay) = &mut task.stage {
                relay.machine.on(input, facts);
            }
        }
    }

    fn stopped(&mut self, gateway: usize, task: &mut Task, stop: RelayStop) {
        self.relayed(gateway, task, Err(stop));
    }

    /// Sends the operations whose pause is over.
    fn send_due(&mut self, gateway: usize, task: &mut Task) {
        let now = self.now;
        let Stage::Relay(relay) = &mut task.stage else {
            return;
        };
        if let Some(op) = relay.commit.as_mut().and_then(|commit| commit.due(now)) {
            let token = self.ask(gateway, task, op);
            if let Stage::Relay(relay) = &mut task.stage
                && let Some(commit) = &mut relay.commit
            {
                commit.token = Some(token);
            }
        }
        let Stage::Relay(relay) = &mut task.stage else {
            return;
        };
        if let Some(lookup) = &mut relay.lookup
            && lookup.retry_at.take_if(|at| *at <= now).is_some()
        {
            let op = Op::CloseAppends {
                run: task.run.id,
                epoch: task.run.fencing_token,
                only_if_expired: false,
            };
            let token = self.ask(gateway, task, op);
            if let Stage::Relay(relay) = &mut task.stage
                && let Some(lookup) = &mut relay.lookup
            {
                lookup.token = token;
            }
        }
    }

    /// The next signal of the watches, if there is one.
    fn signal(&mut self, gateway: usize, task: &mut Task) -> Option<Signal> {
        let interruption = self.interruption(gateway, task);
        let Stage::Relay(relay) = &task.stage else {
            return None;
        };
        let watches = &relay.watches;
        if task.live.lost.is_cancelled() {
            return Some(Signal::Lost);
        }
        if watches.interrupts && interruption.is_some() {
            return Some(Signal::Interrupted);
        }
        if watches.grace && self.is_grace_over(gateway, task) {
            return Some(Signal::GraceOver);
        }
        if watches.release && self.gateways[gateway].is_stopping {
            return Some(Signal::Released);
        }
        let is_silent = watches.silence_at.is_some_and(|at| at <= self.now);
        is_silent.then_some(Signal::Silent)
    }

    /// An input for a waiting machine. Usually the first that is ready in the order of the product, else any.
    fn next_input(
        &mut self,
        gateway: usize,
        task: &mut Task,
        wait: RelayWait,
        signal: Option<Signal>,
    ) -> Option<RelayInput> {
        let interruption = self.interruption(gateway, task);
        let prefers_signal = signal.is_some() && self.random.chance(20);
        self.look(gateway, task, wait);
        let Stage::Relay(relay) = &mut task.stage else {
            return None;
        };
        if !prefers_signal {
            if wait.for_reads
                && let Some(read) = relay.take_read()
            {
                return Some(RelayInput::Read(read));
            }
            if let Some(outcome) = relay.committed.take() {
                return Some(RelayInput::Committed(outcome));
            }
        }
        let watches = &mut relay.watches;
        match signal {
            Some(Signal::Lost) => Some(RelayInput::Lost),
            Some(Signal::Interrupted) => {
                watches.interrupts = false;
                interruption.map(RelayInput::Interrupted)
            }
            Some(Signal::GraceOver) => {
                watches.grace = false;
                interruption.map(RelayInput::Interrupted)
            }
            Some(Signal::Released) => {
                watches.release = false;
                Some(RelayInput::Released)
            }
            Some(Signal::Silent) => {
                watches.silence_at = None;
                Some(RelayInput::Silent)
            }
            None if wait.for_pause => Some(RelayInput::Paused),
            None if wait.for_poll => Some(RelayInput::Polled),
            None => None,
        }
    }

    /// Executes an output that needs no input at once.
    fn execute(&mut self, gateway: usize, task: &mut Task, output: RelayOutput) {
        let now = self.now;
        let Stage::Relay(relay) = &mut task.stage else {
            return;
        };
        match output {
            RelayOutput::Commit(append) => {
                let machine = CommitMachine::new(append, millis(LEASE));
                relay.commit = Some(CommitStage::new(machine));
            }
            RelayOutput::Publish(frames, _) => {
                if !frames.ends.is_empty() {
                    self.check_published(task.run.id, frames.last());
                }
                task.live.log.publish(frames);
            }
            // No run of the simulation uploads artifacts.
            RelayOutput::FindArtifact(_) => {
                let facts = self.facts(gateway, task);
                if let Stage::Relay(relay) = &mut task.stage {
                    relay
                        .machine
                        .on(RelayInput::ArtifactFound(Ok(false)), facts);
                }
            }
            RelayOutput::FindCancel => {
                let token = self.ask(gateway, task, Op::FindRun(task.run.id));
                Self::begin_lookup(task, token, false);
            }
            RelayOutput::CloseAppends => {
                // A look in flight is dropped, as `select!` drops its future.
                if let Source::Appends { token, .. } = &mut relay.source {
                    *token = None;
                }
                let op = Op::CloseAppends {
                    run: task.run.id,
                    epoch: task.run.fencing_token,
                    only_if_expired: false,
                };
                let token = self.ask(gateway, task, op);
                Self::begin_lookup(task, token, true);
            }
            RelayOutput::WatchInterrupts => relay.watches.interrupts = true,
            RelayOutput::WatchGrace => relay.watches.grace = true,
            RelayOutput::WatchRelease => relay.watches.release = true,
            RelayOutput::WatchSilence(at) => {
                let begin = self.instant(now);
                let wait = at.saturating_duration_since(begin).as_millis();
                let at = now + u64::try_from(wait).unwrap();
                relay.watches.silence_at = Some(at);
                self.wake_task(gateway, task, at);
            }
            RelayOutput::Wait(_)
            | RelayOutput::AwaitCommit
            | RelayOutput::End(_)
            | RelayOutput::Stop(_) => unreachable!("the caller handles these outputs"),
        }
    }

    fn begin_lookup(task: &mut Task, token: u64, closes: bool) {
        if let Stage::Relay(relay) = &mut task.stage {
            relay.lookup = Some(Lookup {
                token,
                window: RetryWindow::new(millis(LEASE)),
                retry_at: None,
                closes,
            });
        }
    }

    /// Reads appended results, if no read is in flight.
    fn look(&mut self, gateway: usize, task: &mut Task, wait: RelayWait) {
        let now = self.now;
        let Stage::Relay(relay) = &mut task.stage else {
            return;
        };
        let Source::Appends {
            cursor,
            token,
            look_at,
        } = &mut relay.source
        else {
            return;
        };
        if !wait.for_reads || !relay.reads.is_empty() || token.is_some() || *look_at > now {
            return;
        }
        if cursor.take_caught_up() {
            relay.reads.push_back(SourceRead::CaughtUp);
            return;
        }
        let op = Op::ReadAppends {
            run: task.run.id,
            after: cursor.read_through(),
        };
        let requested = self.ask(gateway, task, op);
        if let Stage::Relay(relay) = &mut task.stage
            && let Source::Appends { token, .. } = &mut relay.source
        {
            *token = Some((requested, false));
        }
    }

    /// Takes an answer for the commit, the lookup or the read in flight. Others were dropped.
    pub(super) fn relay_answered(
        &mut self,
        gateway: usize,
        task: &mut Task,
        token: u64,
        answer: Result<Answer, StoreError>,
    ) {
        let now = self.instant(self.now);
        let facts = self.facts(gateway, task);
        let Stage::Relay(relay) = &mut task.stage else {
            return;
        };
        if let Some(commit) = &mut relay.commit
            && commit.token == Some(token)
        {
            commit.token = None;
            match commit_output(&mut commit.machine, answer, now) {
                CommitOutput::Pause { pause, .. } => {
                    let at = self.now + u64::try_from(pause.as_millis()).unwrap();
                    commit.retry_at = Some(at);
                    self.wake_task(gateway, task, at);
                }
                CommitOutput::Done(outcome) => {
                    relay.commit = None;
                    relay.committed = Some(outcome);
                }
                CommitOutput::Write | CommitOutput::FindRun => commit.retry_at = Some(self.now),
            }
        } else if relay
            .lookup
            .as_ref()
            .is_some_and(|lookup| lookup.token == token)
        {
            self.lookup_answered(gateway, task, answer, facts);
        } else {
            self.look_answered(gateway, task, token, answer);
        }
    }

    fn lookup_answered(
        &mut self,
        gateway: usize,
        task: &mut Task,
        answer: Result<Answer, StoreError>,
        facts: RelayFacts,
    ) {
        let Stage::Relay(relay) = &mut task.stage else {
            return;
        };
        let Some(mut lookup) = relay.lookup.take() else {
            return;
        };
        let input = match answer {
            Err(error) if lookup.closes => match lookup.window.after(error, facts.now) {
                AfterError::Retry { pause, .. } => {
                    let at = self.now + u64::try_from(pause.as_millis()).unwrap();
                    lookup.retry_at = Some(at);
                    relay.lookup = Some(lookup);
                    return self.wake_task(gateway, task, at);
                }
                AfterError::Fail(error) => RelayInput::AppendsClosed(Err(error)),
            },
            Ok(Answer::Closed(closed)) => {
                let is_ours = match &mut relay.source {
                    Source::Appends { cursor, .. } => cursor.on_closed(closed),
                    Source::Stream => true,
                };
                RelayInput::AppendsClosed(Ok(is_ours))
            }
            Ok(Answer::Run(Some(run))) => {
                RelayInput::CancelFound(run.cancel_requested_at.is_some())
            }
            _ => RelayInput::CancelFound(false),
        };
        relay.machine.on(input, facts);
    }

    fn look_answered(
        &mut self,
        gateway: usize,
        task: &mut Task,
        answered: u64,
        answer: Result<Answer, StoreError>,
    ) {
        let now = self.now;
        let Stage::Relay(relay) = &mut task.stage else {
            return;
        };
        let Source::Appends {
            cursor,
            token,
            look_at,
        } = &mut relay.source
        else {
            return;
        };
        if token.is_none_or(|(token, _)| token != answered) {
            return;
        }
        *token = None;
        let mut pause = POLL;
        match answer {
            Ok(Answer::Appends {
                found: Some((last, results)),
                ..
            }) => {
                relay.reads.push_back(cursor.advance(last, results));
                return;
            }
            Ok(Answer::Appends {
                is_expired: true, ..
            }) => {
                let op = Op::CloseAppends {
                    run: task.run.id,
                    epoch: task.run.fencing_token,
                    only_if_expired: true,
                };
                let requested = self.ask(gateway, task, op);
                if let Stage::Relay(relay) = &mut task.stage
                    && let Source::Appends { token, .. } = &mut relay.source
                {
                    *token = Some((requested, true));
                }
                return;
            }
            Ok(Answer::Closed(closed)) => match cursor.on_expired(closed) {
                Ok(read) => {
                    relay.reads.push_back(read);
                    return;
                }
                Err(wait) => {
                    pause = wait.map_or(POLL, |_| 5);
                }
            },
            _ => {}
        }
        *look_at = now + pause;
        self.wake_task(gateway, task, now + pause);
    }
}

/// Kinds of signals that are ready.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    Lost,
    Interrupted,
    GraceOver,
    Released,
    Silent,
}

impl RelayStage {
    fn take_read(&mut self) -> Option<SourceRead> {
        self.reads.pop_front()
    }
}
