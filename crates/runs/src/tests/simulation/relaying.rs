//! The relay of a simulated gateway: it executes the outputs of the real [`RelayMachine`].

use domain::normalize::{ExpectedOutput, ResultValidator};
use protocol::admin::DeltaMode;
use store::{RejectedResults, StoreError};

use super::database::{Answer, Op};
use super::driver::Driver;
use super::settings::{LEASE, LIMITS, POLL, SILENCE, event_of, millis, snapshots};
use super::task::{CommitStage, Lookup, RelayStage, Retry, Source, Watches};
use crate::ending::EndCause;
use crate::ledger::commit::CommitMachine;
use crate::relay::source::{AppendCursor, SourceRead};
use crate::relay::{
    RelayFacts, RelayInput, RelayMachine, RelayOutput, RelaySource, RelayStop, RelayWait,
    ReplayedLine, Restart, RestoredRun, after_stored, resumable,
};

/// Kinds of signals that are ready.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    Lost,
    Interrupted,
    GraceOver,
    Released,
    Silent,
}

fn facts(driver: &Driver) -> RelayFacts {
    RelayFacts {
        now: driver.now(),
        epoch_ms: driver.epoch_ms(),
        is_cancelled: driver.task.live.cancel.is_cancelled(),
    }
}

fn close_appends(driver: &mut Driver, only_if_expired: bool) -> u64 {
    let op = Op::CloseAppends {
        run: driver.task.run.id,
        epoch: driver.task.run.fencing_token,
        only_if_expired,
    };
    driver.request(op)
}

/// The validator of a task, after the results of its ledger.
pub(super) fn restored(driver: &Driver) -> RestoredRun<'static> {
    restored_before(driver, None)
}

/// The same, before this new start.
pub(super) fn restored_before(driver: &Driver, next: Option<Restart>) -> RestoredRun<'static> {
    let snapshot = &snapshots()[event_of(driver.task.run.id)];
    let validator = || {
        ResultValidator::new(
            snapshot,
            LIMITS,
            DeltaMode::Increment,
            ExpectedOutput::Message,
        )
    };
    let Some(resumption) = &driver.task.resumption else {
        return RestoredRun::new(validator(), RejectedResults::default(), 0);
    };
    let mut restarts = Vec::new();
    loop {
        let earlier = restarts.iter().copied().chain(next).collect();
        let mut restored = RestoredRun::new(validator(), resumption.rejected.clone(), u64::MAX)
            .with_restarts(earlier);
        let next_restart = resumption
            .lines
            .iter()
            .find_map(|line| match restored.add(line) {
                ReplayedLine::Added => None,
                ReplayedLine::Restart(restart) => Some(restart),
                ReplayedLine::Unreadable => panic!("{line}"),
            });
        let Some(restart) = next_restart else {
            restored.finish();
            return restored;
        };
        restarts.push(restart);
    }
}

impl RelayStage {
    pub(super) fn new(driver: &Driver, source: RelaySource) -> Self {
        let run = &driver.task.run;
        let restored = restored(driver);
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
        let now = driver.now();
        let validator = restored.validator;
        let machine = RelayMachine::new(run, validator, source, millis(SILENCE), now);
        let mut machine = after_stored(machine, &restored.stored);
        if driver.net.is_resumable(run.id) {
            machine = resumable(machine);
        }
        Self {
            machine,
            source: results,
            reads: [].into(),
            commit: None,
            committed: None,
            lookup: None,
            watches: Watches::default(),
        }
    }

    /// Continues until the relay ends, stops or waits.
    pub(super) fn pump(&mut self, driver: &mut Driver) -> Option<Result<EndCause, RelayStop>> {
        loop {
            self.send_due(driver);
            let facts = facts(driver);
            let signal = self.signal(driver);
            if self.lookup.is_some() {
                // The product waits for the answer or the loss of the run.
                if signal != Some(Signal::Lost) {
                    return None;
                }
                self.lookup = None;
                self.machine.on(RelayInput::Lost, facts);
            }
            let input = match self.machine.step(facts) {
                RelayOutput::Wait(wait) => self.next_input(driver, wait, signal)?,
                RelayOutput::AwaitCommit => RelayInput::Committed(self.committed.take()?),
                RelayOutput::End(cause) => return Some(Ok(cause)),
                RelayOutput::Stop(stop) => return Some(Err(stop)),
                other => {
                    self.execute(driver, other);
                    continue;
                }
            };
            self.machine.on(input, facts);
        }
    }

    /// Sends the operations whose pause is over.
    fn send_due(&mut self, driver: &mut Driver) {
        if let Some(commit) = &mut self.commit {
            commit.send_due(driver);
        }
        if let Some(lookup) = &mut self.lookup
            && lookup.retry.is_due(driver.net.now)
        {
            lookup.token = close_appends(driver, false);
        }
    }

    /// The next signal of the watches, if there is one.
    fn signal(&self, driver: &mut Driver) -> Option<Signal> {
        let watches = &self.watches;
        if driver.task.live.lost.is_cancelled() {
            return Some(Signal::Lost);
        }
        if watches.interrupts && driver.interruption().is_some() {
            return Some(Signal::Interrupted);
        }
        if watches.grace && driver.is_grace_over() {
            return Some(Signal::GraceOver);
        }
        if watches.release && driver.gateway.is_stopping {
            return Some(Signal::Released);
        }
        let is_silent = watches.silence_at.is_some_and(|at| at <= driver.net.now);
        is_silent.then_some(Signal::Silent)
    }

