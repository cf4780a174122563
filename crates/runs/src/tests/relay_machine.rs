//! The relay's state machine, without I/O.

use std::sync::Arc;
use std::time::Duration;

use domain::authorization::AuthorizationSnapshot;
use domain::normalize::{ExpectedOutput, ResultLimits, ResultValidator};
use domain::run::{Failure, FailureCode};
use protocol::admin::DeltaMode;
use runner_client::ResultFormat;
use serde_json::json;
use store::{Append, Appended, ResumePoint, StoreError};
use tokio::time::Instant;

use super::simulation::settings::{run, run_id, snapshots};
use crate::ending::EndCause;
use crate::relay::reader::ResultReader;
use crate::relay::source::SourceRead;
use crate::relay::{
    RelayFacts, RelayInput, RelayMachine, RelayOutput, RelaySource, RelayStop, RelayWait, resumable,
};

const SILENCE: Duration = Duration::from_secs(10);
const LIMITS: ResultLimits = ResultLimits {
    event_bytes: 4_000,
    run_bytes: 2_000_000,
    run_events: 5_000,
    state_value_bytes: 100,
};

/// A machine with the facts of its steps.
struct Bench {
    machine: RelayMachine<'static>,
    facts: RelayFacts,
}

impl Bench {
    fn of(source: RelaySource) -> Self {
        let now = Instant::now();
        let snapshot: &'static AuthorizationSnapshot = &snapshots()[0];
        let validator = ResultValidator::new(
            snapshot,
            LIMITS,
            DeltaMode::Increment,
            ExpectedOutput::Nothing,
        );
        let run = run(0, 0, 0, 0);
        Self {
            machine: RelayMachine::new(&run, validator, source, SILENCE, now),
            facts: RelayFacts {
                now,
                epoch_ms: 1_700_000_000_000,
                is_cancelled: false,
            },
        }
    }

    fn streaming() -> Self {
        let reader = ResultReader::new(ResultFormat::JsonLines, 4_000, LIMITS);
        let mut bench = Self::of(RelaySource::Stream(Box::new(reader)));
        assert!(matches!(bench.step(), RelayOutput::WatchInterrupts));
        assert!(matches!(bench.step(), RelayOutput::WatchSilence(_)));
        bench
    }

    fn step(&mut self) -> RelayOutput {
        self.machine.step(self.facts)
    }

    fn on(&mut self, input: RelayInput) {
        self.machine.on(input, self.facts);
    }

    fn wait(&mut self) -> RelayWait {
        match self.step() {
            RelayOutput::Wait(wait) => wait,
            _ => panic!("the machine does not wait"),
        }
    }

    fn read(&mut self, lines: &[String]) {
        let text = lines.concat();
        self.on(RelayInput::Read(SourceRead::Chunk(text.into())));
    }

    /// The commit of the buffer, after a pause of the stream.
    fn commit(&mut self) -> Arc<Append> {
        assert!(self.wait().for_pause);
        self.on(RelayInput::Paused);
        match self.step() {
            RelayOutput::Commit(append) => append,
            _ => panic!("nothing is committed"),
        }
    }

    fn committed(&mut self) {
        let written = Appended::Written { next: Vec::new() };
        self.on(RelayInput::Committed(Ok(written)));
        assert!(matches!(self.step(), RelayOutput::Publish(..)));
    }

    /// The failure with which the gateway ends the run.
    fn failure(&mut self) -> Failure {
        match self.step() {
            RelayOutput::End(EndCause::Gateway { failure, .. }) => failure,
            _ => panic!("the run has not failed"),
        }
    }
}

fn line(kind: &str, data: &serde_json::Value, sequence: u64) -> String {
    let run = run_id(0);
    let result = json!({"run_id": run, "type": kind, "data": data, "sequence": sequence});
    format!("{result}\n")
}

fn delta(sequence: u64) -> String {
    let data = json!({"chunk": {"role": "assistant", "content": "text"}});
    line("message.delta", &data, sequence)
}

fn completed(sequence: u64) -> String {
    line("run.completed", &json!({}), sequence)
}

#[test]
fn gathers_events_during_commit_in_flight() {
    let mut bench = Bench::streaming();
    bench.read(&[delta(1)]);
    let first = bench.commit();
    assert_eq!((first.from, first.to), (0, 1));
    bench.read(&[delta(2)]);
    bench.read(&[delta(3)]);
    assert!(!bench.wait().for_pause, "one commit is in flight");
    bench.committed();
    let second = bench.commit();
    assert_eq!((second.from, second.to), (1, 3));
}

