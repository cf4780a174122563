//! One simulated world: clients, gateways, network and database in one queue of events, drawn from one seed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use protocol::admin::Concurrency;
use protocol::id::RunId;
use store::StoreError;
use tokio::time::Instant;
use uuid::Uuid;

use super::database::{Answer, Database, Ingested, Op, Row, is_terminal_line};
use super::gateway::{Gateway, TickKind, Waiter};
use super::random::Random;
use super::runner::{PostAnswer, Script, draw};
use super::settings::{self, EVENTS, HEALED, REST};
use super::task::TaskKey;
use super::{Plant, Violation};
use crate::relay::source::SourceRead;

/// Something that happens at a time.
pub(super) enum Happening {
    /// A client posts the event, or repeats the request.
    Post(usize),
    /// A client cancels the run of the event.
    Cancel(usize),
    Kill(usize),
    Restart(usize),
    Pause(usize, u64),
    /// The gateway takes no new run, and closes after its grace.
    Stop(usize),
    Close(usize),
    Tick(Process, TickKind),
    Wake(Process, TaskKey),
    Arrive(Address, Op),
    Answer(Address, Result<Answer, StoreError>),
    /// A notification of a cancel.
    CancelNotice(Process, RunId),
    /// The POST reaches the runner.
    RunnerReceives(Connection),
    PostAnswer(Connection, PostAnswer),
    Read(Connection, SourceRead),
    /// The runner appends the result with this number.
    Append(RunId, u64),
    /// A call of a runner through the gateway has its answer.
    CallEnds(Process, Uuid),
    /// The runner pulls absorbed events.
    Pull(RunId),
    Heal,
}

/// A process: the gateway and its number of starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) gateway: usize,
    pub(super) start: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Address {
    pub(super) process: Process,
    pub(super) token: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Connection {
    pub(super) process: Process,
    pub(super) key: TaskKey,
    pub(super) number: u64,
}

/// An event of a client, and its progress.
struct EventPlan {
    agent: usize,
    conversation: usize,
    is_settled: bool,
    is_accepted: bool,
}

/// Share of database operations with a fault, in percent.
struct FaultRates {
    failed: u64,
    unknown: u64,
    late: u64,
    slow: u64,
}

/// What a runner has received and sent.
#[derive(Default)]
pub(super) struct RunnerLog {
    /// A POST without a clean refusal has reached it.
    pub(super) may_work: bool,
    appends: Vec<(u64, String)>,
    acknowledged: usize,
    tries: u64,
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) now: u64,
    base: Instant,
    order: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    pub(super) db: Database,
    pub(super) gateways: Vec<Gateway>,
    events: Vec<EventPlan>,
    pub(super) runners: BTreeMap<RunId, RunnerLog>,
    rates: FaultRates,
    outage: (u64, u64),
    pub(super) plant: Plant,
    pub(super) serial: u64,
    is_healed: bool,
}

impl World {
    pub(super) fn new(seed: u64, plant: Plant) -> Self {
        let mut random = Random::new(seed);
        let policies = [
            Concurrency::Enqueue,
            Concurrency::Interrupt,
            Concurrency::Steer,
            Concurrency::Reject,
            Concurrency::Concurrent,
        ];
        let agents = [random.pick(&policies), random.pick(&policies)];
        let gateways = usize::try_from(random.between(1, 3)).unwrap();
        let calm = random.chance(25);
        let mut rate = |high| if calm { 0 } else { random.between(0, high) };
        let rates = FaultRates {
            failed: rate(6),
            unknown: rate(6),
            late: rate(4),
            slow: rate(6),
        };
        let mut world = Self {
            now: 0,
            base: Instant::now(),
            order: 0,
            queue: BTreeMap::new(),
            db: Database::new(agents.to_vec(), plant),
            gateways: Vec::new(),
            events: Vec::new(),
            runners: BTreeMap::new(),
            rates,
            outage: (0, 0),
            plant,
            serial: 0,
            is_healed: false,
            random,
        };
        for index in 0..gateways {
            let skew = if world.random.chance(10) {
                world.random.between(0, 20_000)
            } else {
                world.random.between(0, 20)
            };
            world.gateways.push(Gateway::new(index, skew));
            world.begin_ticks(index);
        }
        world.draw_load();
        world.draw_faults();
        world
    }

