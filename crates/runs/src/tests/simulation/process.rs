//! Work of a simulated gateway process: its periodic work, the answers for it, notifications and its end.

use domain::run::{Failure, Run};
use protocol::id::RunId;
use protocol::run::RunStatus;
use store::{LeaseFilter, LockedOwner, StoreError};
use tokio::time::Instant;

use super::database::{Answer, Op, Row};
use super::gateway::{Gateway, Waiter};
use super::network::{Happening, Network, Occurrence, TickKind};
use super::settings::{self, HEALED, LEASE, UNLOCKED};
use crate::recovery::orphans::{
    AsyncRecovery, StreamRecovery, failure_of, recovery_of, recovery_of_stream,
};

impl Gateway {
    pub(super) fn on(&mut self, net: &mut Network, occurrence: Occurrence) {
        match occurrence {
            Occurrence::Tick(kind) => self.tick(net, kind),
            Occurrence::Wake(key) => self.advance(net, key),
            Occurrence::Answer(token, answer) => self.answered(net, token, answer),
            Occurrence::CancelNotice(id) => self.notice_cancel(net, id),
            Occurrence::PostAnswer(connection, answer) => {
                self.post_answered(net, connection, answer);
            }
            Occurrence::Read(connection, read) => self.read(net, connection, read),
            // If the write fails, the reservation lapses.
            Occurrence::CallEnds(call) => {
                drop(self.calls.remove(&call));
                self.request(net, Waiter::Nothing, Op::Settle(call));
            }
        }
    }

    /// Takes no new run, and closes after the grace.
    pub(super) fn stop(&mut self, net: &mut Network) {
        self.is_stopping = true;
        net.within(0, 1_500, Happening::Close(self.process.gateway));
        self.advance_all(net);
    }

    /// Ends all runs.
    pub(super) fn close(&mut self, net: &mut Network) {
        self.is_closing = true;
        self.advance_all(net);
        net.within(100, 1_500, Happening::Kill(self.process.gateway));
    }

    fn tick(&mut self, net: &mut Network, kind: TickKind) {
        let again = Happening::At(self.process, Occurrence::Tick(kind));
        net.at(net.now + kind.period(), again);
        match kind {
            TickKind::Renew => self.renew(net),
            TickKind::MarkLapsed => {
                self.live.mark_lapsed(net.instant(net.now));
                self.advance_signalled(net);
            }
            TickKind::Sweep => {
                if !self.is_stopping {
                    self.request(net, Waiter::Expired, Op::Expired);
                    self.request(net, Waiter::Created, Op::Created);
                    if net.now < HEALED && net.random.chance(UNLOCKED) {
                        self.take_from_unlocked(net);
                    }
                }
                if !net.db.reservations.is_empty() {
                    self.request(net, Waiter::Nothing, Op::ReleaseReservations);
                }
            }
        }
    }

    /// Takes the runs that can continue from an owner that seems dead, whether it is or not.
    fn take_from_unlocked(&mut self, net: &mut Network) {
        let can_continue = |row: &&Row| row.async_run.is_some() || net.is_resumable(row.run.id);
        let rows = net.db.rows.values().filter(can_continue);
        let rows = rows.filter(|row| !self.live.contains(row.run.id));
        let owned =
            rows.filter_map(|row| Some((LockedOwner::read(row.owner.as_ref()?)?, row.run.id)));
        let owned: Vec<_> = owned.collect();
        if let Some((dead, _)) = owned.first().copied() {
            let ids = owned.iter().filter(|(owner, _)| *owner == dead);
            let op = Op::TakeOver {
                owner: self.owner.clone(),
                ids: ids.map(|(_, id)| *id).collect(),
                leases: LeaseFilter::Unlocked(dead),
            };
            let held_until = net.instant(net.now + LEASE);
            self.request(net, Waiter::TakeOver { held_until }, op);
        }
    }

    fn renew(&mut self, net: &mut Network) {
        let calls = self.reserved.held();
        if !calls.is_empty() {
            self.request(net, Waiter::Nothing, Op::ExtendReservations(calls));
        }
        let ids = self.live.leased();
        if ids.is_empty() || self.is_closing {
            return;
        }
        let op = Op::Renew {
            owner: self.owner.clone(),
            ids: ids.clone(),
        };
        let until = net.instant(net.now + LEASE);
        self.request(net, Waiter::Renewal { ids, until }, op);
    }

