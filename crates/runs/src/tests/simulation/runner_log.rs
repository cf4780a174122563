//! Work of the simulated runners: what they receive, answer and append.

use std::collections::BTreeMap;

use domain::retry::AttemptFailure;
use protocol::id::RunId;
use uuid::Uuid;

use super::database::Op;
use super::gateway::{Gateway, Waiter};
use super::network::{Connection, Happening, Network, Occurrence};
use super::runner::{PostAnswer, draw};

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
}

#[derive(Default)]
pub(super) struct Runners {
    logs: BTreeMap<RunId, RunnerLog>,
}

impl Runners {
    /// Receives a POST of a gateway.
    pub(super) fn receive(
        &mut self,
        net: &mut Network,
        gateway: &mut Gateway,
        connection: Connection,
    ) {
        let id = connection.key.0;
        let log = self.logs.entry(id).or_default();
        if log.may_work {
            let text = format!("{id} was posted again although its runner may work");
            return net.db.break_with(text);
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

    /// Appends the result, if those before it are acknowledged, and repeats the call until its answer.
    pub(super) fn append(&mut self, net: &mut Network, id: RunId, number: u64) {
        let is_lost = net.random.chance(net.faults.failed) || net.faults.is_away(net.now);
        let is_answered = !net.random.chance(net.faults.unknown);
        let Some(log) = self.logs.get_mut(&id) else {
            return;
        };
        let position = usize::try_from(number).unwrap();
        log.tries += 1;
        if log.tries > TRIES {
            return;
        }
        let mut accepted = None;
        if log.acknowledged + 1 == position && !is_lost {
            let raw = &log.appends[position - 1].1;
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