    fn draw_load(&mut self) {
        let conversations = usize::try_from(self.random.between(1, 3)).unwrap();
        let count = usize::try_from(self.random.between(1, EVENTS as u64)).unwrap();
        for event in 0..count {
            let plan = EventPlan {
                agent: self.random.index(2),
                conversation: self.random.index(conversations),
                is_settled: false,
                is_accepted: false,
            };
            self.events.push(plan);
            let at = self.random.between(0, 6_000);
            self.at(at, Happening::Post(event));
            if self.random.chance(25) {
                let at = at + self.random.between(20, 4_000);
                self.at(at, Happening::Cancel(event));
            }
        }
    }

    fn draw_faults(&mut self) {
        self.at(HEALED, Happening::Heal);
        if self.random.chance(20) {
            let begin = self.random.between(500, 8_000);
            self.outage = (begin, begin + self.random.between(300, 3_900));
        }
        for _ in 0..self.random.between(0, 3) {
            let gateway = self.random.index(self.gateways.len());
            let at = self.random.between(200, 9_000);
            match self.random.between(0, 3) {
                0 | 1 => {
                    let length = self.random.between(200, 5_500);
                    self.at(at, Happening::Pause(gateway, length));
                }
                2 => self.at(at, Happening::Kill(gateway)),
                _ => self.at(at, Happening::Stop(gateway)),
            }
        }
    }

    /// Runs until rest. Returns the ends that its runs have reached, or the first broken invariant.
    pub(super) fn run(mut self) -> Result<BTreeSet<String>, Violation> {
        while let Some(((at, order), happening)) = self.queue.pop_first() {
            self.now = at;
            let is_check = matches!(happening, Happening::Tick(_, TickKind::Sweep));
            self.handle(order, happening);
            if let Some(text) = self.db.violation.take() {
                return Err(Violation { at, text });
            }
            if is_check && self.is_healed && self.is_at_rest() {
                let checked = self.check_rest().map_err(|text| Violation { at, text });
                return checked.map(|()| self.ends());
            }
            if at > REST {
                let text = self.unrest();
                return Err(Violation { at, text });
            }
        }
        unreachable!("ticks never end")
    }

    pub(super) fn instant(&self, at: u64) -> Instant {
        self.base + settings::millis(at)
    }

    pub(super) fn at(&mut self, at: u64, happening: Happening) {
        self.order += 1;
        self.queue.insert((at.max(self.now), self.order), happening);
    }

    pub(super) fn wake(&mut self, process: Process, key: TaskKey, at: u64) {
        self.at(at, Happening::Wake(process, key));
    }

    fn begin_ticks(&mut self, gateway: usize) {
        let process = self.gateways[gateway].process;
        for (kind, period) in TickKind::ALL {
            let at = self.now + self.random.between(0, period);
            self.at(at, Happening::Tick(process, kind));
        }
    }

    /// Sends an operation to the database.
    pub(super) fn request(&mut self, process: Process, waiter: Waiter, op: Op) -> u64 {
        self.serial += 1;
        let token = self.serial;
        self.gateways[process.gateway].waiters.insert(token, waiter);
        let is_slow = !self.is_healed && self.random.chance(self.rates.slow);
        let high = if is_slow { 5_000 } else { 30 };
        // A slow write stays in the queue, and commits unseen.
        let at = self.now + self.random.between(1, high);
        self.at(at, Happening::Arrive(Address { process, token }, op));
        token
    }

    fn process_of(happening: &Happening) -> Option<Process> {
        match happening {
            Happening::Tick(process, _)
            | Happening::Wake(process, _)
            | Happening::CallEnds(process, _)
            | Happening::CancelNotice(process, _) => Some(*process),
            Happening::Answer(address, _) => Some(address.process),
            Happening::PostAnswer(connection, _) | Happening::Read(connection, _) => {
                Some(connection.process)
            }
            _ => None,
        }
    }

