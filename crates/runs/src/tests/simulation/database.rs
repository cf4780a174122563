//! Simulated database: the rows, and the compare-and-set rules of the store's statements. Its clock decides on leases.
//!
//! It checks the invariants of each write that it applies.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use domain::admission::{Admission, admit};
use domain::run::Run;
use protocol::admin::Concurrency;
use protocol::id::RunId;
use protocol::run::RunStatus;
use store::{
    Append, Appended, AppendsClosed, ConversationRun, Dispatch, Dispatched, LeaseFilter,
    RejectedResults, Renewed, ResumePoint, occupancy, promotable,
};
use uuid::Uuid;

use super::faults::Plant;
use super::settings::{self, agent};

/// A statement, or the statements of one transaction.
#[derive(Clone)]
pub(super) enum Op {
    Ingest {
        event: usize,
        /// Owner of the first attempt, for a run that the commit of its event dispatches.
        first_owner: Option<String>,
        run: Box<Run>,
    },
    FindRun(RunId),
    Claim(Box<Dispatch>),
    Renew {
        owner: String,
        ids: Vec<RunId>,
    },
    Append(Arc<Append>),
    Expired,
    TakeOver {
        owner: String,
        ids: Vec<RunId>,
        leases: LeaseFilter,
    },
    Resume {
        run: RunId,
        attempt: u32,
    },
    Created,
    StartAsync {
        run: RunId,
        attempt: u32,
        epoch: i64,
    },
    CloseAppends {
        run: RunId,
        epoch: i64,
        only_if_expired: bool,
    },
    ReadAppends {
        run: RunId,
        after: u64,
    },
    /// Reads the row, the events and the rejections of a run.
    ReadLedger(RunId),
    Release {
        run: RunId,
        epoch: i64,
    },
    RequestCancel(RunId),
    /// Reserves a budget for a call.
    Reserve(Uuid),
    ExtendReservations(Vec<Uuid>),
    Settle(Uuid),
    ReleaseReservations,
}

/// Answer of an operation.
pub(super) enum Answer {
    Ingested(Ingested),
    Run(Option<Box<Run>>),
    Claimed(Dispatched),
    Renewed(Renewed),
    Appended(Appended),
    Runs(Vec<Run>),
    /// Runs that were taken over, each with true for an async run.
    Taken(Vec<(Run, bool)>),
    Position(Option<ResumePoint>),
    Flag(bool),
    Closed(AppendsClosed),
    Appends {
        is_expired: bool,
        found: Option<(u64, Vec<String>)>,
    },
    Ledger(Option<Box<StoredLedger>>),
    Done,
}

pub(super) struct StoredLedger {
    pub(super) run: Run,
    pub(super) lines: Vec<String>,
    pub(super) rejected: RejectedResults,
    pub(super) checkpoint: u64,
}

/// Answer to an event.
#[derive(Clone)]
pub(super) struct Ingested {
    pub(super) event: usize,
    pub(super) is_accepted: bool,
    /// The run to drive. `is_dispatched`: its first attempt is committed.
    pub(super) started: Option<Box<Run>>,
    pub(super) is_dispatched: bool,
    pub(super) cancelled: Vec<RunId>,
    /// The run that pulls the event.
    pub(super) absorbed_by: Option<RunId>,
}

/// Results of a runner that appends them.
pub(super) struct AsyncRun {
    attempt: u32,
    pub(super) accepted: Vec<String>,
    judged_through: u64,
    lease_until: u64,
    is_closed: bool,
}

pub(super) struct Row {
    pub(super) run: Run,
    pub(super) owner: Option<String>,
    lease_until: Option<u64>,
    /// Position of its event in the conversation.
    order: usize,
    policy: Concurrency,
    created_at: u64,
    intents: Vec<(u32, i64)>,
    /// Its last owner has released it.
    pub(super) was_released: bool,
    /// Taken out of the queue only to be ended.
    is_ending: bool,
    pub(super) lines: Vec<String>,
    rejections: u64,
    rejected: HashSet<u64>,
    /// Last event that its checkpoint includes.
    checkpoint: u64,
    pub(super) async_run: Option<AsyncRun>,
    /// Absorbed events that wait for a pull.
    steering: Vec<usize>,
}

