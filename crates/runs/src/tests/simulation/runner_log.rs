//! Work of the simulated runners: what they receive, answer and append.

use std::collections::BTreeMap;

use domain::retry::AttemptFailure;
use http::StatusCode;
use protocol::id::RunId;
use uuid::Uuid;

use super::database::Op;
use super::gateway::{Gateway, Waiter};
use super::network::{Connection, Happening, Network, Occurrence, Process};
use super::runner::{PostAnswer, draw, draw_work};
use crate::relay::source::SourceRead;

/// Tries of an append after which a runner ends its work.
const TRIES: u64 = 60;

/// Requests and results of one run at its runner.
#[derive(Default)]
struct RunnerLog {
    /// A POST without a clean refusal has reached it.
    may_work: bool,
    appends: Vec<(u64, String)>,
    acknowledged: usize,
    tries: u64,
    /// Results of a resumable runner, each with the time at which it is ready.
    work: Vec<(u64, String)>,
    /// Deltas before this work.
    before: usize,
    /// The runner died, and has lost its work.
    is_gone: bool,
}

#[derive(Default)]
pub(super) struct Runners {
    logs: BTreeMap<RunId, RunnerLog>,
}

impl Runners {
    /// Receives a POST of a gateway. `start`: number of the deltas that stay in a new start.
    pub(super) fn receive(
        &mut self,
        net: &mut Network,
        gateway: &mut Gateway,
        connection: Connection,
        start: Option<usize>,
    ) {
        let id = connection.key.0;
        let log = self.logs.entry(id).or_default();
        if let Some(before) = start
            && log.is_gone
        {
            *log = RunnerLog {
                before,
                ..RunnerLog::default()
            };
        }
        if log.may_work {
            let text = format!("{id} was posted again although its runner may work");
            return net.db.break_with(text);
        }
        if net.is_resumable(id) && (start.is_some() || net.random.chance(80)) {
            log.may_work = true;
            let mut at = net.now;
            for (pause, line) in draw_work(&mut net.random, id, log.before) {
                at += pause;
                log.work.push((at, line));
            }
            return self.stream_work(net, gateway.process, connection, 0);
        }
        let script = draw(&mut net.random, id);
        let is_refused = matches!(
            script.answer,
            Some(PostAnswer::Failed(
                AttemptFailure::NotConnected | AttemptFailure::Throttled(_),
                _
            ))
        );
        log.may_work = !is_refused;
        let Some(answer) = script.answer else {
            return;
        };
        if log.may_work && gateway.is_up && net.random.chance(40) {
            // It calls a model through the gateway.
            let call = Uuid::from_u128(u128::from(net.number()));
            gateway.request(net, Waiter::Reserve(call), Op::Reserve(call));
        }
        let process = gateway.process;
        let mut at = net.now + net.random.between(1, 400);
        let answer = Occurrence::PostAnswer(connection, answer);
        net.at(at, Happening::At(process, answer));
        for (pause, read) in script.body {
            at += pause;
            let read = Occurrence::Read(connection, read);
            net.at(at, Happening::At(process, read));
        }
        let mut at = net.now;
        for (number, (pause, _)) in (1..).zip(&script.appends) {
            at += pause;
            net.at(at, Happening::Append(id, number));
        }
        log.appends = script.appends;
    }

    /// Receives a resume. The runner may have died, or not be ready.
    pub(super) fn resume(
        &mut self,
        net: &mut Network,
        process: Process,
        connection: Connection,
        after: u64,
    ) {
        let log = self.logs.entry(connection.key.0).or_default();
        log.is_gone |= log.work.is_empty() || net.random.chance(10);
        let refused = match log.is_gone {
            true => Some(StatusCode::NOT_FOUND),
            false if net.random.chance(20) => Some(StatusCode::CONFLICT),
            false => None,
        };
        if let Some(status) = refused {
            let answer = Occurrence::PostAnswer(connection, PostAnswer::Refused(status));
            return net.within(1, 400, Happening::At(process, answer));
        }
        // Some runners repeat results that are stored.
        let repeated = net.random.between(0, 1).min(after);
        self.stream_work(net, process, connection, after - repeated);
    }

    /// Streams the work after a result, until a cut of the connection.
    fn stream_work(
        &mut self,
        net: &mut Network,
        process: Process,
        connection: Connection,
        after: u64,
    ) {
        let mut at = net.now + net.random.between(1, 100);
        let answer = Occurrence::PostAnswer(connection, PostAnswer::Stream);
        net.at(at, Happening::At(process, answer));
        let log = &self.logs[&connection.key.0];
        let skipped = usize::try_from(after).unwrap();
        for (ready_at, line) in log.work.iter().skip(skipped) {
            at = at.max(*ready_at) + net.random.between(0, 30);
            if net.random.chance(8) {
                break;
            }
            let chunk = SourceRead::Chunk(line.clone().into_bytes().into());
            let read = Occurrence::Read(connection, chunk);
            net.at(at, Happening::At(process, read));
        }
        let end = if net.random.chance(50) {
            SourceRead::Broken
        } else {
            SourceRead::End
        };
        let end = Occurrence::Read(connection, end);
        net.at(at + 1, Happening::At(process, end));
    }

    /// Number of deltas of a resumable runner, with those of its earlier starts that stay.
    pub(super) fn deltas(&self, id: RunId) -> Option<usize> {
        let log = self.logs.get(&id)?;
        let own = log.work.len().checked_sub(1)?;
        Some(log.before + own)
    }

    /// Appends the result, if those before it are acknowledged, and repeats the call until its answer.
    pub(super) fn append(&mut self, net: &mut Network, id: RunId, number: u64) {
        let is_lost = net.random.chance(net.faults.failed) || net.faults.is_away(net.now);
        let is_answered = !net.random.chance(net.faults.unknown);
        let Some(log) = self.logs.get_mut(&id) else {
            return;
        };
        let position = usize::try_from(number).unwrap();
        log.tries += 1;
        // A new start has dropped the appends of the lost one.
        let Some((_, raw)) = log.appends.get(position - 1) else {
            return;
        };
        if log.tries > TRIES {
            return;
        }
        let mut accepted = None;
        if log.acknowledged + 1 == position && !is_lost {
            accepted = net.db.accept(id, number, raw, net.now);
        }
        match accepted.filter(|_| is_answered) {
            Some(true) => log.acknowledged = position,
            Some(false) => {}
            None => net.at(net.now + 150, Happening::Append(id, number)),
        }
    }

    /// Number of results with a confirmation.
    pub(super) fn acknowledged(&self, id: RunId) -> usize {
        self.logs.get(&id).map_or(0, |log| log.acknowledged)
    }
}