#[test]
fn commits_steady_stream_after_a_row_of_reads() {
    let mut bench = Bench::streaming();
    for sequence in 1..=32 {
        assert!(bench.wait().for_reads);
        bench.read(&[delta(sequence)]);
    }
    assert!(matches!(bench.step(), RelayOutput::Commit(append) if append.to == 32));
    let wait = bench.wait();
    assert!(!wait.for_reads && wait.for_poll);
    bench.on(RelayInput::Polled);
    assert!(bench.wait().for_reads);
}

#[test]
fn reads_nothing_while_buffer_is_full() {
    let mut bench = Bench::streaming();
    let lines: Vec<_> = (1..=1_024).map(delta).collect();
    bench.read(&lines);
    assert!(matches!(bench.step(), RelayOutput::Commit(append) if append.to == 1_024));
    let lines: Vec<_> = (1_025..=2_060).map(delta).collect();
    bench.read(&lines);
    assert!(!bench.wait().for_reads);
    // The time with a full buffer is no silence of the runner.
    bench.facts.now += SILENCE * 2;
    bench.on(RelayInput::Silent);
    assert!(
        matches!(bench.step(), RelayOutput::WatchSilence(at) if at == bench.facts.now + SILENCE)
    );
    bench.committed();
    assert!(matches!(bench.step(), RelayOutput::Commit(append) if append.to == 2_048));
}

#[test]
fn ends_after_terminal_and_drops_rest() {
    let mut bench = Bench::streaming();
    bench.read(&[delta(1), completed(2), delta(3)]);
    let RelayOutput::End(cause) = bench.step() else {
        panic!("the run has not ended");
    };
    let mut relayed = bench.machine.into_relayed(cause);
    let (append, _) = relayed.buffer.take(None, 0);
    assert_eq!((append.to, relayed.tally.rejected), (2, 1));
    assert!(matches!(relayed.ending, EndCause::Runner(_)));
}

#[test]
fn terminal_waits_for_commit_in_flight() {
    let mut bench = Bench::streaming();
    bench.read(&[delta(1)]);
    bench.commit();
    bench.read(&[completed(2)]);
    assert!(matches!(bench.step(), RelayOutput::AwaitCommit));
    bench.committed();
    assert!(matches!(
        bench.step(),
        RelayOutput::End(EndCause::Runner(_))
    ));
}

#[test]
fn lost_commit_shows_nothing_and_stops() {
    let mut bench = Bench::streaming();
    bench.read(&[delta(1)]);
    bench.commit();
    bench.read(&[completed(2)]);
    bench.on(RelayInput::Committed(Ok(Appended::Lost)));
    assert!(matches!(bench.step(), RelayOutput::Stop(RelayStop::Lost)));
}

#[test]
fn failed_commit_stops_without_end() {
    let mut bench = Bench::streaming();
    bench.read(&[delta(1)]);
    bench.commit();
    bench.on(RelayInput::Committed(Err(StoreError::Unreachable)));
    let output = bench.step();
    assert!(matches!(
        output,
        RelayOutput::Stop(RelayStop::Unwritable(_))
    ));
}

#[test]
fn lost_lease_stops_at_once() {
    let mut bench = Bench::streaming();
    bench.read(&[delta(1)]);
    bench.commit();
    bench.on(RelayInput::Lost);
    assert!(matches!(bench.step(), RelayOutput::Stop(RelayStop::Lost)));
}

#[test]
fn truncated_stream_fails_unless_cancelled_elsewhere() {
    for (is_found, code) in [
        (false, FailureCode::RunnerStreamTruncated),
        (true, FailureCode::Cancelled),
    ] {
        let mut bench = Bench::streaming();
        bench.on(RelayInput::Read(SourceRead::End));
        assert!(matches!(bench.step(), RelayOutput::FindCancel));
        bench.on(RelayInput::CancelFound(is_found));
        assert_eq!(bench.failure().code, code);
    }
}

#[test]
fn cancel_leaves_runner_its_grace() {
    let mut bench = Bench::streaming();
    bench.facts.is_cancelled = true;
    bench.on(RelayInput::Interrupted(Failure::cancelled()));
    assert!(matches!(bench.step(), RelayOutput::WatchGrace));
    assert!(bench.wait().for_reads);
    bench.on(RelayInput::Interrupted(Failure::cancelled()));
    assert_eq!(bench.failure().code, FailureCode::Cancelled);
}

#[test]
fn silence_counts_from_last_read() {
    let mut bench = Bench::streaming();
    let begin = bench.facts.now;
    bench.facts.now = begin + SILENCE / 2;
    bench.read(&["\n".to_owned()]);
    bench.facts.now = begin + SILENCE;
    bench.on(RelayInput::Silent);
    let until = begin + SILENCE / 2 + SILENCE;
    assert!(matches!(bench.step(), RelayOutput::WatchSilence(at) if at == until));
    bench.facts.now = until;
    bench.on(RelayInput::Silent);
    assert!(matches!(bench.step(), RelayOutput::FindCancel));
    bench.on(RelayInput::CancelFound(false));
    assert_eq!(bench.failure().code, FailureCode::RunnerIdleTimeout);
}

