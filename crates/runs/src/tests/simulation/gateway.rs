//! A simulated gateway process: its registry of live runs, its tasks and its periodic work.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::run::{Failure, Run};
use protocol::id::RunId;
use protocol::run::RunStatus;
use store::{LeaseFilter, StoreError};
use tokio::time::Instant;
use uuid::Uuid;

use super::database::{Answer, Op};
use super::settings::{LEASE, SWEEP};
use super::task::{Stage, Task, TaskKey};
use super::world::{Address, Happening, Process, World};
use crate::call_usage::{Reservation, ReservedCalls};
use crate::live::LiveRegistry;
use crate::recovery::orphans::{AsyncRecovery, failure_of, recovery_of};

/// Periodic work of a gateway.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TickKind {
    Renew,
    MarkLapsed,
    Sweep,
}

impl TickKind {
    pub(super) const ALL: [(Self, u64); 3] = [
        (Self::Renew, LEASE / 5),
        (Self::MarkLapsed, LEASE / 20),
        (Self::Sweep, SWEEP),
    ];

    fn period(self) -> u64 {
        match self {
            Self::Renew => LEASE / 5,
            Self::MarkLapsed => LEASE / 20,
            Self::Sweep => SWEEP,
        }
    }
}

/// Receiver of an answer of the database.
pub(super) enum Waiter {
    Task(TaskKey),
    Ingest {
        event: usize,
        requested_at: u64,
    },
    Cancel(RunId),
    Renewal {
        ids: Vec<RunId>,
        until: Instant,
    },
    Expired,
    TakeOver {
        held_until: Instant,
    },
    Resume {
        run: Box<Run>,
        held_until: Instant,
    },
    Created,
    /// A call whose budget is reserved.
    Reserve(Uuid),
    Nothing,
}

pub(super) struct Gateway {
    pub(super) process: Process,
    /// Its name in leases: another one after each start.
    pub(super) owner: String,
    pub(super) live: Arc<LiveRegistry>,
    pub(super) tasks: BTreeMap<TaskKey, Task>,
    pub(super) reserved: Arc<ReservedCalls>,
    /// Calls in flight.
    pub(super) calls: BTreeMap<Uuid, Reservation>,
    pub(super) waiters: BTreeMap<u64, Waiter>,
    pub(super) is_up: bool,
    pub(super) is_stopping: bool,
    pub(super) is_closing: bool,
    pub(super) paused_until: u64,
    /// Its wall clock is fast by so much.
    pub(super) skew: u64,
}

impl Gateway {
    pub(super) fn new(index: usize, skew: u64) -> Self {
        Self {
            process: Process {
                gateway: index,
                start: 0,
            },
            owner: format!("gateway-{index}-0"),
            live: Arc::default(),
            tasks: BTreeMap::new(),
            reserved: Arc::default(),
            calls: BTreeMap::new(),
            waiters: BTreeMap::new(),
            is_up: true,
            is_stopping: false,
            is_closing: false,
            paused_until: 0,
            skew,
        }
    }

    pub(super) fn restart(&mut self) {
        let start = self.process.start + 1;
        *self = Self::new(self.process.gateway, self.skew);
        self.process.start = start;
        self.owner = format!("gateway-{}-{start}", self.process.gateway);
    }
}

impl World {
    pub(super) fn tick(&mut self, process: Process, kind: TickKind) {
        self.at(self.now + kind.period(), Happening::Tick(process, kind));
        let now = self.instant(self.now);
        let gateway = &self.gateways[process.gateway];
        match kind {
            TickKind::Renew => {
                let calls = gateway.reserved.held();
                if !calls.is_empty() {
                    let op = Op::ExtendReservations(calls);
                    self.request(process, Waiter::Nothing, op);
                }
                let gateway = &self.gateways[process.gateway];
                let ids = gateway.live.leased();
                if ids.is_empty() || gateway.is_closing {
                    return;
                }
                let op = Op::Renew {
                    owner: gateway.owner.clone(),
                    ids: ids.clone(),
                };
                let until = self.instant(self.now + LEASE);
                self.request(process, Waiter::Renewal { ids, until }, op);
            }
            TickKind::MarkLapsed => {
                gateway.live.mark_lapsed(now);
                self.advance_signalled(process.gateway);
            }
            TickKind::Sweep => {
                if !gateway.is_stopping {
                    self.request(process, Waiter::Expired, Op::Expired);
                    self.request(process, Waiter::Created, Op::Created);
                }
                if !self.db.reservations.is_empty() {
                    self.request(process, Waiter::Nothing, Op::ReleaseReservations);
                }
            }
        }
    }

