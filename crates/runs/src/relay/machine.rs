//! The relay as a state machine: what has happened goes in, what to do comes out. No I/O, no clock.
//!
//! The shell calls [`RelayMachine::step`], executes its output, and passes the result to [`RelayMachine::on`].

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use domain::normalize::ResultValidator;
use domain::run::{Failure, FailureCode, Run};
use protocol::id::{RunId, RunnerId, WorkspaceId};
use store::{Append, Appended, StoreError};
use tokio::time::Instant;

use super::judging::{JudgedNumbers, PendingResult, over_limit};
use super::reader::{ReaderItem, ResultReader};
use super::restored::StoredResults;
use super::signals::Unannounced;
use super::source::{SourceRead, end_of_input};
use super::steps::{RelayFacts, RelayInput, RelayOutput, RelaySource, RelayWait};
use super::{RelayStop, Relayed};
use crate::ending::EndCause;
use crate::event_buffer::EventBuffer;
use crate::live::CommittedFrames;

/// Consecutive reads after which commits and signals are polled.
const READS_IN_A_ROW: u32 = 32;

enum Conclusion {
    End(EndCause),
    Stop(RelayStop),
}

/// A commit in flight, with the frames to publish after it.
struct CommitInFlight {
    frames: CommittedFrames,
    read_at: Option<Instant>,
}

/// Pace of the reads.
struct ReadPace {
    last_read_at: Instant,
    reads_in_a_row: u32,
    /// The source had no data at once.
    is_paused: bool,
    /// The buffer was full at the last step, so the source was not read.
    was_full: bool,
}

/// Relay of one run.
pub(crate) struct RelayMachine<'a> {
    pub(super) run_id: RunId,
    pub(super) workspace: WorkspaceId,
    pub(super) runner_id: RunnerId,
    silence: Duration,
    pub(super) validator: ResultValidator<'a>,
    pub(super) buffer: EventBuffer,
    /// Set for a runner that streams its results.
    reader: Option<Box<ResultReader>>,
    /// Set for a runner that appends its results.
    pub(super) appended: Option<JudgedNumbers>,
    in_flight: Option<CommitInFlight>,
    /// Items of the last chunk; empty between two reads.
    items: Vec<ReaderItem>,
    /// Received results that are not validated yet.
    pub(super) waiting: VecDeque<Vec<u8>>,
    /// The result that waits for a lookup.
    pub(super) pending: Option<PendingResult>,
    /// Failure of the input, after which no more results come.
    pub(super) input_ended: Option<Failure>,
    /// Failure of an input that ended because of its runner; it waits for a lookup of a cancel.
    pub(super) gone: Option<Failure>,
    /// Failure with which the run ends once all accepted results are validated.
    interrupted: Option<Failure>,
    /// The ledger has a note that characters were replaced.
    pub(super) has_noted_repair: bool,
    /// Unknown types that the ledger notes.
    pub(super) unknown_types: HashSet<String>,
    /// The grace of a cancelled run has begun.
    pub(super) cancelling: bool,
    /// The runner works on after a lost connection.
    pub(super) is_resumable: bool,
    pace: ReadPace,
    /// Outputs that precede the next decision.
    outputs: VecDeque<RelayOutput>,
    conclusion: Option<Conclusion>,
}

impl<'a> RelayMachine<'a> {
    /// Relay of a started run. `silence`: maximum silence of a stream.
    pub(crate) fn new(
        run: &Run,
        validator: ResultValidator<'a>,
        source: RelaySource,
        silence: Duration,
        now: Instant,
    ) -> Self {
        let buffer = EventBuffer::new(run);
        let watch_release = RelayOutput::WatchRelease;
        let (buffer, reader, appended, outputs) = match source {
            RelaySource::Stream(reader) => {
                let watches = [
                    RelayOutput::WatchInterrupts,
                    RelayOutput::WatchSilence(now + silence),
                ];
                (buffer, Some(reader), None, VecDeque::from(watches))
            }
            RelaySource::Appends => {
                let watches = [RelayOutput::WatchInterrupts, watch_release];
                let numbers = JudgedNumbers::default();
                (buffer, None, Some(numbers), VecDeque::from(watches))
            }
            // The backlog must be read before an interruption is handled.
            RelaySource::Backlog(resume_point) => {
                let buffer = buffer.after_rejections(resume_point.rejections);
                let numbers = JudgedNumbers::of(resume_point);
                (buffer, None, Some(numbers), VecDeque::from([watch_release]))
            }
        };
        Self {
            run_id: run.id,
            workspace: run.workspace.clone(),
            runner_id: run.runner_id.clone(),
            silence,
            validator: validator.with_uploaded_artifacts(),
            buffer,
            reader,
            appended,
            in_flight: None,
            items: Vec::new(),
            waiting: VecDeque::new(),
            pending: None,
            input_ended: None,
            gone: None,
            interrupted: None,
            has_noted_repair: false,
            unknown_types: HashSet::new(),
            cancelling: false,
            is_resumable: false,
            pace: ReadPace {
                last_read_at: now,
                reads_in_a_row: 0,
                is_paused: false,
                was_full: false,
            },
            outputs,
            conclusion: None,
        }
    }

