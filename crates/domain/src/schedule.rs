//! Schedules: checks of new ones, their due times, and the events of their occurrences.

mod recurrence;
mod wake;

use chrono::{DateTime, SecondsFormat};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::event::EventEnvelope;
use protocol::id::ScheduleId;
use protocol::schedule::{EventTemplate, Misfire, SCHEDULE_TRIGGERED, ScheduleSpec};
use serde_json::json;

use crate::agent::is_name;
use crate::artifact::has_artifacts;
use crate::canonical::canonical_json;
use crate::event::check_event;

pub use recurrence::Recurrence;
pub use wake::{check_wake, wake_event, wake_event_id, wake_time};

/// Id prefix of the events of occurrences. Clients cannot use it.
pub const OCCURRENCE_ID_PREFIX: &str = "schedule/";
/// Id prefix of the events of wakes. Clients cannot use it.
pub const WAKE_ID_PREFIX: &str = "wake/";
/// Maximum schedules of a workspace.
pub const MAX_SCHEDULES: u64 = 1000;
/// Due times that a schedule shows in advance.
pub const SHOWN_DUE_TIMES: usize = 5;
/// A due time that passed longer ago than this many seconds is a misfire.
pub const MISFIRE_SECONDS: i64 = 60;
/// Maximum due times of one plan: misfires that run, and due times of the last minute.
const MAX_RUNS: usize = 100;
/// Maximum bytes of a specification, as JSON.
const SPEC_BYTES: usize = 128 * 1024;
const SOURCE: &str = "schedule";

/// Returns all faults of a schedule, except that of an unknown agent.
pub fn check_schedule(spec: &ScheduleSpec) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !is_name(&spec.name) {
        let message = "must have 1 to 128 bytes and no control characters";
        faults.push(Fault::new("/name", message));
    }
    if spec.agent.is_none() && spec.event.is_none() {
        let message =
            "is required without `event`: name the agent, or write the event that selects one";
        faults.push(Fault::new("/agent", message));
    }
    if let Err(found) = Recurrence::of(spec, 0) {
        faults.extend(found);
    }
    if let Err(message) = recurrence::jitter_ms(spec) {
        faults.push(Fault::new("/jitter", message));
    }
    if let (Some(starts_at), Some(ends_at)) = (spec.starts_at, spec.ends_at)
        && ends_at < starts_at
    {
        let message = "must not be before `starts_at`";
        faults.push(Fault::new("/ends_at", message));
    }
    if let Some(template) = &spec.event {
        faults.extend(check_template(template));
    }
    if canonical_json(spec).len() > SPEC_BYTES {
        let message = "is larger than 128 KiB; shorten `event`";
        faults.push(Fault::new("", message));
    }
    faults
}

fn check_template(template: &EventTemplate) -> Vec<Fault> {
    let mut faults = Vec::new();
    let input = template.input.as_ref();
    // A file becomes an artifact of one event, and expires with it.
    if input.is_some_and(|input| !input.attachments.is_empty() || has_artifacts(input)) {
        let message = "must have no files; let the agent read them as [[files]] or by a tool";
        faults.push(Fault::new("/event/input", message));
    }
    if template.data.contains_key("schedule") {
        let message = "must be absent: the gateway writes it";
        faults.push(Fault::new("/event/data/schedule", message));
    }
    let actor = template.actor.as_ref();
    if actor.is_some_and(|actor| actor.credential.is_some()) {
        let message = "must be absent: a schedule outlives a token; post the event yourself, with a fresh one";
        faults.push(Fault::new("/event/actor/credential", message));
    }
    let event = envelope(template.clone(), "UTC");
    let found = check_event(&event).into_iter();
    faults.extend(found.map(|fault| Fault {
        pointer: format!("/event{}", fault.pointer),
        ..fault
    }));
    faults
}

fn envelope(template: EventTemplate, timezone: &str) -> EventEnvelope {
    EventEnvelope {
        event_type: SCHEDULE_TRIGGERED.to_owned(),
        event_id: None,
        source: SOURCE.to_owned(),
        source_event_type: None,
        event_time: None,
        locale: template.locale,
        timezone: Some(timezone.to_owned()),
        bot_id: template.bot_id,
        pipeline_id: None,
        conversation: template.conversation,
        actor: template.actor,
        subject: template.subject,
        input: template.input,
        delivery: template.delivery,
        data: template.data,
        raw: None,
        raw_ref: None,
        adapter: None,
    }
}

/// Identity of an occurrence. `due_at`: epoch milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OccurrenceId {
    pub schedule: ScheduleId,
    pub due_at: i64,
}

impl OccurrenceId {
    /// Returns the id of its event, which is stored once: `schedule/{id}/{due time}`.
    pub fn event_id(self) -> String {
        let due = DateTime::from_timestamp_millis(self.due_at).unwrap_or_default();
        let due = due.to_rfc3339_opts(SecondsFormat::AutoSi, true);
        format!("{OCCURRENCE_ID_PREFIX}{}/{due}", self.schedule)
    }