impl Row {
    fn new(template: &Run, order: usize, policy: Concurrency, now: u64) -> Self {
        Self {
            run: Run {
                fencing_token: 0,
                last_sequence: 0,
                attempt: 0,
                ..template.clone()
            },
            owner: None,
            lease_until: None,
            order,
            policy,
            created_at: now,
            intents: Vec::new(),
            was_released: false,
            is_ending: false,
            lines: Vec::new(),
            rejections: 0,
            rejected: HashSet::new(),
            checkpoint: 0,
            async_run: None,
            steering: Vec::new(),
        }
    }

    /// Begins a lease.
    fn hold(&mut self, owner: &str, now: u64) {
        self.owner = Some(owner.to_owned());
        self.lease_until = Some(now + settings::LEASE);
    }

    /// True for a running run whose lease has lapsed.
    fn is_expired(&self, now: u64) -> bool {
        self.run.status == RunStatus::Running && self.lease_until.is_some_and(|end| end < now)
    }
}

/// The database of one simulation.
pub(super) struct Database {
    pub(super) rows: BTreeMap<RunId, Row>,
    answers: BTreeMap<usize, Ingested>,
    /// Policy of each agent.
    policies: Vec<Concurrency>,
    pub(super) plant: Plant,
    /// Reservations of calls, each with the end of its lease.
    pub(super) reservations: BTreeMap<Uuid, u64>,
    /// Events that a run has pulled.
    pub(super) pulled: HashSet<usize>,
    /// The first broken invariant.
    pub(super) violation: Option<String>,
}

impl Database {
    pub(super) fn new(policies: Vec<Concurrency>, plant: Plant) -> Self {
        Self {
            rows: BTreeMap::new(),
            answers: BTreeMap::new(),
            policies,
            plant,
            reservations: BTreeMap::new(),
            pulled: HashSet::new(),
            violation: None,
        }
    }

    pub(super) fn break_with(&mut self, text: String) {
        self.violation.get_or_insert(text);
    }

    /// Applies an operation. `now`: the database clock.
    pub(super) fn apply(&mut self, op: &Op, now: u64) -> Answer {
        match op {
            Op::Ingest {
                event,
                first_owner,
                run,
            } => Answer::Ingested(self.ingest(*event, first_owner.as_ref(), run, now)),
            Op::FindRun(id) => Answer::Run(self.rows.get(id).map(|row| Box::new(row.run.clone()))),
            Op::Claim(dispatch) => Answer::Claimed(self.claim(dispatch, now)),
            Op::Renew { owner, ids } => Answer::Renewed(self.renew(owner, ids, now)),
            Op::Append(append) => Answer::Appended(self.append(append)),
            Op::Expired => Answer::Runs(self.expired(now)),
            Op::TakeOver { owner, ids, leases } => {
                Answer::Taken(self.take_over(owner, ids, *leases, now))
            }
            Op::Resume { run, attempt } => Answer::Position(self.resume(*run, *attempt, now)),
            Op::Created => Answer::Runs(self.created(now)),
            Op::StartAsync {
                run,
                attempt,
                epoch,
            } => Answer::Flag(self.start_async(*run, *attempt, *epoch, now)),
            Op::CloseAppends {
                run,
                epoch,
                only_if_expired,
            } => Answer::Closed(self.close_appends(*run, *epoch, *only_if_expired, now)),
            Op::ReadAppends { run, after } => self.read_appends(*run, *after, now),
            Op::ReadLedger(id) => Answer::Ledger(self.rows.get(id).map(|row| {
                Box::new(StoredLedger {
                    run: row.run.clone(),
                    lines: row.lines.clone(),
                    rejected: RejectedResults {
                        count: row.rejections,
                        numbers: row.rejected.clone(),
                    },
                    checkpoint: row.checkpoint,
                })
            })),
            Op::Release { run, epoch } => {
                self.release(*run, *epoch);
                Answer::Done
            }
            Op::RequestCancel(id) => Answer::Run(self.request_cancel(*id, now)),
            Op::Reserve(call) => {
                self.reservations.insert(*call, now + settings::LEASE);
                Answer::Done
            }
            Op::ExtendReservations(calls) => {
                for call in calls {
                    if let Some(until) = self.reservations.get_mut(call) {
                        *until = now + settings::LEASE;
                    }
                }
                Answer::Done
            }
            Op::Settle(call) => {
                self.reservations.remove(call);
                Answer::Done
            }
            Op::ReleaseReservations => {
                self.reservations.retain(|_, until| *until >= now);
                Answer::Done
            }
        }
    }