    fn handle(&mut self, order: u64, happening: Happening) {
        if let Some(process) = Self::process_of(&happening) {
            let gateway = &self.gateways[process.gateway];
            if gateway.process != process || !gateway.is_up {
                return;
            }
            if self.now < gateway.paused_until {
                // Its threads do not run; the events wait in their order.
                self.queue.insert((gateway.paused_until, order), happening);
                return;
            }
        }
        match happening {
            Happening::Post(event) => self.post(event),
            Happening::Cancel(event) => self.cancel(event),
            Happening::Kill(gateway) => self.kill(gateway),
            Happening::Restart(gateway) => self.restart(gateway),
            Happening::Pause(gateway, length) => {
                self.gateways[gateway].paused_until = self.now + length;
            }
            Happening::Stop(gateway) => {
                self.gateways[gateway].is_stopping = true;
                let at = self.now + self.random.between(0, 1_500);
                self.at(at, Happening::Close(gateway));
                self.advance_all(gateway);
            }
            Happening::Close(gateway) => {
                self.gateways[gateway].is_closing = true;
                self.advance_all(gateway);
                let at = self.now + self.random.between(100, 1_500);
                self.at(at, Happening::Kill(gateway));
            }
            Happening::Tick(process, kind) => self.tick(process, kind),
            Happening::Wake(process, key) => self.advance(process.gateway, key),
            Happening::Arrive(address, op) => self.arrive(address, op),
            Happening::Answer(address, answer) => self.answer(address, answer),
            Happening::CancelNotice(process, id) => self.notice_cancel(process.gateway, id),
            Happening::RunnerReceives(connection) => self.runner_receives(connection),
            Happening::PostAnswer(connection, answer) => self.post_answered(connection, answer),
            Happening::Read(connection, read) => self.read(connection, read),
            Happening::Append(id, number) => self.runner_appends(id, number),
            Happening::CallEnds(process, call) => self.end_call(process, call),
            Happening::Pull(id) => self.db.pull(id),
            Happening::Heal => self.heal(),
        }
    }

    // --- database ---

    fn arrive(&mut self, address: Address, op: Op) {
        let latency = self.now + self.random.between(1, 30);
        let is_away = self.outage.0 <= self.now && self.now < self.outage.1;
        let draw = if self.is_healed {
            100
        } else {
            self.random.between(0, 99)
        };
        let (failed, unknown) = (self.rates.failed, self.rates.failed + self.rates.unknown);
        let answer = if is_away || draw < failed {
            Err(StoreError::Unreachable)
        } else if draw < unknown {
            self.apply(&op);
            Err(StoreError::Unreachable)
        } else if draw < unknown + self.rates.late {
            // The connection breaks, and the transaction commits later.
            let at = self.now + self.random.between(1, 5_000);
            let nowhere = Address {
                token: 0,
                ..address
            };
            self.at(at, Happening::Arrive(nowhere, op));
            Err(StoreError::Unreachable)
        } else {
            Ok(self.apply(&op))
        };
        if address.token != 0 {
            self.at(latency, Happening::Answer(address, answer));
        }
    }

    fn apply(&mut self, op: &Op) -> Answer {
        let answer = self.db.apply(op, self.now);
        // Two processes never hold one run, whatever their clocks show.
        if let Op::TakeOver { ids, owner, .. } = op
            && let Answer::Taken(taken) = &answer
        {
            let now = self.instant(self.now);
            for id in ids {
                let is_taken = taken.iter().any(|(run, _)| run.id == *id);
                let holds = self.gateways.iter().any(|gateway| {
                    let live = gateway.live.get(*id);
                    gateway.owner != *owner
                        && live.is_some_and(|live| live.is_held(now) && !live.is_ending())
                });
                // A released run has no task any more.
                if is_taken && holds && !self.db.rows[id].was_released {
                    let text = format!("{id} was taken over while its owner held the lease");
                    self.db.break_with(text);
                }
            }
        }
        answer
    }

    // --- clients ---

    /// A gateway that a client reaches.
    fn reachable(&mut self) -> Option<usize> {
        let now = self.now;
        let serves = |gateway: &Gateway| {
            gateway.is_up && !gateway.is_stopping && gateway.paused_until <= now
        };
        let found: Vec<_> = (0..self.gateways.len())
            .filter(|index| serves(&self.gateways[*index]))
            .collect();
        (!found.is_empty()).then(|| self.random.pick(&found))
    }