    /// Returns the delay of the occurrence, from 0 to `jitter_ms`. All replicas compute the same.
    pub fn jitter(self, jitter_ms: i64) -> i64 {
        // FNV-1a over both parts, then a mix of the high bits into the low ones.
        let bytes = self.schedule.0.into_bytes();
        let bytes = bytes.into_iter().chain(self.due_at.to_le_bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let hash = (hash ^ (hash >> 32)) & 0x7fff_ffff_ffff_ffff;
        hash.cast_signed() % (jitter_ms.max(0) + 1)
    }
}

/// Cause of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OccurrenceCause {
    DueTime,
    /// A request to run the schedule now.
    Manual,
}

/// The event of an occurrence: equal for all tries and replicas.
pub fn occurrence_event(
    spec: &ScheduleSpec,
    id: OccurrenceId,
    cause: OccurrenceCause,
) -> EventEnvelope {
    let template = spec.event.clone().unwrap_or_default();
    let timezone = spec.timezone.as_deref().unwrap_or("UTC");
    let mut event = envelope(template, timezone);
    let due_at = id.due_at.div_euclid(1000);
    event.event_id = Some(id.event_id());
    event.event_time = Some(due_at);
    let mut schedule = JsonObject::new();
    schedule.insert("id".to_owned(), json!(id.schedule));
    schedule.insert("name".to_owned(), json!(spec.name));
    schedule.insert("due_at".to_owned(), json!(due_at));
    schedule.insert("manual".to_owned(), json!(cause == OccurrenceCause::Manual));
    event.data.insert("schedule".to_owned(), schedule.into());
    event
}

/// Maximum delay of occurrences in milliseconds; 0 for a specification with a fault.
pub fn max_jitter_ms(spec: &ScheduleSpec) -> i64 {
    recurrence::jitter_ms(spec).unwrap_or(0)
}

/// Passed due times of a schedule, and the next one. Epoch seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuePlan {
    /// Due times that run, oldest first.
    pub run: Vec<i64>,
    /// The newest misfire that does not run, if none of the misfires does.
    pub skipped: Option<i64>,
    pub next: Option<i64>,
}