    // --- decision ---

    fn ingest(
        &mut self,
        event: usize,
        first_owner: Option<&String>,
        template: &Run,
        now: u64,
    ) -> Ingested {
        // A repeated request gets the stored answer, and starts nothing.
        if let Some(answer) = self.answers.get(&event) {
            return Ingested {
                started: None,
                cancelled: Vec::new(),
                absorbed_by: None,
                ..answer.clone()
            };
        }
        let key = template.conversation_key.clone().unwrap();
        let number = usize::try_from(template.agent_id.0.as_u128() - 0xA0).unwrap();
        let policy = self.policies[number];
        let load = occupancy(&self.live_of(&key), template.agent_id);
        let mut answer = Ingested {
            event,
            is_accepted: true,
            started: None,
            is_dispatched: false,
            cancelled: Vec::new(),
            absorbed_by: None,
        };
        match admit(policy, &load) {
            Admission::Start => {
                let mut row = Row::new(template, event, policy, now);
                if let Some(owner) = first_owner {
                    row.run.status = RunStatus::Running;
                    row.run.attempt = 1;
                    row.run.fencing_token = 1;
                    row.hold(owner, now);
                    row.intents.push((1, row.run.created_at));
                    answer.is_dispatched = true;
                }
                answer.started = Some(Box::new(row.run.clone()));
                self.rows.insert(template.id, row);
            }
            Admission::Queue => self.queue(template, event, policy, now),
            Admission::Interrupt(cancelled) => {
                self.queue(template, event, policy, now);
                for id in &cancelled {
                    self.request_cancel(*id, now);
                }
                answer.cancelled = cancelled;
            }
            Admission::Absorb(id) => {
                self.rows.get_mut(&id).unwrap().steering.push(event);
                answer.absorbed_by = Some(id);
            }
            Admission::Busy(_) | Admission::QueueFull => answer.is_accepted = false,
        }
        // A refusal leaves no rows.
        if answer.is_accepted {
            self.answers.insert(event, answer.clone());
        }
        self.check_conversation(&key);
        answer
    }

    fn queue(&mut self, template: &Run, event: usize, policy: Concurrency, now: u64) {
        let mut row = Row::new(template, event, policy, now);
        row.run.status = RunStatus::Queued;
        self.rows.insert(template.id, row);
    }

    /// Live runs of a conversation, in the order of their events.
    fn live_of(&self, key: &str) -> Vec<ConversationRun> {
        let of_key = |row: &&Row| {
            row.run.conversation_key.as_deref() == Some(key) && !row.run.status.is_terminal()
        };
        let mut live: Vec<_> = self.rows.values().filter(of_key).collect();
        live.sort_by_key(|row| row.order);
        live.iter()
            .map(|row| ConversationRun {
                run_id: row.run.id,
                agent_id: row.run.agent_id,
                status: row.run.status,
                cancel_requested: row.run.cancel_requested_at.is_some(),
                steering: row.steering.len() as u64,
                last_sequence: row.run.last_sequence,
            })
            .collect()
    }