    /// The next action. The shell executes it before the next step.
    pub(crate) fn step(&mut self, facts: RelayFacts) -> RelayOutput {
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        if self.conclusion.is_none()
            && let Some(lookup) = self.validate_waiting(facts)
        {
            return lookup;
        }
        if self.conclusion.is_some() && self.in_flight.is_some() {
            // The terminal's append continues at this commit's sequence, and a released run at its last result.
            return RelayOutput::AwaitCommit;
        }
        let is_cut = matches!(
            self.conclusion,
            Some(Conclusion::Stop(RelayStop::Disconnected))
        );
        if is_cut && !self.buffer.is_empty() {
            // The runner may have lost the run, and these results with it.
            return RelayOutput::Commit(self.start_commit(facts));
        }
        match self.conclusion.take() {
            Some(Conclusion::End(cause)) => return RelayOutput::End(cause),
            Some(Conclusion::Stop(stop)) => return RelayOutput::Stop(stop),
            None => {}
        }
        let is_full = self.buffer.is_full();
        self.pace.was_full = is_full;
        let may_commit = self.in_flight.is_none() && !self.buffer.is_empty();
        let has_read_enough = self.pace.reads_in_a_row == READS_IN_A_ROW;
        if may_commit && (is_full || self.pace.is_paused || has_read_enough) {
            self.pace.is_paused = false;
            return RelayOutput::Commit(self.start_commit(facts));
        }
        RelayOutput::Wait(RelayWait {
            for_reads: !is_full && !has_read_enough,
            for_pause: may_commit,
            for_poll: has_read_enough,
        })
    }

    /// Takes an occurrence.
    pub(crate) fn on(&mut self, input: RelayInput, facts: RelayFacts) {
        match input {
            RelayInput::Read(read) => self.on_read(read, facts),
            RelayInput::Paused => self.pace.is_paused = true,
            RelayInput::Polled => self.pace.reads_in_a_row = 0,
            RelayInput::Committed(outcome) => {
                self.on_committed(outcome);
                if self.pace.was_full {
                    self.pace.last_read_at = facts.now;
                }
            }
            RelayInput::Lost => self.stop(RelayStop::Lost),
            RelayInput::Released => {
                self.conclusion = Some(Conclusion::Stop(RelayStop::Released));
            }
            RelayInput::Interrupted(failure) => self.on_interrupted(failure),
            RelayInput::Silent => self.on_silent(facts),
            RelayInput::ArtifactFound(Ok(is_uploaded)) => {
                let pending = self.pending.as_mut();
                if let Some(id) = pending.and_then(|pending| pending.artifact.take())
                    && is_uploaded
                {
                    self.validator.add_artifact(id);
                }
            }
            RelayInput::ArtifactFound(Err(error)) => self.stop(RelayStop::Unwritable(error)),
            RelayInput::CancelFound(true) => self.on_cancel_found(),
            RelayInput::CancelFound(false) => self.on_no_cancel_found(),
            RelayInput::UnannouncedFound(rows) => {
                for row in &rows {
                    match row {
                        Unannounced::Action(action) => {
                            self.buffer.announce(action, facts.epoch_ms);
                        }
                        Unannounced::Amendment(amendment) => {
                            self.buffer.amend(amendment, facts.seconds());
                        }
                    }
                }
            }
            RelayInput::AppendsClosed(closed) => match closed {
                Ok(true) => {}
                Ok(false) => self.stop(RelayStop::Lost),
                Err(error) => self.stop(RelayStop::Unwritable(error)),
            },
        }
    }

    /// The uncommitted rest of a relay that has ended.
    pub(crate) fn into_relayed(self, ending: EndCause) -> Relayed {
        Relayed {
            tally: self.validator.tally(),
            buffer: self.buffer,
            ending,
        }
    }

    /// Ends the relay with this cause, after the commit in flight.
    pub(super) fn conclude(&mut self, cause: EndCause) {
        self.conclusion = Some(Conclusion::End(cause));
    }

    /// Ends the relay with a failure of the gateway, after the commit in flight.
    pub(super) fn conclude_with(&mut self, failure: Failure) {
        let cause = self.ended_by_gateway(failure);
        self.conclude(cause);
    }

    /// Stops at once: the outcome of a commit in flight has no meaning any more.
    fn stop(&mut self, stop: RelayStop) {
        self.in_flight = None;
        self.conclusion = Some(Conclusion::Stop(stop));
    }

    fn on_read(&mut self, read: SourceRead, facts: RelayFacts) {
        if !matches!(read, SourceRead::CaughtUp) {
            self.take(read, facts);
        } else if let Some(failure) = self.interrupted.take() {
            return self.conclude_with(failure);
        } else {
            self.outputs.push_back(RelayOutput::WatchInterrupts);
        }
        self.pace.last_read_at = facts.now;
        self.pace.reads_in_a_row += 1;
        self.pace.is_paused = false;
    }