    fn post(&mut self, event: usize) {
        let plan = &self.events[event];
        if plan.is_settled {
            return;
        }
        let (agent, conversation) = (plan.agent, plan.conversation);
        // Until the answer comes, the client repeats its request.
        self.at(self.now + 700, Happening::Post(event));
        let Some(gateway) = self.reachable() else {
            return;
        };
        let first_owner = self
            .random
            .chance(60)
            .then(|| self.gateways[gateway].owner.clone());
        let run = Box::new(settings::run(event, agent, conversation, self.now));
        let waiter = Waiter::Ingest {
            event,
            requested_at: self.now,
        };
        let op = Op::Ingest {
            event,
            first_owner,
            run,
        };
        self.request(self.gateways[gateway].process, waiter, op);
    }

    pub(super) fn ingested(&mut self, event: usize, answer: &Ingested) {
        let plan = &mut self.events[event];
        plan.is_settled = true;
        plan.is_accepted = answer.is_accepted;
        if let Some(id) = answer.absorbed_by
            && self.random.chance(70)
        {
            let at = self.now + self.random.between(10, 1_500);
            self.at(at, Happening::Pull(id));
        }
    }

    fn cancel(&mut self, event: usize) {
        let Some(gateway) = self.reachable() else {
            return;
        };
        let id = settings::run_id(event);
        let process = self.gateways[gateway].process;
        self.request(process, Waiter::Cancel(id), Op::RequestCancel(id));
    }

    /// Sends a stored cancel to the process that drives the run. Notifications may be lost.
    pub(super) fn send_cancel(&mut self, gateway: usize, id: RunId) {
        if self.gateways[gateway].live.contains(id) {
            return self.notice_cancel(gateway, id);
        }
        for other in 0..self.gateways.len() {
            if self.random.chance(80) {
                let process = self.gateways[other].process;
                let at = self.now + self.random.between(1, 60);
                self.at(at, Happening::CancelNotice(process, id));
            }
        }
    }

    // --- processes ---

    fn kill(&mut self, gateway: usize) {
        if self.is_healed && !self.gateways[gateway].is_stopping {
            return;
        }
        if std::mem::replace(&mut self.gateways[gateway].is_up, false) {
            let at = self.now + self.random.between(100, 4_000);
            self.at(at, Happening::Restart(gateway));
        }
    }

    fn restart(&mut self, gateway: usize) {
        if self.gateways[gateway].is_up {
            return;
        }
        self.gateways[gateway].restart();
        self.begin_ticks(gateway);
    }

    fn heal(&mut self) {
        self.is_healed = true;
        self.outage = (0, 0);
        for gateway in 0..self.gateways.len() {
            self.gateways[gateway].paused_until = self.now;
        }
    }

    // --- runners ---

    fn runner_receives(&mut self, connection: Connection) {
        let id = connection.key.0;
        let log = self.runners.entry(id).or_default();
        if log.may_work {
            let text = format!("{id} was posted again although its runner may work");
            return self.db.break_with(text);
        }
        let Script {
            answer,
            body,
            appends,
        } = draw(&mut self.random, id);
        let refused = matches!(
            answer,
            Some(PostAnswer::Failed(
                domain::retry::AttemptFailure::NotConnected
                    | domain::retry::AttemptFailure::Throttled(_),
                _
            ))
        );
        let log = self.runners.entry(id).or_default();
        log.may_work = !refused;
        let Some(answer) = answer else {
            return;
        };
        let gateway = connection.process.gateway;
        if log.may_work && self.gateways[gateway].is_up && self.random.chance(40) {
            self.begin_call(gateway);
        }
        let mut at = self.now + self.random.between(1, 400);
        self.at(at, Happening::PostAnswer(connection, answer));
        for (pause, read) in body {
            at += pause;
            self.at(at, Happening::Read(connection, read));
        }
        let mut number = 0;
        let mut at = self.now;
        for (pause, _) in &appends {
            number += 1;
            at += pause;
            self.at(at, Happening::Append(id, number));
        }
        self.runners.entry(id).or_default().appends = appends;
    }