    fn check_conversation(&mut self, key: &str) {
        for (number, policy) in self.policies.clone().into_iter().enumerate() {
            let live = self.live_of(key);
            let is_active = |run: &&ConversationRun| {
                run.agent_id == agent(number) && run.status != RunStatus::Queued
            };
            let active = live.iter().filter(is_active).count();
            let is_serial = !matches!(policy, Concurrency::Concurrent | Concurrency::Steer);
            let is_begun =
                |run: &&ConversationRun| is_active(run) && !self.rows[&run.run_id].is_ending;
            if is_serial && live.iter().filter(is_begun).count() > 1 {
                self.break_with(format!("{key} has {active} active runs of one agent"));
            }
            let queued = live
                .iter()
                .any(|run| run.agent_id == agent(number) && run.status == RunStatus::Queued);
            if queued && active == 0 {
                self.break_with(format!("{key} has a queued run and no active one"));
            }
        }
    }

    // --- leases ---

    fn running(&mut self, id: RunId) -> Option<&mut Row> {
        let row = self.rows.get_mut(&id);
        row.filter(|row| row.run.status == RunStatus::Running)
    }

    fn claim(&mut self, dispatch: &Dispatch, now: u64) -> Dispatched {
        let Some(row) = self.rows.get_mut(&dispatch.run.id) else {
            return Dispatched::Lost;
        };
        let (epoch, status) = (dispatch.run.fencing_token, dispatch.run.status);
        if row.run.fencing_token == epoch && row.run.status == status {
            row.is_ending = status == RunStatus::Queued;
            row.run.status = RunStatus::Running;
            row.run.attempt = dispatch.attempt;
            row.run.fencing_token += 1;
            row.hold(&dispatch.owner, now);
            row.intents.push((dispatch.attempt, dispatch.at));
            return Dispatched::Owned(Box::new(row.run.clone()));
        }
        // The commit of this dispatch, whose answer was lost.
        let is_own = row.run.status == RunStatus::Running
            && row.run.fencing_token == epoch + 1
            && row.owner.as_deref() == Some(dispatch.owner.as_str())
            && row.run.attempt == dispatch.attempt
            && row.intents.contains(&(dispatch.attempt, dispatch.at));
        if is_own {
            Dispatched::Owned(Box::new(row.run.clone()))
        } else {
            Dispatched::Lost
        }
    }

    fn renew(&mut self, owner: &str, ids: &[RunId], now: u64) -> Renewed {
        let mut renewed = Renewed::default();
        for id in ids {
            if let Some(row) = self.running(*id)
                && row.owner.as_deref() == Some(owner)
            {
                row.lease_until = Some(now + settings::LEASE);
                renewed.held.insert(*id, row.run.cancel_requested_at);
            }
        }
        renewed
    }

    fn expired(&self, now: u64) -> Vec<Run> {
        let found = self.rows.values().filter(|row| row.is_expired(now));
        found.map(|row| row.run.clone()).collect()
    }

    fn take_over(
        &mut self,
        owner: &str,
        ids: &[RunId],
        leases: LeaseFilter,
        now: u64,
    ) -> Vec<(Run, bool)> {
        let mut taken = Vec::new();
        for id in ids {
            let Some(row) = self.running(*id) else {
                continue;
            };
            let is_eligible = match leases {
                LeaseFilter::Expired => row.is_expired(now),
                LeaseFilter::All => true,
                LeaseFilter::Own => row.owner.as_deref() == Some(owner),
                LeaseFilter::Unlocked(from) => row.owner.as_deref() == Some(&from.to_string()),
                LeaseFilter::None => false,
            };
            if is_eligible {
                row.was_released = row.owner.is_none();
                row.run.fencing_token += 1;
                row.hold(owner, now);
                taken.push((row.run.clone(), row.async_run.is_some()));
            }
        }
        taken
    }

    fn release(&mut self, id: RunId, epoch: i64) {
        if let Some(row) = self.running(id)
            && row.run.fencing_token == epoch
        {
            row.lease_until = Some(0);
            row.owner = None;
        }
    }

    fn created(&self, now: u64) -> Vec<Run> {
        let is_old = |row: &&Row| {
            row.run.status == RunStatus::Created && row.created_at + settings::CREATED_AGE < now
        };
        let found = self.rows.values().filter(is_old);
        found.map(|row| row.run.clone()).collect()
    }

