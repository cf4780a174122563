//! Inputs and outputs of the relay's machine.

use std::sync::Arc;

use domain::run::Failure;
use store::{Append, Appended, ResumePoint, StoreError};
use tokio::time::Instant;
use uuid::Uuid;

use super::RelayStop;
use super::reader::ResultReader;
use super::signals::Unannounced;
use super::source::SourceRead;
use crate::ending::EndCause;
use crate::live::CommittedFrames;

/// Facts of the moment of a step.
#[derive(Clone, Copy)]
pub(crate) struct RelayFacts {
    pub(crate) now: Instant,
    pub(crate) epoch_ms: i64,
    /// This process has received a cancel request of the run.
    pub(crate) is_cancelled: bool,
}

impl RelayFacts {
    pub(super) fn seconds(self) -> i64 {
        self.epoch_ms / 1000
    }
}

/// Origin of the results of a relay.
pub(crate) enum RelaySource {
    /// The body of the runner's response.
    Stream(Box<ResultReader>),
    /// Later appends of the runner.
    Appends,
    /// Appends from before a take-over, then later ones.
    Backlog(ResumePoint),
}

/// An occurrence that the relay reacts to.
pub(crate) enum RelayInput {
    Read(SourceRead),
    /// The source had no data at once.
    Paused,
    /// The commit and the signals were polled after a row of reads.
    Polled,
    /// Outcome of the commit in flight.
    Committed(Result<Appended, StoreError>),
    /// Another process owns the run.
    Lost,
    /// The gateway stops, and another one can resume the run.
    Released,
    /// The run must end with this failure, or its grace is over.
    Interrupted(Failure),
    /// The maximum silence may be over.
    Silent,
    /// The run has uploaded the artifact, or not.
    ArtifactFound(Result<bool, StoreError>),
    /// The row of the run has a cancel request, or not.
    CancelFound(bool),
    /// Rows of the run whose events the ledger lacks.
    UnannouncedFound(Vec<Unannounced>),
    /// No more appends are accepted. False: another process owns the run.
    AppendsClosed(Result<bool, StoreError>),
}

/// An action of the shell.
pub(crate) enum RelayOutput {
    /// Wait for the next input.
    Wait(RelayWait),
    /// Wait for the commit in flight only.
    AwaitCommit,
    /// Commit, without waiting for the outcome.
    Commit(Arc<Append>),
    /// Show committed frames to clients. The time is that of the read of their oldest bytes.
    Publish(CommittedFrames, Option<Instant>),
    FindArtifact(Uuid),
    /// Read the cancel request from the row of the run.
    FindCancel,
    /// Accept no more appends, and make the rest the backlog.
    CloseAppends,
    /// From now on, report [`RelayInput::Interrupted`] at a cancel, the deadline, or a stop of the gateway.
    WatchInterrupts,
    /// Send the cancel notice, and report [`RelayInput::Interrupted`] after the grace.
    WatchGrace,
    /// From now on, report [`RelayInput::Released`] when the gateway stops.
    WatchRelease,
    /// Report [`RelayInput::Silent`] at this time.
    WatchSilence(Instant),
    /// The results are over; `RelayMachine::into_relayed` has the rest.
    End(EndCause),
    Stop(RelayStop),
}

/// Inputs that the relay waits for, besides signals and the commit in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RelayWait {
    pub(crate) for_reads: bool,
    /// Report [`RelayInput::Paused`] when no data is in the socket.
    pub(crate) for_pause: bool,
    /// Report [`RelayInput::Polled`] after one poll of all others.
    pub(crate) for_poll: bool,
}
