//! Tasks of a simulated gateway: their begin, what continues them, and their end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::run::{Failure, Run};
use store::{LeaseFilter, ResumePoint, StoreError};
use tokio::time::Instant;

use super::database::{Answer, Op};
use super::driver::Driver;
use super::faults::Plant;
use super::gateway::Gateway;
use super::network::{Connection, Network, TaskKey};
use super::resuming::restore;
use super::runner::PostAnswer;
use super::task::{Stage, Task};
use crate::live::LiveRun;
use crate::relay::RelaySource;
use crate::relay::source::SourceRead;

fn new_task(net: &mut Network, live: Arc<LiveRun>, run: Run) -> Task {
    Task {
        key: (run.id, net.number()),
        live,
        run,
        stage: Stage::Done,
        connection: 0,
        resumption: None,
        lost: None,
    }
}

impl Gateway {
    /// Lets a task act and continue. Then stores it, or removes its entry of the registry when it is done.
    fn drive(&mut self, net: &mut Network, mut task: Task, act: impl FnOnce(&mut Driver)) {
        let mut driver = Driver {
            net,
            gateway: self,
            task: &mut task,
        };
        act(&mut driver);
        driver.pump();
        if !matches!(task.stage, Stage::Done) {
            self.tasks.insert(task.key, task);
        } else if net.db.plant != Plant::ForgottenRelease || !task.live.lost.is_cancelled() {
            // The guard of the registry removes the entry on drop.
            drop(self.live.guard(task.run.id, &task.live));
        }
    }

    /// Drives a created run. `dispatched_at`: request time of the commit that has dispatched it already.
    pub(super) fn spawn(&mut self, net: &mut Network, run: Run, dispatched_at: Option<u64>) {
        let Some(live) = self.live.enter_new(run.id) else {
            return;
        };
        let task = new_task(net, live, run);
        self.drive(net, task, |driver| {
            if let Some(requested_at) = dispatched_at {
                driver.claimed(1, requested_at);
            } else {
                driver.task.stage = Stage::Prepare;
                driver.request(Op::FindRun(driver.task.run.id));
            }
        });
    }

    /// Resumes an async run after a take-over.
    pub(super) fn resume(
        &mut self,
        net: &mut Network,
        run: Run,
        point: ResumePoint,
        held_until: Instant,
    ) {
        let Some(live) = self.live.enter_new(run.id) else {
            return;
        };
        live.appends.store(true, Ordering::Release);
        live.hold_until(held_until);
        live.log.begin_after(run.last_sequence);
        if let Some(at) = run.cancel_requested_at {
            live.request_cancel(at);
        }
        let task = new_task(net, live, run);
        let source = RelaySource::Backlog(point);
        self.drive(net, task, |driver| driver.begin_relay(source));
    }

    /// Attaches to the runner of a run after a take-over.
    pub(super) fn attach(&mut self, net: &mut Network, run: Run, held_until: Instant) {
        let Some(live) = self.live.enter_new(run.id) else {
            return;
        };
        live.hold_until(held_until);
        live.log.begin_after(run.last_sequence);
        if let Some(at) = run.cancel_requested_at {
            live.request_cancel(at);
        }
        let task = new_task(net, live, run);
        self.drive(net, task, restore);
    }

    /// Ends a run whose lease this gateway has taken.
    pub(super) fn end_owned(&mut self, net: &mut Network, failure: Failure, run: Run) {
        let task = new_task(net, self.live.enter(run.id), run);
        self.drive(net, task, |driver| driver.finish_with(failure));
    }

    /// Takes a run that no task drives, to end it.
    pub(super) fn own(
        &mut self,
        net: &mut Network,
        run: Run,
        leases: LeaseFilter,
        failure: Failure,
    ) {
        let task = new_task(net, Arc::new(LiveRun::new()), run);
        self.drive(net, task, |driver| {
            driver.task.stage = Stage::Own { leases, failure };
            driver.request(Op::FindRun(driver.task.run.id));
        });
    }

    /// Continues a task.
    pub(super) fn advance(&mut self, net: &mut Network, key: TaskKey) {
        if let Some(task) = self.tasks.remove(&key) {
            self.drive(net, task, |_| ());
        }
    }

    pub(super) fn advance_all(&mut self, net: &mut Network) {
        let keys: Vec<_> = self.tasks.keys().copied().collect();
        for key in keys {
            self.advance(net, key);
        }
    }

    /// Continues tasks with a signal.
    pub(super) fn advance_signalled(&mut self, net: &mut Network) {
        let has_signal =
            |task: &&Task| task.live.lost.is_cancelled() || task.live.cancel.is_cancelled();
        let signalled = self.tasks.values().filter(has_signal);
        let keys: Vec<_> = signalled.map(|task| task.key).collect();
        for key in keys {
            self.advance(net, key);
        }
    }

    /// Passes an answer of the database to its task.
    pub(super) fn task_answered(
        &mut self,
        net: &mut Network,
        key: TaskKey,
        token: u64,
        answer: Result<Answer, StoreError>,
    ) {
        if let Some(task) = self.tasks.remove(&key) {
            self.drive(net, task, |driver| driver.take_answer(token, answer));
        }
    }

    pub(super) fn post_answered(
        &mut self,
        net: &mut Network,
        connection: Connection,
        answered: PostAnswer,
    ) {
        if let Some(task) = self.tasks.get_mut(&connection.key)
            && task.connection == connection.number
            && let Stage::Post { answer, .. } = &mut task.stage
        {
            *answer = Some(answered);
            self.advance(net, connection.key);
        }
    }

    /// Bytes of the runner's response.
    pub(super) fn read(&mut self, net: &mut Network, connection: Connection, read: SourceRead) {
        if let Some(task) = self.tasks.get_mut(&connection.key)
            && task.connection == connection.number
            && let Stage::Relay(relay) = &mut task.stage
        {
            relay.reads.push_back(read);
            self.advance(net, connection.key);
        }
    }
}
