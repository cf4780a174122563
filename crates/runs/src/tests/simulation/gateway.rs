//! State of a simulated gateway process: its registry of live runs, its tasks and its open requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::run::Run;
use protocol::id::RunId;
use store::LockedOwner;
use tokio::time::Instant;
use uuid::Uuid;

use super::database::Op;
use super::network::{Address, Network, Process, TaskKey};
use super::task::Task;
use crate::call_usage::{Reservation, ReservedCalls};
use crate::live::LiveRegistry;

/// Receiver of an answer of the database.
pub(super) enum Waiter {
    Task(TaskKey),
    Ingest {
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
    /// Starts a process.
    pub(super) fn start(net: &mut Network, process: Process, skew: u64) -> Self {
        net.start(process);
        let number = (process.gateway as u128) << 64 | u128::from(process.start);
        Self {
            process,
            owner: LockedOwner::new(Uuid::from_u128(number)).to_string(),
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

    /// True if a client can reach it.
    pub(super) fn serves(&self, now: u64) -> bool {
        self.is_up && !self.is_stopping && self.paused_until <= now
    }

    /// Sends an operation to the database. Returns the token of its answer.
    pub(super) fn request(&mut self, net: &mut Network, waiter: Waiter, op: Op) -> u64 {
        let token = net.number();
        self.waiters.insert(token, waiter);
        let process = self.process;
        net.send(Address { process, token }, op);
        token
    }
}