    /// An input for a waiting machine. Usually the first that is ready in the order of the product, else any.
    fn next_input(
        &mut self,
        driver: &mut Driver,
        wait: RelayWait,
        signal: Option<Signal>,
    ) -> Option<RelayInput> {
        let prefers_signal = signal.is_some() && driver.net.random.chance(20);
        if wait.for_reads && self.reads.is_empty() {
            self.look(driver);
        }
        if !prefers_signal {
            if wait.for_reads
                && let Some(read) = self.reads.pop_front()
            {
                return Some(RelayInput::Read(read));
            }
            if let Some(outcome) = self.committed.take() {
                return Some(RelayInput::Committed(outcome));
            }
        }
        let watches = &mut self.watches;
        match signal {
            Some(Signal::Lost) => Some(RelayInput::Lost),
            Some(Signal::Interrupted) => {
                watches.interrupts = false;
                driver.interruption().map(RelayInput::Interrupted)
            }
            Some(Signal::GraceOver) => {
                watches.grace = false;
                driver.interruption().map(RelayInput::Interrupted)
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
    fn execute(&mut self, driver: &mut Driver, output: RelayOutput) {
        match output {
            RelayOutput::Commit(append) => {
                let machine = CommitMachine::new(append, millis(LEASE));
                self.commit = Some(CommitStage::new(machine));
            }
            RelayOutput::Publish(frames, _) => {
                if !frames.ends.is_empty() {
                    let id = driver.task.run.id;
                    driver.net.db.check_published(id, frames.last());
                }
                driver.task.live.log.publish(frames);
            }
            // No run of the simulation uploads artifacts.
            RelayOutput::FindArtifact(_) => {
                let found = RelayInput::ArtifactFound(Ok(false));
                self.machine.on(found, facts(driver));
            }
            RelayOutput::FindCancel => {
                let token = driver.request(Op::FindRun(driver.task.run.id));
                self.lookup = Some(Lookup {
                    token,
                    retry: Retry::new(),
                    closes: false,
                });
            }
            RelayOutput::CloseAppends => {
                // A look in flight is dropped, as `select!` drops its future.
                if let Source::Appends { token, .. } = &mut self.source {
                    *token = None;
                }
                let token = close_appends(driver, false);
                self.lookup = Some(Lookup {
                    token,
                    retry: Retry::new(),
                    closes: true,
                });
            }
            RelayOutput::WatchInterrupts => self.watches.interrupts = true,
            RelayOutput::WatchGrace => self.watches.grace = true,
            RelayOutput::WatchRelease => self.watches.release = true,
            RelayOutput::WatchSilence(at) => {
                let pause = at.saturating_duration_since(driver.now());
                self.watches.silence_at = Some(driver.wake_after(pause));
            }
            RelayOutput::Wait(_)
            | RelayOutput::AwaitCommit
            | RelayOutput::End(_)
            | RelayOutput::Stop(_) => unreachable!("the caller handles these outputs"),
        }
    }

    /// Reads appended results, if no read is in flight.
    fn look(&mut self, driver: &mut Driver) {
        let Source::Appends {
            cursor,
            token,
            look_at,
        } = &mut self.source
        else {
            return;
        };
        if token.is_some() || *look_at > driver.net.now {
            return;
        }
        if cursor.take_caught_up() {
            self.reads.push_back(SourceRead::CaughtUp);
            return;
        }
        let op = Op::ReadAppends {
            run: driver.task.run.id,
            after: cursor.read_through(),
        };
        *token = Some(driver.request(op));
    }

    /// Takes an answer for the commit, the lookup or the read in flight. Others were dropped.
    pub(super) fn answered(
        &mut self,
        driver: &mut Driver,
        token: u64,
        answer: Result<Answer, StoreError>,
    ) {
        if let Some(commit) = &mut self.commit
            && commit.token == Some(token)
        {
            if let Some(outcome) = commit.answered(driver, answer) {
                self.commit = None;
                self.committed = Some(outcome);
            }
        } else if let Some(lookup) = self.lookup.take_if(|lookup| lookup.token == token) {
            self.lookup_answered(driver, lookup, answer);
        } else {
            self.look_answered(driver, token, answer);
        }
    }

    fn lookup_answered(
        &mut self,
        driver: &mut Driver,
        mut lookup: Lookup,
        answer: Result<Answer, StoreError>,
    ) {
        let input = match answer {
            Err(error) if lookup.closes => match lookup.retry.after(driver, error) {
                None => {
                    self.lookup = Some(lookup);
                    return;
                }
                Some(error) => RelayInput::AppendsClosed(Err(error)),
            },
            Ok(Answer::Closed(closed)) => {
                let is_ours = match &mut self.source {
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
        self.machine.on(input, facts(driver));
    }

    fn look_answered(
        &mut self,
        driver: &mut Driver,
        answered: u64,
        answer: Result<Answer, StoreError>,
    ) {
        let Source::Appends {
            cursor,
            token,
            look_at,
        } = &mut self.source
        else {
            return;
        };
        if token.take_if(|token| *token == answered).is_none() {
            return;
        }
        let pause = match answer {
            Ok(Answer::Appends {
                found: Some((last, results)),
                ..
            }) => {
                self.reads.push_back(cursor.advance(last, results));
                return;
            }
            Ok(Answer::Appends {
                is_expired: true, ..
            }) => {
                *token = Some(close_appends(driver, true));
                return;
            }
            Ok(Answer::Closed(closed)) => match cursor.on_expired(closed) {
                Ok(read) => {
                    self.reads.push_back(read);
                    return;
                }
                Err(wait) => wait.map_or(POLL, |_| 5),
            },
            _ => POLL,
        };
        *look_at = driver.net.now + pause;
        driver.wake(*look_at);
    }
}