    /// Takes an answer of the database.
    pub(super) fn answer(&mut self, address: Address, answer: Result<Answer, StoreError>) {
        let (process, index) = (address.process, address.process.gateway);
        let Some(waiter) = self.gateways[index].waiters.remove(&address.token) else {
            return;
        };
        match (waiter, answer) {
            (Waiter::Task(key), answer) => self.task_answered(index, key, address.token, answer),
            (
                Waiter::Ingest {
                    event,
                    requested_at,
                },
                Ok(Answer::Ingested(answer)),
            ) => {
                self.ingested(event, &answer);
                for id in &answer.cancelled {
                    self.send_cancel(index, *id);
                }
                if let Some(run) = answer.started {
                    let requested_at = answer.is_dispatched.then_some(requested_at);
                    self.spawn(index, *run, requested_at);
                }
            }
            (Waiter::Cancel(id), Ok(Answer::Run(Some(run)))) => {
                if run.status == RunStatus::Queued {
                    self.own(index, *run, LeaseFilter::None, Failure::cancelled());
                } else if !run.status.is_terminal() {
                    self.send_cancel(index, id);
                }
            }
            (Waiter::Renewal { ids, until }, Ok(Answer::Renewed(renewed))) => {
                self.gateways[index].live.renew(&ids, &renewed, until);
                self.advance_signalled(index);
            }
            (Waiter::Expired, Ok(Answer::Runs(mut runs))) => {
                let gateway = &self.gateways[index];
                runs.retain(|run| !gateway.live.contains(run.id));
                if runs.is_empty() || gateway.is_stopping {
                    return;
                }
                let op = Op::TakeOver {
                    owner: gateway.owner.clone(),
                    ids: runs.iter().map(|run| run.id).collect(),
                    leases: LeaseFilter::Expired,
                };
                let held_until = self.instant(self.now + LEASE);
                self.request(process, Waiter::TakeOver { held_until }, op);
            }
            (Waiter::TakeOver { held_until }, Ok(Answer::Taken(taken))) => {
                self.taken_over(process, taken, held_until);
            }
            (Waiter::Resume { run, held_until }, answer) => {
                self.position_answered(index, *run, held_until, answer);
            }
            (Waiter::Created, Ok(Answer::Runs(runs))) => {
                for run in runs {
                    if !self.gateways[index].is_stopping {
                        self.spawn(index, run, None);
                    }
                }
            }
            (Waiter::Reserve(call), Ok(_)) => {
                let gateway = &mut self.gateways[index];
                gateway.calls.insert(call, gateway.reserved.hold(call));
                let at = self.now + self.random.between(20, 4_000);
                self.at(at, Happening::CallEnds(process, call));
            }
            // The next tick, or the client, tries again.
            _ => {}
        }
    }

    fn taken_over(&mut self, process: Process, taken: Vec<(Run, bool)>, held_until: Instant) {
        for (run, is_async) in taken {
            if is_async {
                let op = Op::Resume {
                    run: run.id,
                    attempt: run.attempt,
                };
                let run = Box::new(run);
                self.request(process, Waiter::Resume { run, held_until }, op);
            } else {
                self.end_taken_over(process.gateway, run);
            }
        }
    }

    fn position_answered(
        &mut self,
        gateway: usize,
        run: Run,
        held_until: Instant,
        answer: Result<Answer, StoreError>,
    ) {
        let position = answer.map(|answer| match answer {
            Answer::Position(position) => position,
            _ => None,
        });
        match recovery_of(position) {
            AsyncRecovery::Resume(point) => self.resume(gateway, run, point, held_until),
            AsyncRecovery::End => self.end_taken_over(gateway, run),
            AsyncRecovery::Wait => {}
        }
    }

    fn end_taken_over(&mut self, gateway: usize, run: Run) {
        let failure = failure_of(&run);
        self.end_owned(gateway, run, failure);
    }

    /// Ends a run whose lease this gateway has taken.
    pub(super) fn end_owned(&mut self, gateway: usize, run: Run, failure: Failure) {
        let live = self.gateways[gateway].live.enter(run.id);
        let mut task = self.new_task(live, run);
        self.finish_with(gateway, &mut task, failure);
        self.keep_task(gateway, task);
    }

    /// Takes a run that no task drives, to end it.
    pub(super) fn own(&mut self, gateway: usize, run: Run, leases: LeaseFilter, failure: Failure) {
        let live = Arc::new(crate::live::LiveRun::new());
        let mut task = self.new_task(live, run);
        task.stage = Stage::Own { leases, failure };
        let op = Op::FindRun(task.run.id);
        let process = self.gateways[gateway].process;
        self.request(process, Waiter::Task(task.key), op);
        self.keep_task(gateway, task);
    }

    /// The runner calls a model through this gateway.
    pub(super) fn begin_call(&mut self, gateway: usize) {
        self.serial += 1;
        let call = Uuid::from_u128(u128::from(self.serial));
        let process = self.gateways[gateway].process;
        self.request(process, Waiter::Reserve(call), Op::Reserve(call));
    }

    /// Settles a call. If the write fails, its reservation lapses.
    pub(super) fn end_call(&mut self, process: Process, call: Uuid) {
        drop(self.gateways[process.gateway].calls.remove(&call));
        self.request(process, Waiter::Nothing, Op::Settle(call));
    }

    pub(super) fn notice_cancel(&mut self, gateway: usize, id: RunId) {
        let at = self.db.rows[&id].run.cancel_requested_at;
        if let (Some(live), Some(at)) = (self.gateways[gateway].live.get(id), at) {
            live.request_cancel(at);
            self.advance_signalled(gateway);
        }
    }
}