/// Plans a schedule whose due time `due` has passed.
pub fn due_plan(recurrence: &Recurrence, misfire: Misfire, due: i64, now: i64) -> DuePlan {
    let next = recurrence.next_after(now);
    let oldest = now - MISFIRE_SECONDS;
    let mut plan = DuePlan {
        run: Vec::new(),
        skipped: None,
        next,
    };
    let mut missed = recurrence.latest_until(oldest - 1);
    let max_missed = match misfire {
        Misfire::Skip => {
            plan.skipped = missed.filter(|missed| *missed >= due);
            0
        }
        Misfire::Once => 1,
        Misfire::All => MAX_RUNS,
    };
    while let Some(one) = missed.filter(|one| *one >= due && plan.run.len() < max_missed) {
        plan.run.push(one);
        missed = recurrence.latest_until(one - 1);
    }
    plan.run.reverse();
    let mut timely = recurrence.next_after(oldest.max(due) - 1);
    let end = plan.run.len() + MAX_RUNS;
    while let Some(one) = timely.filter(|one| *one <= now && plan.run.len() < end) {
        plan.run.push(one);
        timely = recurrence.next_after(one);
    }
    plan
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use uuid::Uuid;

    use super::*;

    fn spec(more: Value) -> ScheduleSpec {
        let mut spec = json!({"name": "n", "agent": "a"});
        let Value::Object(more) = more else {
            unreachable!()
        };
        spec.as_object_mut().unwrap().extend(more);
        serde_json::from_value(spec).unwrap()
    }

    fn plan(more: Value, due: i64, now: i64) -> DuePlan {
        let spec = spec(more);
        let recurrence = Recurrence::of(&spec, 0).unwrap();
        due_plan(&recurrence, spec.misfire, due, now)
    }

    #[test]
    fn reports_all_faults_of_a_schedule() {
        for (more, pointer) in [
            (json!({"cron": "0 2 * * *", "name": ""}), "/name"),
            (json!({"cron": "0 2 * * *", "agent": null}), "/agent"),
            (json!({}), "/cron"),
            (json!({"cron": "0 2 * * *", "every": "1h"}), "/every"),
            (json!({"cron": "0 25 * * *"}), "/cron"),
            (json!({"cron": "* * *"}), "/cron"),
            (json!({"cron": "0 0 0 1 1 * 2030"}), "/cron"),
            (json!({"cron": "0 0 31 2 *"}), "/cron"),
            (json!({"every": "0s"}), "/every"),
            (json!({"every": "367d"}), "/every"),
            (json!({"every": "1.5h"}), "/every"),
            (
                json!({"every": "1h", "timezone": "Mars/Olympus"}),
                "/timezone",
            ),
            (json!({"every": "1h", "jitter": "25h"}), "/jitter"),
            (json!({"every": "1h", "starts_at": -1}), "/starts_at"),
            (
                json!({"every": "1h", "starts_at": 9, "ends_at": 8}),
                "/ends_at",
            ),
            (
                json!({"every": "1h", "event": {"data": {"schedule": 1}}}),
                "/event/data/schedule",
            ),
            (
                json!({"every": "1h", "event": {"bot_id": ""}}),
                "/event/bot_id",
            ),
            (
                json!({"every": "1h", "event": {"input": {"attachments": [{"content": "aGk="}]}}}),
                "/event/input",
            ),
        ] {
            let faults = check_schedule(&spec(more.clone()));
            let pointers: Vec<_> = faults.iter().map(|fault| &*fault.pointer).collect();
            assert_eq!(pointers, [pointer], "{more}: {faults:?}");
        }
        for good in [
            json!({"cron": "0 2 * * MON-FRI", "timezone": "Europe/Berlin", "jitter": "5m"}),
            json!({"cron": "*/5 0 2 * * *"}),
            json!({"cron": "@daily", "agent": null, "event": {}}),
            json!({"every": "90s", "starts_at": 0, "ends_at": 0}),
        ] {
            assert_eq!(check_schedule(&spec(good.clone())), [], "{good}");
        }
    }

    #[test]
    fn runs_each_due_time_of_the_last_minute() {
        let second = json!({"cron": "* * * * * *", "misfire": "skip"});
        let found = plan(second, 1_000, 1_060);
        assert_eq!(found.run, (1_000..=1_060).collect::<Vec<_>>());
        assert_eq!((found.skipped, found.next), (None, Some(1_061)));
    }

    #[test]
    fn misfires_run_by_policy() {
        let day = 86_400;
        let now = 10 * day + 7_200;
        let daily = |misfire: &str| json!({"cron": "0 0 * * *", "misfire": misfire});
        let skip = plan(daily("skip"), 4 * day, now);
        assert_eq!(skip.run, [] as [i64; 0]);
        assert_eq!((skip.skipped, skip.next), (Some(10 * day), Some(11 * day)));
        assert_eq!(plan(daily("once"), 4 * day, now).run, [10 * day]);
        let all: Vec<_> = (4..=10).map(|n| n * day).collect();
        assert_eq!(plan(daily("all"), 4 * day, now).run, all);
        let minutes = plan(json!({"cron": "* * * * *", "misfire": "all"}), 0, now);
        // The newest 100 misfires, and those of the last minute.
        assert_eq!(minutes.run.len(), 102);
        assert_eq!(minutes.run.first(), Some(&(now - 101 * 60)));
        assert_eq!(minutes.run.last(), Some(&now));
    }

    #[test]
    fn ends_with_the_last_due_time() {
        let ending = json!({"every": "1m", "starts_at": 600, "ends_at": 720, "misfire": "all"});
        let found = plan(ending, 600, 5_000);
        assert_eq!(found.run, [600, 660, 720]);
        assert_eq!(found.next, None);
    }

    #[test]
    fn jitter_is_stable_and_bounded() {
        let mut seen = std::collections::BTreeSet::new();
        for due in 0..200 {
            let id = OccurrenceId {
                schedule: ScheduleId(Uuid::from_u128(7)),
                due_at: due * 60_000,
            };
            let jitter = id.jitter(1_000);
            assert_eq!(jitter, id.jitter(1_000));
            assert!((0..=1_000).contains(&jitter));
            seen.insert(jitter);
            assert_eq!(id.jitter(0), 0);
        }
        assert!(seen.len() > 100, "{seen:?}");
    }

    #[test]
    fn events_name_schedule_and_due_time() {
        let id = OccurrenceId {
            schedule: ScheduleId(Uuid::nil()),
            due_at: 1_796_054_400_000,
        };
        let more = json!({"cron": "0 2 * * *", "timezone": "Europe/Berlin",
            "event": {"input": {"text": "digest"}, "data": {"x": 1}}});
        let event = occurrence_event(&spec(more), id, OccurrenceCause::DueTime);
        let expected = "schedule/00000000-0000-0000-0000-000000000000/2026-11-30T16:00:00Z";
        assert_eq!(event.event_id.as_deref(), Some(expected));
        assert_eq!(event.event_type, "schedule.triggered");
        assert_eq!(event.timezone.as_deref(), Some("Europe/Berlin"));
        assert_eq!(event.data["x"], 1);
        assert_eq!(event.data["schedule"]["name"], "n");
        assert_eq!(event.data["schedule"]["due_at"], 1_796_054_400);
    }
}