    fn request_cancel(&mut self, id: RunId, now: u64) -> Option<Box<Run>> {
        let row = self.rows.get_mut(&id)?;
        if !row.run.status.is_terminal() && row.run.cancel_requested_at.is_none() {
            row.run.cancel_requested_at = Some(settings::epoch_ms(now));
        }
        Some(Box::new(row.run.clone()))
    }

    // --- ledger ---

    fn append(&mut self, append: &Append) -> Appended {
        let plant = self.plant;
        let Some(row) = self.rows.get_mut(&append.run_id) else {
            return Appended::Lost;
        };
        let is_fenced = row.run.fencing_token == append.epoch || plant == Plant::LostFencing;
        let is_next = row.run.last_sequence == append.from && row.run.status == RunStatus::Running;
        let is_doubled = plant == Plant::DoubledTerminal && append.terminal.is_some();
        if !is_fenced || !(is_next || is_doubled) {
            return Appended::Lost;
        }
        let moves = append.to > append.from || append.terminal.is_some();
        if !moves && row.rejections >= append.first_rejection {
            return Appended::Written { next: Vec::new() };
        }
        if row.run.fencing_token != append.epoch {
            let text = format!("{} was written under an old epoch", append.run_id);
            self.violation.get_or_insert(text);
        }
        row.lines.extend(append.lines.lines().map(str::to_owned));
        row.run.last_sequence = append.to;
        // The runner stores its checkpoint now and then.
        if append.to.is_multiple_of(3) {
            row.checkpoint = append.to;
        }
        row.rejections += append.rejections.len() as u64;
        let numbers = append.rejections.iter();
        row.rejected
            .extend(numbers.filter_map(|rejection| rejection.runner_sequence));
        if let (Some(through), Some(async_run)) = (append.judged_through, &mut row.async_run) {
            async_run.judged_through = through;
        }
        let Some(end) = &append.terminal else {
            self.check_ledger(append.run_id);
            return Appended::Written { next: Vec::new() };
        };
        row.run.status = end.status_after(row.run.cancel_requested_at);
        row.run.finished_at = Some(append.at);
        row.lease_until = None;
        self.check_ledger(append.run_id);
        let next = self.promote(append.run_id);
        Appended::Written { next }
    }

    /// Queues events that the ended run has not pulled, and promotes the next runs of its conversation.
    fn promote(&mut self, ended: RunId) -> Vec<RunId> {
        let row = self.rows.get_mut(&ended).unwrap();
        let (run, policy, created_at) = (row.run.clone(), row.policy, row.created_at);
        for event in std::mem::take(&mut row.steering) {
            let template = Run {
                id: settings::run_id(event),
                status: RunStatus::Created,
                cancel_requested_at: None,
                finished_at: None,
                ..run.clone()
            };
            self.queue(&template, event, policy, created_at);
        }
        let key = run.conversation_key.unwrap();
        let next = promotable(&self.live_of(&key));
        for id in &next {
            self.rows.get_mut(id).unwrap().run.status = RunStatus::Created;
        }
        self.check_conversation(&key);
        next
    }

    /// Checks that sequences are dense, and that the terminal event is single and last.
    fn check_ledger(&mut self, id: RunId) {
        let row = &self.rows[&id];
        let last = row.lines.len();
        let mut faults = Vec::new();
        for (number, line) in (1..).zip(&row.lines) {
            let is_end = is_terminal_line(line);
            if is_end && number != last {
                faults.push(format!("{id} has an event after its terminal {number}"));
            }
            if number == last && is_end != row.run.status.is_terminal() {
                faults.push(format!("{id} is {:?} after {line}", row.run.status));
            }
            if !line.contains(&format!("\"sequence\":{number},")) {
                faults.push(format!("{id} has another event at {number}: {line}"));
            }
        }
        if row.run.last_sequence != last as u64 {
            faults.push(format!("{id} counts {} events", row.run.last_sequence));
        }
        if let Some(fault) = faults.into_iter().next() {
            self.break_with(fault);
        }
    }