#[test]
fn deadline_of_async_run_validates_accepted_results() {
    let mut bench = Bench::of(RelaySource::Appends);
    assert!(matches!(bench.step(), RelayOutput::WatchInterrupts));
    assert!(matches!(bench.step(), RelayOutput::WatchRelease));
    let late = Failure::new(FailureCode::DeadlineExceeded, "late");
    bench.on(RelayInput::Interrupted(late));
    assert!(matches!(bench.step(), RelayOutput::CloseAppends));
    bench.on(RelayInput::AppendsClosed(Ok(true)));
    let accepted = vec![delta(1).into_bytes()];
    bench.on(RelayInput::Read(SourceRead::Appended(accepted)));
    assert_eq!(bench.commit().judged_through, Some(1));
    bench.committed();
    bench.on(RelayInput::Read(SourceRead::CaughtUp));
    assert_eq!(bench.failure().code, FailureCode::DeadlineExceeded);
}

#[test]
fn resumed_run_replays_stored_results() {
    let mut bench = Bench::of(RelaySource::Backlog(ResumePoint {
        streamed_through: 0,
        judged_through: 1,
        accepted_through: 2,
        rejections: 0,
        rejected: [].into(),
    }));
    assert!(matches!(bench.step(), RelayOutput::WatchRelease));
    let results = vec![delta(1).into_bytes(), delta(2).into_bytes()];
    bench.on(RelayInput::Read(SourceRead::Appended(results)));
    let append = bench.commit();
    assert_eq!(
        (append.to - append.from, append.judged_through),
        (1, Some(2))
    );
    bench.committed();
    // Interruptions are handled after the backlog only.
    bench.on(RelayInput::Read(SourceRead::CaughtUp));
    assert!(matches!(bench.step(), RelayOutput::WatchInterrupts));
}

#[test]
fn released_run_finishes_commit_in_flight() {
    let mut bench = Bench::of(RelaySource::Appends);
    bench.step();
    bench.step();
    let results = vec![delta(1).into_bytes()];
    bench.on(RelayInput::Read(SourceRead::Appended(results)));
    bench.commit();
    bench.on(RelayInput::Released);
    assert!(matches!(bench.step(), RelayOutput::AwaitCommit));
    bench.committed();
    assert!(matches!(
        bench.step(),
        RelayOutput::Stop(RelayStop::Released)
    ));
}

#[test]
fn reported_failure_needs_lookup_of_cancel() {
    let mut bench = Bench::streaming();
    let failed = json!({"code": "cancelled", "error": "stopped"});
    bench.read(&[line("run.failed", &failed, 1)]);
    assert!(matches!(bench.step(), RelayOutput::FindCancel));
    bench.on(RelayInput::CancelFound(true));
    assert!(matches!(
        bench.step(),
        RelayOutput::End(EndCause::Runner(_))
    ));
}

fn resumable_bench() -> Bench {
    let reader = ResultReader::new(ResultFormat::JsonLines, 4_000, LIMITS);
    let mut bench = Bench::of(RelaySource::Stream(Box::new(reader)));
    bench.machine = resumable(bench.machine);
    for _ in 0..3 {
        bench.step();
    }
    bench
}

#[test]
fn lost_connection_of_resumable_runner_commits_received_results() {
    for lost in [SourceRead::End, SourceRead::Broken] {
        let mut bench = resumable_bench();
        bench.read(&[delta(1)]);
        bench.commit();
        bench.read(&[delta(2)]);
        bench.on(RelayInput::Read(lost));
        assert!(matches!(bench.step(), RelayOutput::FindCancel));
        bench.on(RelayInput::CancelFound(false));
        assert!(matches!(bench.step(), RelayOutput::AwaitCommit));
        bench.committed();
        assert!(matches!(bench.step(), RelayOutput::Commit(_)));
        assert!(matches!(bench.step(), RelayOutput::AwaitCommit));
        bench.committed();
        assert!(matches!(
            bench.step(),
            RelayOutput::Stop(RelayStop::Disconnected)
        ));
    }
}

#[test]
fn silent_resumable_runner_ends_its_run() {
    let mut bench = resumable_bench();
    bench.facts.now += SILENCE;
    bench.on(RelayInput::Silent);
    assert!(matches!(bench.step(), RelayOutput::FindCancel));
    bench.on(RelayInput::CancelFound(false));
    assert_eq!(bench.failure().code, FailureCode::RunnerIdleTimeout);
}

#[test]
fn stop_releases_resumable_stream() {
    let mut bench = resumable_bench();
    bench.on(RelayInput::Released);
    assert!(matches!(
        bench.step(),
        RelayOutput::Stop(RelayStop::Released)
    ));
}
