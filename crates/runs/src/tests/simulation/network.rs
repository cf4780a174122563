//! Surroundings of the gateways: the clock with its queue of happenings, the network and the database.

use std::collections::BTreeMap;

use protocol::id::RunId;
use store::StoreError;
use tokio::time::Instant;
use uuid::Uuid;

use super::database::{Answer, Database, Op};
use super::faults::Faults;
use super::random::Random;
use super::runner::PostAnswer;
use super::settings::{EVENTS, LEASE, SWEEP, event_of, millis};
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
    /// The database receives the operation.
    Arrive(Address, Op),
    /// The POST reaches the runner. That of a new start has the number of the deltas that stay.
    RunnerReceives(Process, Connection, Option<usize>),
    /// The resume reaches the runner, with the number of the last stored result.
    RunnerResumes(Process, Connection, u64),
    /// The runner appends the result with this number.
    Append(RunId, u64),
    /// The runner pulls absorbed events.
    Pull(RunId),
    Heal,
    /// Lost if the process has ended; late if it is paused.
    At(Process, Occurrence),
}

/// Something that happens in a gateway.
pub(super) enum Occurrence {
    Tick(TickKind),
    Wake(TaskKey),
    /// Answer for the operation with this token.
    Answer(u64, Result<Answer, StoreError>),
    /// A notification of a cancel.
    CancelNotice(RunId),
    PostAnswer(Connection, PostAnswer),
    Read(Connection, SourceRead),
    /// A call of a runner through the gateway has its answer.
    CallEnds(Uuid),
}

/// Periodic work of a gateway.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TickKind {
    Renew,
    MarkLapsed,
    Sweep,
}

impl TickKind {
    const ALL: [Self; 3] = [Self::Renew, Self::MarkLapsed, Self::Sweep];

    pub(super) fn period(self) -> u64 {
        match self {
            Self::Renew => LEASE / 5,
            Self::MarkLapsed => LEASE / 20,
            Self::Sweep => SWEEP,
        }
    }
}

/// A process: the gateway, and the number of its starts before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) gateway: usize,
    pub(super) start: u64,
}

/// Receiver of an answer. `token`: 0 for an answer that its process drops.
#[derive(Clone, Copy)]
pub(super) struct Address {
    pub(super) process: Process,
    pub(super) token: u64,
}

/// Id of a task: the run, and the number of the task.
pub(super) type TaskKey = (RunId, u64);

#[derive(Clone, Copy)]
pub(super) struct Connection {
    pub(super) key: TaskKey,
    pub(super) number: u64,
}

pub(super) struct Network {
    pub(super) random: Random,
    pub(super) now: u64,
    base: Instant,
    order: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    pub(super) db: Database,
    pub(super) faults: Faults,
    /// Events whose runner is resumable.
    pub(super) resumable: [bool; EVENTS],
    /// The last process of each gateway.
    processes: Vec<Process>,
    serial: u64,
}

impl Network {
    pub(super) fn new(mut random: Random, db: Database, faults: Faults) -> Self {
        Self {
            resumable: std::array::from_fn(|_| random.chance(40)),
            random,
            now: 0,
            base: Instant::now(),
            order: 0,
            queue: BTreeMap::new(),
            db,
            faults,
            processes: Vec::new(),
            serial: 0,
        }
    }

    pub(super) fn is_resumable(&self, id: RunId) -> bool {
        self.resumable[event_of(id)]
    }

    /// Moves the clock to the next happening. Returns it with its order.
    pub(super) fn next(&mut self) -> (u64, Happening) {
        let ((at, order), happening) = self.queue.pop_first().expect("ticks never end");
        self.now = at;
        (order, happening)
    }

    /// A new number of a task, a connection, an operation or a call.
    pub(super) fn number(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(super) fn instant(&self, at: u64) -> Instant {
        self.base + millis(at)
    }

    pub(super) fn at(&mut self, at: u64, happening: Happening) {
        self.order += 1;
        self.queue.insert((at.max(self.now), self.order), happening);
    }

    /// Schedules a happening from `low` to `high` milliseconds from now.
    pub(super) fn within(&mut self, low: u64, high: u64, happening: Happening) {
        let at = self.now + self.random.between(low, high);
        self.at(at, happening);
    }

    /// Repeats a happening at the end of a pause, in its former order.
    pub(super) fn postpone(&mut self, until: u64, order: u64, happening: Happening) {
        self.queue.insert((until, order), happening);
    }

    pub(super) fn wake(&mut self, process: Process, key: TaskKey, at: u64) {
        self.at(at, Happening::At(process, Occurrence::Wake(key)));
    }

    /// Begins the ticks of a process.
    pub(super) fn start(&mut self, process: Process) {
        match self.processes.get_mut(process.gateway) {
            Some(former) => *former = process,
            None => self.processes.push(process),
        }
        for kind in TickKind::ALL {
            let tick = Happening::At(process, Occurrence::Tick(kind));
            self.within(0, kind.period(), tick);
        }
    }

    /// Sends an operation to the database. A slow one stays in the queue, and commits unseen.
    pub(super) fn send(&mut self, address: Address, op: Op) {
        let is_slow = self.random.chance(self.faults.slow);
        let high = if is_slow { 5_000 } else { 30 };
        self.within(1, high, Happening::Arrive(address, op));
    }

    /// Notifies the gateways of a cancel. Notifications may be lost.
    pub(super) fn notify_cancel(&mut self, id: RunId) {
        for process in self.processes.clone() {
            if self.random.chance(80) {
                let notice = Happening::At(process, Occurrence::CancelNotice(id));
                self.within(1, 60, notice);
            }
        }
    }
}