    /// Takes an answer of the database.
    fn answered(&mut self, net: &mut Network, token: u64, answer: Result<Answer, StoreError>) {
        let Some(waiter) = self.waiters.remove(&token) else {
            return;
        };
        match (waiter, answer) {
            (Waiter::Task(key), answer) => self.task_answered(net, key, token, answer),
            (Waiter::Ingest { requested_at }, Ok(Answer::Ingested(answer))) => {
                for id in &answer.cancelled {
                    self.send_cancel(net, *id);
                }
                if let Some(run) = answer.started {
                    let dispatched_at = answer.is_dispatched.then_some(requested_at);
                    self.spawn(net, *run, dispatched_at);
                }
            }
            (Waiter::Cancel(id), Ok(Answer::Run(Some(run)))) => {
                if run.status == RunStatus::Queued {
                    self.own(net, *run, LeaseFilter::None, Failure::cancelled());
                } else if !run.status.is_terminal() {
                    self.send_cancel(net, id);
                }
            }
            (Waiter::Renewal { ids, until }, Ok(Answer::Renewed(renewed))) => {
                self.live.renew(&ids, &renewed, until);
                self.advance_signalled(net);
            }
            (Waiter::Expired, Ok(Answer::Runs(mut runs))) => {
                runs.retain(|run| !self.live.contains(run.id));
                if runs.is_empty() || self.is_stopping {
                    return;
                }
                let op = Op::TakeOver {
                    owner: self.owner.clone(),
                    ids: runs.iter().map(|run| run.id).collect(),
                    leases: LeaseFilter::Expired,
                };
                let held_until = net.instant(net.now + LEASE);
                self.request(net, Waiter::TakeOver { held_until }, op);
            }
            (Waiter::TakeOver { held_until }, Ok(Answer::Taken(taken))) => {
                self.taken_over(net, taken, held_until);
            }
            (Waiter::Resume { run, held_until }, answer) => {
                let position = answer.map(|answer| match answer {
                    Answer::Position(position) => position,
                    _ => None,
                });
                match recovery_of(position) {
                    AsyncRecovery::Resume(point) => self.resume(net, *run, point, held_until),
                    AsyncRecovery::End => self.end_owned(net, failure_of(&run), *run),
                    AsyncRecovery::Wait => {}
                }
            }
            (Waiter::Created, Ok(Answer::Runs(runs))) => {
                for run in runs {
                    if !self.is_stopping {
                        self.spawn(net, run, None);
                    }
                }
            }
            (Waiter::Reserve(call), Ok(_)) => {
                self.calls.insert(call, self.reserved.hold(call));
                let end = Happening::At(self.process, Occurrence::CallEnds(call));
                net.within(20, 4_000, end);
            }
            // The next tick, or the client, tries again.
            _ => {}
        }
    }

    fn taken_over(&mut self, net: &mut Network, taken: Vec<(Run, bool)>, held_until: Instant) {
        for (run, is_async) in taken {
            if is_async {
                let op = Op::Resume {
                    run: run.id,
                    attempt: run.attempt,
                };
                let run = Box::new(run);
                self.request(net, Waiter::Resume { run, held_until }, op);
                continue;
            }
            match recovery_of_stream(Ok(Some(settings::manifest(net.is_resumable(run.id))))) {
                StreamRecovery::Attach => self.attach(net, run, held_until),
                StreamRecovery::End => self.end_owned(net, failure_of(&run), run),
                StreamRecovery::Wait => {}
            }
        }
    }

    /// Sends a stored cancel to the process that drives the run.
    fn send_cancel(&mut self, net: &mut Network, id: RunId) {
        if self.live.contains(id) {
            self.notice_cancel(net, id);
        } else {
            net.notify_cancel(id);
        }
    }

    fn notice_cancel(&mut self, net: &mut Network, id: RunId) {
        let at = net.db.rows[&id].run.cancel_requested_at;
        if let (Some(live), Some(at)) = (self.live.get(id), at) {
            live.request_cancel(at);
            self.advance_signalled(net);
        }
    }
}