    // --- async runs ---

    fn start_async(&mut self, id: RunId, attempt: u32, epoch: i64, now: u64) -> bool {
        let row = self.running(id);
        let Some(row) = row.filter(|row| row.run.fencing_token == epoch) else {
            return false;
        };
        match &mut row.async_run {
            Some(async_run) => async_run.attempt = attempt,
            none => {
                *none = Some(AsyncRun {
                    attempt,
                    accepted: Vec::new(),
                    judged_through: 0,
                    lease_until: now + settings::APPEND_LEASE,
                    is_closed: false,
                });
            }
        }
        true
    }

    /// Appends the next result of a runner. `None`: not async, or not yet. False: the run has ended.
    pub(super) fn accept(&mut self, id: RunId, number: u64, raw: &str, now: u64) -> Option<bool> {
        let row = self.rows.get_mut(&id)?;
        if row.run.status.is_terminal() {
            return Some(false);
        }
        let async_run = row.async_run.as_mut()?;
        if number <= async_run.accepted.len() as u64 {
            return Some(true);
        }
        if async_run.is_closed {
            return Some(false);
        }
        async_run.accepted.push(raw.to_owned());
        async_run.lease_until = now + settings::APPEND_LEASE;
        Some(true)
    }

    fn resume(&mut self, id: RunId, attempt: u32, now: u64) -> Option<ResumePoint> {
        let row = self.running(id)?;
        let async_run = row
            .async_run
            .as_mut()
            .filter(|one| one.attempt == attempt)?;
        if !async_run.is_closed {
            async_run.lease_until = now + settings::APPEND_LEASE;
        }
        Some(ResumePoint {
            streamed_through: 0,
            judged_through: async_run.judged_through,
            accepted_through: async_run.accepted.len() as u64,
            rejections: row.rejections,
            rejected: row.rejected.clone(),
        })
    }

    fn close_appends(
        &mut self,
        id: RunId,
        epoch: i64,
        only_if_expired: bool,
        now: u64,
    ) -> AppendsClosed {
        let row = self.running(id);
        let Some(row) = row.filter(|row| row.run.fencing_token == epoch) else {
            return AppendsClosed::Lost;
        };
        let Some(async_run) = &mut row.async_run else {
            return AppendsClosed::Behind(0);
        };
        if only_if_expired && async_run.lease_until >= now {
            return AppendsClosed::Heartbeating;
        }
        async_run.is_closed = true;
        AppendsClosed::Behind(async_run.accepted.len() as u64)
    }

    fn read_appends(&self, id: RunId, after: u64, now: u64) -> Answer {
        const PER_READ: usize = 3;
        let async_run = self.rows.get(&id).and_then(|row| row.async_run.as_ref());
        let is_expired = async_run.is_none_or(|async_run| async_run.lease_until < now);
        let new: Vec<_> = async_run
            .iter()
            .flat_map(|async_run| async_run.accepted.iter())
            .skip(usize::try_from(after).unwrap())
            .take(PER_READ)
            .cloned()
            .collect();
        let found = (!new.is_empty()).then(|| (after + new.len() as u64, new));
        Answer::Appends { is_expired, found }
    }

    /// The runner pulls the absorbed events of its run.
    pub(super) fn pull(&mut self, id: RunId) {
        if let Some(row) = self.running(id)
            && row.run.cancel_requested_at.is_none()
        {
            let pulled = std::mem::take(&mut row.steering);
            self.pulled.extend(pulled);
        }
    }

    /// Checks that published events are in the table.
    pub(super) fn check_published(&mut self, id: RunId, last: u64) {
        if self.rows[&id].run.last_sequence < last {
            self.break_with(format!("{id} showed the event {last} before its commit"));
        }
    }
}

pub(super) fn is_terminal_line(line: &str) -> bool {
    line.contains("\"type\":\"run.completed\"") || line.contains("\"type\":\"run.failed\"")
}
