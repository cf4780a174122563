//! Invariants of the simulation at its rest.

use std::collections::{BTreeSet, HashSet};

use super::clients::Clients;
use super::database::{Database, Row, is_terminal_line};
use super::gateway::Gateway;
use super::runner_log::Runners;
use super::settings::run_id;

/// View of all parts of a world.
pub(super) struct Checks<'a> {
    pub(super) db: &'a Database,
    pub(super) gateways: &'a [Gateway],
    pub(super) clients: &'a Clients,
    pub(super) runners: &'a Runners,
}

impl Checks<'_> {
    pub(super) fn is_at_rest(&self) -> bool {
        let is_idle = |one: &Gateway| one.is_up && !one.is_stopping && one.tasks.is_empty();
        self.clients.are_settled()
            && self.live().next().is_none()
            && self.db.reservations.is_empty()
            && self.gateways.iter().all(is_idle)
    }

    fn live(&self) -> impl Iterator<Item = &Row> {
        let rows = self.db.rows.values();
        rows.filter(|row| !row.run.status.is_terminal())
    }

    /// Describes what still waits at the end.
    pub(super) fn unrest(&self) -> String {
        let runs: Vec<_> = self
            .live()
            .map(|row| format!("{} {:?} of {:?}", row.run.id, row.run.status, row.owner))
            .collect();
        let tasks: usize = self.gateways.iter().map(|one| one.tasks.len()).sum();
        let reserved = self.db.reservations.len();
        format!("no rest: live runs {runs:?}, {tasks} tasks, {reserved} reservations")
    }

    pub(super) fn check_rest(&self) -> Result<(), String> {
        for gateway in self.gateways {
            if gateway.live.count() > 0 {
                return Err(format!("{} holds entries of ended runs", gateway.owner));
            }
        }
        for event in self.clients.accepted() {
            if !self.db.rows.contains_key(&run_id(event)) && !self.db.pulled.contains(&event) {
                return Err(format!("event {event} was acknowledged and lost"));
            }
        }
        for row in self.db.rows.values() {
            let ends = row.lines.iter().filter(|line| is_terminal_line(line));
            if ends.count() != 1 {
                return Err(format!("{} has not one terminal event", row.run.id));
            }
            self.check_acknowledged(row)?;
            self.check_resumable(row)?;
        }
        Ok(())
    }

    /// Results with a confirmation are in the ledger, unless a terminal result precedes them.
    fn check_acknowledged(&self, row: &Row) -> Result<(), String> {
        let Some(async_run) = &row.async_run else {
            return Ok(());
        };
        let written: HashSet<_> = row.lines.iter().filter_map(|line| text_of(line)).collect();
        let acknowledged = self.runners.acknowledged(row.run.id);
        for raw in async_run.accepted.iter().take(acknowledged) {
            if let Some(text) = text_of(raw)
                && !written.contains(text)
            {
                return Err(format!("{} has lost the result {text}", row.run.id));
            }
        }
        Ok(())
    }

    /// A run of a resumable runner has each result once, and is no orphan.
    fn check_resumable(&self, row: &Row) -> Result<(), String> {
        let id = row.run.id;
        let Some(deltas) = self.runners.deltas(id) else {
            return Ok(());
        };
        let written = valid_texts(&row.lines);
        let expected: Vec<_> = (1..=written.len()).map(|n| format!("text-{n}")).collect();
        if written != expected {
            return Err(format!("{id} has lost or doubled results: {written:?}"));
        }
        let end = row.lines.last().map_or("", String::as_str);
        if end.contains("run.completed") && written.len() != deltas {
            return Err(format!("{id} has {} of {deltas} results", written.len()));
        }
        if end.contains("host.orphaned") {
            return Err(format!("{id} ended as an orphan of a resumable runner"));
        }
        Ok(())
    }

    /// Codes of failed runs, types of other terminal events, and ways of their runs.
    pub(super) fn ends(&self) -> BTreeSet<String> {
        let mut ends = BTreeSet::new();
        for row in self.db.rows.values() {
            let line = row.lines.last().map_or("", String::as_str);
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let end = event["data"]["code"].as_str().or(event["type"].as_str());
            ends.insert(end.unwrap().to_owned());
            if row.async_run.is_some() && row.run.fencing_token > i64::from(row.run.attempt) {
                ends.insert(format!("resumed, {:?}", row.run.status));
            }
            if restarts_of(&row.lines).next().is_some() {
                ends.insert(format!("restarted, {:?}", row.run.status));
            }
            if self.runners.deltas(row.run.id).is_some() && row.run.attempt > 1 {
                ends.insert(format!("attached, {:?}", row.run.status));
            }
        }
        ends.extend((!self.db.pulled.is_empty()).then(|| "pulled".to_owned()));
        ends
    }
}

/// New starts of a run: the sequence of each event, and its `after`.
fn restarts_of(lines: &[String]) -> impl Iterator<Item = (u64, u64)> {
    let lines = (1..).zip(lines);
    lines.filter_map(|(sequence, line)| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let is_restart = event["type"] == "run.restarted";
        is_restart.then(|| (sequence, event["data"]["after"].as_u64().unwrap()))
    })
}

/// Texts of the deltas that no later start has superseded.
pub(super) fn valid_texts(lines: &[String]) -> Vec<&str> {
    let restarts: Vec<_> = restarts_of(lines).collect();
    let is_valid = |sequence: u64| {
        let mut restarts = restarts.iter();
        restarts.all(|(at, after)| sequence <= *after || sequence > *at)
    };
    // A delta of the gateway repeats the text that stays.
    let is_result = |line: &str| line.contains("\"source\":\"runner\"");
    let lines = (1..).zip(lines).filter(|(_, line)| is_result(line));
    let valid = lines.filter(|(sequence, _)| is_valid(*sequence));
    valid.filter_map(|(_, line)| text_of(line)).collect()
}

/// The text of a delta, which is unique in its run.
fn text_of(line: &str) -> Option<&str> {
    let begin = line.find("text-")?;
    let length = line[begin..].find('.')?;
    Some(&line[begin..begin + length])
}