    /// Appends the result, if those before it are acknowledged, and repeats the call until its answer.
    fn runner_appends(&mut self, id: RunId, number: u64) {
        let is_away = self.outage.0 <= self.now && self.now < self.outage.1;
        let is_lost = !self.is_healed && self.random.chance(self.rates.failed);
        let is_answered = self.is_healed || !self.random.chance(self.rates.unknown);
        let Some(log) = self.runners.get_mut(&id) else {
            return;
        };
        let position = usize::try_from(number).unwrap();
        log.tries += 1;
        // A runner ends its work after so many failures.
        if log.tries > 60 {
            return;
        }
        let mut accepted = None;
        if log.acknowledged + 1 == position && !is_away && !is_lost {
            let raw = log.appends[position - 1].1.clone();
            accepted = self.db.accept(id, number, &raw, self.now);
        }
        match accepted.filter(|_| is_answered) {
            Some(true) => self.runners.get_mut(&id).unwrap().acknowledged = position,
            Some(false) => {}
            None => self.at(self.now + 150, Happening::Append(id, number)),
        }
    }

    // --- rest ---

    fn is_at_rest(&self) -> bool {
        self.events.iter().all(|event| event.is_settled)
            && self.db.are_all_ended()
            && self.db.reservations.is_empty()
            && self
                .gateways
                .iter()
                .all(|gateway| gateway.is_up && !gateway.is_stopping && gateway.tasks.is_empty())
    }

    /// Describes what still waits at the end.
    fn unrest(&self) -> String {
        let runs = self
            .db
            .rows
            .values()
            .filter(|row| !row.run.status.is_terminal());
        let runs: Vec<_> = runs
            .map(|row| format!("{} {:?} of {:?}", row.run.id, row.run.status, row.owner))
            .collect();
        let tasks: usize = self
            .gateways
            .iter()
            .map(|gateway| gateway.tasks.len())
            .sum();
        let reserved = self.db.reservations.len();
        format!("no rest: live runs {runs:?}, {tasks} tasks, {reserved} reservations")
    }

    fn check_rest(&self) -> Result<(), String> {
        for gateway in &self.gateways {
            if gateway.live.count() > 0 {
                return Err(format!("{} holds entries of ended runs", gateway.owner));
            }
        }
        for (number, event) in self.events.iter().enumerate() {
            let is_done = self.db.run_of(number).is_some() || self.db.pulled.contains(&number);
            if event.is_accepted && !is_done {
                return Err(format!("event {number} was acknowledged and lost"));
            }
        }
        for row in self.db.rows.values() {
            let ends = row.lines.iter().filter(|line| is_terminal_line(line));
            if ends.count() != 1 {
                return Err(format!("{} has not one terminal event", row.run.id));
            }
            self.check_acknowledged(row)?;
        }
        Ok(())
    }

    /// Codes of failed runs, types of other terminal events, and ways of their runs.
    fn ends(&self) -> BTreeSet<String> {
        let mut ends = BTreeSet::new();
        for row in self.db.rows.values() {
            let line = row.lines.last().map_or("", String::as_str);
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let end = event["data"]["code"].as_str().or(event["type"].as_str());
            ends.insert(end.unwrap().to_owned());
            if row.deferral.is_some() && row.run.fencing_token > i64::from(row.run.attempt) {
                ends.insert(format!("resumed, {:?}", row.run.status));
            }
        }
        ends.extend((!self.db.pulled.is_empty()).then(|| "pulled".to_owned()));
        ends
    }

    /// Results with a confirmation are in the ledger, unless a terminal result precedes them.
    fn check_acknowledged(&self, row: &Row) -> Result<(), String> {
        let (Some(log), Some(deferral)) = (self.runners.get(&row.run.id), &row.deferral) else {
            return Ok(());
        };
        let written: HashSet<_> = row.lines.iter().filter_map(|line| text_of(line)).collect();
        for raw in deferral.accepted.iter().take(log.acknowledged) {
            if let Some(text) = text_of(raw)
                && !written.contains(text)
            {
                return Err(format!("{} has lost the result {text}", row.run.id));
            }
        }
        Ok(())
    }

    pub(super) fn epoch_ms(&self, gateway: usize) -> i64 {
        settings::epoch_ms(self.now + self.gateways[gateway].skew)
    }

    /// Checks that published events are in the table.
    pub(super) fn check_published(&mut self, id: RunId, last: u64) {
        let row = &self.db.rows[&id];
        if row.run.last_sequence < last {
            let text = format!("{id} showed the event {last} before its commit");
            self.db.break_with(text);
        }
    }
}

/// The text of a delta, which is unique in its run.
fn text_of(line: &str) -> Option<&str> {
    let begin = line.find("text-")?;
    let length = line[begin..].find('.')?;
    Some(&line[begin..begin + length])
}