    fn on_committed(&mut self, outcome: Result<Appended, StoreError>) {
        let Some(done) = self.in_flight.take() else {
            return;
        };
        match outcome {
            Ok(Appended::Written { .. }) => {
                let published = RelayOutput::Publish(done.frames, done.read_at);
                self.outputs.push_back(published);
            }
            Ok(Appended::Lost) => self.stop(RelayStop::Lost),
            // The next owner, perhaps this process, validates the results that another replica has accepted.
            Ok(Appended::Overtaken) => self.stop(RelayStop::Released),
            Err(error) => self.stop(RelayStop::Unwritable(error)),
        }
    }

    fn on_interrupted(&mut self, failure: Failure) {
        if !self.cancelling && failure.code == FailureCode::Cancelled {
            self.cancelling = true;
            self.outputs.push_back(RelayOutput::WatchGrace);
        } else if self.appended.is_some() {
            // The runner has a confirmation for the accepted results, so they must reach the ledger.
            self.interrupted = Some(failure);
            self.outputs.push_back(RelayOutput::CloseAppends);
        } else {
            self.conclude_with(failure);
        }
    }

    // Armed again only after it has expired: a timer for each event would be expensive.
    fn on_silent(&mut self, facts: RelayFacts) {
        let silent_at = self.pace.last_read_at + self.silence;
        if is_silent(self, facts.now) {
            self.take(SourceRead::Silent, facts);
        } else if self.pace.was_full {
            let again_at = facts.now + self.silence;
            self.outputs.push_back(RelayOutput::WatchSilence(again_at));
        } else {
            self.outputs.push_back(RelayOutput::WatchSilence(silent_at));
        }
    }

    fn start_commit(&mut self, facts: RelayFacts) -> Arc<Append> {
        let read_at = self.buffer.take_read_at();
        let (append, frames) = self.buffer.take(None, facts.epoch_ms);
        self.in_flight = Some(CommitInFlight { frames, read_at });
        Arc::new(append)
    }

    /// Queues received results for validation.
    fn take(&mut self, read: SourceRead, facts: RelayFacts) {
        let mut items = std::mem::take(&mut self.items);
        self.buffer.begin(facts.now);
        // Taken for the time of the read: notes of its deviations go into the buffer.
        let mut reader = self.reader.take();
        self.input_ended = match (read, &mut reader) {
            (SourceRead::Chunk(chunk), Some(reader)) => {
                let pushed = reader.push(&chunk, &mut items);
                self.note_deviations(reader, facts);
                let buffer = &mut self.buffer;
                pushed.err().map(|error| over_limit(buffer, error, &chunk))
            }
            (SourceRead::End, Some(reader)) => {
                reader.finish(&mut items);
                self.note_deviations(reader, facts);
                let mut failure = end_of_input(&SourceRead::End);
                if let Some(fault) = reader.fault() {
                    failure.message = format!("{}: {fault}", failure.message);
                }
                Some(failure)
            }
            (read @ (SourceRead::Broken | SourceRead::Silent), Some(reader)) => {
                reader.finish_broken(&mut items);
                if !items.is_empty() {
                    self.note_deviations(reader, facts);
                }
                Some(end_of_input(&read))
            }
            (SourceRead::Appended(results), _) => {
                self.waiting.extend(results);
                None
            }
            (SourceRead::Call(call), _) => {
                self.buffer.accept_call(&call);
                let results = call.results.iter();
                self.waiting
                    .extend(results.map(|(_, raw)| raw.clone().into_bytes()));
                None
            }
            (read, _) => Some(end_of_input(&read)),
        };
        self.reader = reader;
        let results = items.drain(..).filter_map(|item| match item {
            ReaderItem::Result(raw) => Some(raw),
            ReaderItem::Heartbeat => None,
        });
        self.waiting.extend(results);
        self.items = items;
    }
}

/// True when the runner has sent nothing for the maximum silence, although it could.
pub(super) fn is_silent(machine: &RelayMachine<'_>, now: Instant) -> bool {
    !machine.pace.was_full && now >= machine.pace.last_read_at + machine.silence
}

/// Returns the same relay of a runner that works on after a lost connection.
pub(crate) fn resumable(mut machine: RelayMachine<'_>) -> RelayMachine<'_> {
    machine.is_resumable = true;
    machine.validator = machine.validator.with_numbers();
    // The next owner attaches to the runner; a wait for the end would only delay the stop.
    if machine.reader.is_some() {
        machine.outputs.push_back(RelayOutput::WatchRelease);
    }
    machine
}

/// Returns the same relay after results that are in the ledger.
pub(crate) fn after_stored<'a>(
    mut machine: RelayMachine<'a>,
    stored: &StoredResults,
) -> RelayMachine<'a> {
    machine.buffer = stored.continued(machine.buffer);
    if let Some(numbers) = &mut machine.appended {
        numbers.judged = stored.through;
        numbers.stored_through = numbers.stored_through.max(stored.through);
    }
    machine
}

/// Stops after the commit of the received results.
pub(super) fn disconnect(machine: &mut RelayMachine<'_>) {
    machine.conclusion = Some(Conclusion::Stop(RelayStop::Disconnected));
}
