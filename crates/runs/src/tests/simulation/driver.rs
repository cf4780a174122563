//! A task of a simulated gateway at work: its requests, its timers, and the retries of its writes.

use std::sync::Arc;
use std::time::Duration;

use domain::run::Failure;
use store::{Appended, StoreError};
use tokio::time::Instant;

use super::database::{Answer, Op};
use super::gateway::{Gateway, Waiter};
use super::network::Network;
use super::settings::{self, GRACE, LEASE, millis};
use super::task::{CommitStage, Retry, Task};
use crate::interrupts::{deadline_failure, shutdown_failure};
use crate::ledger::commit::{AfterError, CommitMachine, CommitOutput, RetryWindow};

/// A task at work, with its gateway and the network.
pub(super) struct Driver<'a> {
    pub(super) net: &'a mut Network,
    pub(super) gateway: &'a mut Gateway,
    pub(super) task: &'a mut Task,
}

impl Driver<'_> {
    /// Sends an operation whose answer the task gets.
    pub(super) fn request(&mut self, op: Op) -> u64 {
        let waiter = Waiter::Task(self.task.key);
        self.gateway.request(self.net, waiter, op)
    }

    pub(super) fn wake(&mut self, at: u64) {
        self.net.wake(self.gateway.process, self.task.key, at);
    }

    /// Wakes the task after a pause. Returns the time.
    pub(super) fn wake_after(&mut self, pause: Duration) -> u64 {
        let at = self.net.now + u64::try_from(pause.as_millis()).unwrap();
        self.wake(at);
        at
    }

    pub(super) fn wake_at_deadline(&mut self) {
        let left = self.task.run.deadline_at - self.epoch_ms();
        self.wake(self.net.now + u64::try_from(left).unwrap_or(0));
    }

    pub(super) fn now(&self) -> Instant {
        self.net.instant(self.net.now)
    }

    /// The wall clock of the gateway.
    pub(super) fn epoch_ms(&self) -> i64 {
        settings::epoch_ms(self.net.now + self.gateway.skew)
    }

    /// Failure of a run that must end now.
    pub(super) fn interruption(&self) -> Option<Failure> {
        if self.task.live.cancel.is_cancelled() {
            Some(Failure::cancelled())
        } else if self.gateway.is_closing {
            Some(shutdown_failure())
        } else if self.epoch_ms() >= self.task.run.deadline_at {
            Some(deadline_failure())
        } else {
            None
        }
    }

    /// True when the grace of a cancelled run is over. The first call begins it.
    pub(super) fn is_grace_over(&mut self) -> bool {
        let now = self.now();
        let mut is_first = false;
        let until = self.task.live.grace_until(|| {
            is_first = true;
            now + millis(GRACE)
        });
        if is_first {
            self.wake(self.net.now + GRACE);
        }
        now >= until || self.gateway.is_closing
    }
}

impl Retry {
    pub(super) fn new() -> Self {
        Self {
            window: RetryWindow::new(millis(LEASE)),
            at: None,
        }
    }

    /// True once after each pause.
    pub(super) fn is_due(&mut self, now: u64) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }

    /// Begins the pause before the next try. Returns the error that ends the tries.
    pub(super) fn after(&mut self, driver: &mut Driver, error: StoreError) -> Option<StoreError> {
        match self.window.after(error, driver.now()) {
            AfterError::Retry { pause, .. } => {
                self.at = Some(driver.wake_after(pause));
                None
            }
            AfterError::Fail(error) => Some(error),
        }
    }
}

impl CommitStage {
    pub(super) fn new(machine: CommitMachine) -> Self {
        Self {
            machine,
            token: None,
            retry_at: Some(0),
        }
    }

    /// Sends the next operation, if it is due.
    pub(super) fn send_due(&mut self, driver: &mut Driver) {
        if self.retry_at.take_if(|at| *at <= driver.net.now).is_some() {
            let append = self.machine.append();
            let op = match self.machine.next() {
                CommitOutput::FindRun => Op::FindRun(append.run_id),
                _ => Op::Append(Arc::clone(append)),
            };
            self.token = Some(driver.request(op));
        }
    }

    /// Takes the answer for a write or a read. Returns the outcome of the commit.
    pub(super) fn answered(
        &mut self,
        driver: &mut Driver,
        answer: Result<Answer, StoreError>,
    ) -> Option<Result<Appended, StoreError>> {
        let (now, machine) = (driver.now(), &mut self.machine);
        let is_confirming = matches!(machine.next(), CommitOutput::FindRun);
        let output = match answer {
            Ok(Answer::Run(row)) => machine.on_found(Ok(row.map(|row| *row)), now),
            Ok(Answer::Appended(appended)) => machine.on_written(Ok(appended), now),
            Ok(_) => unreachable!("the answer of another operation"),
            Err(error) if is_confirming => machine.on_found(Err(error), now),
            Err(error) => machine.on_written(Err(error), now),
        };
        self.token = None;
        match output {
            CommitOutput::Done(outcome) => return Some(outcome),
            CommitOutput::Pause { pause, .. } => self.retry_at = Some(driver.wake_after(pause)),
            CommitOutput::Write | CommitOutput::FindRun => self.retry_at = Some(driver.net.now),
        }
        None
    }
}
