//! Due times: cron expressions on the wall clock of a time zone, and intervals.
//!
//! A clock that goes forward skips wall times: they are due at the end of the gap, once. A clock that goes back repeats
//! wall times: they are due at the first of both.

use chrono::{DateTime, LocalResult, NaiveDateTime, TimeDelta, TimeZone as _, Timelike as _};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use protocol::admin::Fault;
use protocol::schedule::ScheduleSpec;

const DAY: i64 = 86_400;
/// Maximum interval.
const MAX_EVERY: i64 = 366 * DAY;
const MAX_JITTER: i64 = DAY;
const CRON_BYTES: usize = 256;
/// Latest due time: the year 2200. No search goes further.
const LATEST: i64 = 7_258_118_400;
/// Maximum matches that one search passes: those of a repeated day, by minutes.
const MAX_STEPS: usize = 100_000;
/// Longest gap of a clock: a calendar day, which islands at the date line have skipped.
const MAX_GAP_MINUTES: i64 = 25 * 60;

/// Due times of a schedule.
#[derive(Clone, Debug)]
pub struct Recurrence {
    rule: Rule,
    first: i64,
    last: i64,
}

#[derive(Clone, Debug)]
enum Rule {
    Cron { cron: Box<Cron>, zone: Tz },
    Every { anchor: i64, seconds: i64 },
}

impl Recurrence {
    /// Reads the recurrence of a schedule. An interval without `starts_at` counts from `created_at`, in epoch seconds.
    pub fn of(spec: &ScheduleSpec, created_at: i64) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut fault = |pointer: &str, message: String| faults.push(Fault::new(pointer, message));
        for (pointer, time) in [("/starts_at", spec.starts_at), ("/ends_at", spec.ends_at)] {
            if time.is_some_and(|time| !(0..=LATEST).contains(&time)) {
                let message = "must be a time in epoch seconds, before the year 2200";
                fault(pointer, message.to_owned());
            }
        }
        let zone = spec.timezone.as_deref().unwrap_or("UTC").parse::<Tz>();
        if zone.is_err() {
            let message = "must be an IANA time zone, such as Europe/Berlin";
            fault("/timezone", message.to_owned());
        }
        let rule = match (&spec.cron, &spec.every) {
            (Some(cron), None) => match parse_cron(cron) {
                Ok(cron) => zone.ok().map(|zone| Rule::Cron {
                    cron: Box::new(cron),
                    zone,
                }),
                Err(message) => {
                    fault("/cron", message);
                    None
                }
            },
            (None, Some(every)) => {
                let seconds = parse_seconds(every, MAX_EVERY);
                if seconds.is_none() {
                    let message = "must be 1 second to 366 days, such as 90s, 15m, 6h or 1d";
                    fault("/every", message.to_owned());
                }
                seconds.map(|seconds| Rule::Every {
                    anchor: spec.starts_at.unwrap_or(created_at),
                    seconds,
                })
            }
            (None, None) => {
                let message = "is required without `every`";
                fault("/cron", message.to_owned());
                None
            }
            (Some(_), Some(_)) => {
                fault("/every", "must be absent when `cron` is set".to_owned());
                None
            }
        };
        let Some(rule) = rule.filter(|_| faults.is_empty()) else {
            return Err(faults);
        };
        Ok(Self {
            first: match (&rule, spec.starts_at) {
                (_, Some(starts_at)) => starts_at,
                // The creation is not due.
                (Rule::Every { anchor, .. }, None) => anchor + 1,
                (Rule::Cron { .. }, None) => 0,
            },
            last: spec.ends_at.unwrap_or(LATEST),
            rule,
        })
    }

    /// Returns the first due time after this one, in epoch seconds.
    pub fn next_after(&self, time: i64) -> Option<i64> {
        let time = time.max(self.first - 1);
        let next = match &self.rule {
            Rule::Every { anchor, seconds } => {
                let past = (time - anchor).div_euclid(*seconds);
                anchor.checked_add((past + 1).checked_mul(*seconds)?)?
            }
            Rule::Cron { cron, zone } => next_by_cron(cron, *zone, time)?,
        };
        (next <= self.last.min(LATEST)).then_some(next)
    }

    /// Returns the last due time until this one, in epoch seconds.
    pub fn latest_until(&self, time: i64) -> Option<i64> {
        let time = time.min(self.last);
        let latest = match &self.rule {
            Rule::Every { anchor, seconds } => {
                anchor + (time - anchor).div_euclid(*seconds) * seconds
            }
            Rule::Cron { cron, zone } => latest_by_cron(cron, *zone, time)?,
        };
        (latest >= self.first).then_some(latest)
    }

    /// Returns the next due times after this one, at most `limit`.
    pub fn upcoming(&self, time: i64, limit: usize) -> Vec<i64> {
        let next = std::iter::successors(self.next_after(time), |due| self.next_after(*due));
        next.take(limit).collect()
    }
}

fn parse_cron(text: &str) -> Result<Cron, String> {
    if text.len() > CRON_BYTES {
        return Err(format!("must be at most {CRON_BYTES} bytes"));
    }
    let parser = CronParser::builder()
        .seconds(Seconds::Optional)
        .year(Year::Disallowed)
        .build();
    let cron = parser.parse(text).map_err(|error| {
        format!(
            "must have five fields (minute, hour, day, month, weekday), or six with seconds first: {error}"
        )
    })?;
    // A date that never comes, such as 30 February.
    if next_by_cron(&cron, Tz::UTC, 0).is_none() {
        return Err("matches no time".to_owned());
    }
    Ok(cron)
}

/// Parses a number with a unit. `None`: another text, 0, or more than `max` seconds.
fn parse_seconds(text: &str, max: i64) -> Option<i64> {
    let (at, unit) = text.char_indices().next_back()?;
    let unit = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => DAY,
        'w' => 7 * DAY,
        _ => return None,
    };
    let number = &text[..at];
    // `parse` accepts a sign.
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = number.parse::<i64>().ok()?.checked_mul(unit)?;
    (is_number && (1..=max).contains(&seconds)).then_some(seconds)
}

/// Maximum delay of an occurrence, in milliseconds.
pub(super) fn jitter_ms(spec: &ScheduleSpec) -> Result<i64, &'static str> {
    let Some(jitter) = &spec.jitter else {
        return Ok(0);
    };
    let seconds = parse_seconds(jitter, MAX_JITTER);
    let message = "must be 1 second to 1 day, such as 30s or 5m";
    seconds.map(|seconds| seconds * 1000).ok_or(message)
}

/// The time at which a wall time of the zone is due.
fn instant_of(zone: Tz, wall: NaiveDateTime) -> Option<i64> {
    if let LocalResult::Single(time) | LocalResult::Ambiguous(time, _) =
        zone.from_local_datetime(&wall)
    {
        return Some(time.timestamp());
    }
    // Clocks change at full minutes, so the first existing minute ends the gap.
    let minute = wall.with_second(0)?;
    let found = (1..=MAX_GAP_MINUTES).find_map(|minutes| {
        let later = minute + TimeDelta::minutes(minutes);
        zone.from_local_datetime(&later).earliest()
    });
    found.map(|time| time.timestamp())
}

fn wall_of(zone: Tz, time: i64) -> Option<NaiveDateTime> {
    let time = DateTime::from_timestamp(time, 0)?;
    Some(time.with_timezone(&zone).naive_local())
}

fn next_by_cron(cron: &Cron, zone: Tz, time: i64) -> Option<i64> {
    let latest = wall_of(zone, LATEST)?;
    let mut wall = wall_of(zone, time)?;
    for _ in 0..MAX_STEPS {
        wall = cron.find_next_occurrence(&wall, false).ok()?;
        if wall > latest {
            return None;
        }
        let due = instant_of(zone, wall)?;
        if due > time {
            return Some(due);
        }
        // In a repeated hour, matches before its end are past: the rest of the minute can be left out.
        wall = wall.with_second(59)?;
    }
    None
}

fn latest_by_cron(cron: &Cron, zone: Tz, time: i64) -> Option<i64> {
    let wall = wall_of(zone, time)?;
    // In a repeated hour, matches until its end are past already: the search begins there.
    let repeated = time - instant_of(zone, wall)?;
    let mut wall = wall + TimeDelta::seconds(repeated);
    let mut is_inclusive = true;
    for _ in 0..MAX_STEPS {
        wall = cron.find_previous_occurrence(&wall, is_inclusive).ok()?;
        let due = instant_of(zone, wall)?;
        if due <= time {
            return Some(due);
        }
        is_inclusive = false;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Zones with gaps and repeats of an hour, of half an hour, at midnight, on both halves of the year, and without.
    const ZONES: [&str; 6] = [
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Asia/Beirut",
        "America/Santiago",
        "Asia/Shanghai",
    ];
    /// 1 January 2026, and the days around it, in UTC.
    const YEAR: std::ops::Range<i64> = 1_767_225_600..1_798_761_600;

    fn recurrence(cron: &str, zone: &str) -> Recurrence {
        let spec = json!({"name": "n", "agent": "a", "cron": cron, "timezone": zone});
        Recurrence::of(&serde_json::from_value(spec).unwrap(), 0).unwrap()
    }

    /// The first time of each wall minute of the year.
    fn first_times(zone: Tz) -> BTreeMap<NaiveDateTime, i64> {
        let mut first = BTreeMap::new();
        for minute in (YEAR.start - 3 * DAY..YEAR.end + 3 * DAY).step_by(60) {
            first
                .entry(wall_of(zone, minute).unwrap())
                .or_insert(minute);
        }
        first
    }

    /// All due times of the year, by a second way: each matching wall minute, or the next one that exists.
    fn expected(
        first: &BTreeMap<NaiveDateTime, i64>,
        matches: fn(NaiveDateTime) -> bool,
    ) -> Vec<i64> {
        let (begin, _) = first.first_key_value().unwrap();
        let (end, _) = first.last_key_value().unwrap();
        let mut due = BTreeSet::new();
        let mut wall = *begin;
        while wall < *end {
            if matches(wall) {
                let (_, time) = first.range(wall..).next().unwrap();
                due.insert(*time);
            }
            wall += TimeDelta::minutes(1);
        }
        due.range(YEAR).copied().collect()
    }

    #[test]
    fn year_of_due_times_matches_clocks_of_six_zones() {
        for name in ZONES {
            let first = first_times(name.parse().unwrap());
            for (cron, matches) in [
                (
                    "30 2 * * *",
                    (|wall| (wall.hour(), wall.minute()) == (2, 30)) as fn(NaiveDateTime) -> bool,
                ),
                ("0 0 * * *", |wall| (wall.hour(), wall.minute()) == (0, 0)),
                ("15 1 * * *", |wall| (wall.hour(), wall.minute()) == (1, 15)),
                ("*/20 * * * *", |wall| wall.minute() % 20 == 0),
            ] {
                let recurrence = recurrence(cron, name);
                let mut forward = Vec::new();
                let mut time = YEAR.start - 1;
                while let Some(due) = recurrence.next_after(time).filter(|due| *due < YEAR.end) {
                    assert!(due > time, "{name} {cron}");
                    forward.push(due);
                    time = due;
                }
                let expected = expected(&first, matches);
                assert_eq!(forward, expected, "{name} {cron}");
                let mut backward = Vec::new();
                let mut time = YEAR.end - 1;
                while let Some(due) = recurrence
                    .latest_until(time)
                    .filter(|due| *due >= YEAR.start)
                {
                    assert!(due <= time, "{name} {cron}");
                    backward.push(due);
                    time = due - 1;
                }
                backward.reverse();
                assert_eq!(backward, expected, "{name} {cron}");
            }
        }
    }

    /// A due time in UTC.
    fn utc(text: &str) -> i64 {
        DateTime::parse_from_rfc3339(text).unwrap().timestamp()
    }

    #[test]
    fn skipped_time_is_due_at_the_end_of_the_gap() {
        // Clocks of Berlin go from 02:00 to 03:00 at 01:00 UTC on 29 March 2026.
        let nightly = recurrence("30 2 * * *", "Europe/Berlin");
        let before = utc("2026-03-28T12:00:00Z");
        let due = nightly.upcoming(before, 2);
        assert_eq!(
            due,
            [utc("2026-03-29T01:00:00Z"), utc("2026-03-30T00:30:00Z")]
        );
        // All times of the gap are one due time.
        let often = recurrence("*/10 2 * * *", "Europe/Berlin");
        assert_eq!(
            often.upcoming(before, 2),
            [utc("2026-03-29T01:00:00Z"), utc("2026-03-30T00:00:00Z")]
        );
    }

    #[test]
    fn repeated_time_is_due_once() {
        // Clocks of Berlin go from 03:00 back to 02:00 at 01:00 UTC on 25 October 2026.
        let nightly = recurrence("30 2 * * *", "Europe/Berlin");
        let first = utc("2026-10-25T00:30:00Z");
        let next = utc("2026-10-26T01:30:00Z");
        assert_eq!(nightly.next_after(first - 1), Some(first));
        for minute in 0..120 {
            let time = first + minute * 60;
            assert_eq!(nightly.next_after(time), Some(next));
            assert_eq!(nightly.latest_until(time), Some(first));
        }
    }

    /// A field of an expression, often a valid one.
    fn field() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => "[*]|[*]/[1-9]|[0-9]{1,2}|[0-9]-[0-9]{1,2}|[0-9],[0-9]{1,2}",
            1 => "L|[0-9]{1,2}W|LW|[A-Z]{3}(#[0-9])?|[?]|[0-9*/,#WL-]{0,6}",
        ]
    }

    proptest! {
        #[test]
        fn both_directions_agree_for_any_expression(
            fields in proptest::collection::vec(field(), 4..8),
            zone in proptest::sample::select(ZONES.to_vec()),
            time in 0..LATEST,
        ) {
            let spec = json!({"name": "n", "agent": "a", "cron": fields.join(" "), "timezone": zone});
            let read = Recurrence::of(&serde_json::from_value(spec).unwrap(), 0);
            if let Ok(recurrence) = read
                && let Some(next) = recurrence.next_after(time)
            {
                prop_assert!(next > time);
                prop_assert_eq!(recurrence.latest_until(next), Some(next));
                let before = recurrence.latest_until(next - 1);
                prop_assert!(before.is_none_or(|before| before <= time));
            }
        }
    }

    #[test]
    fn intervals_count_from_their_start() {
        let every = |more: serde_json::Value| {
            let mut spec = json!({"name": "n", "agent": "a", "every": "90m"});
            spec.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            Recurrence::of(&serde_json::from_value(spec).unwrap(), 1_000).unwrap()
        };
        let plain = every(json!({}));
        assert_eq!(plain.upcoming(0, 2), [6_400, 11_800]);
        assert_eq!(plain.next_after(6_399), Some(6_400));
        assert_eq!(plain.latest_until(6_399), None);
        let bounded = every(json!({"starts_at": 2_000, "ends_at": 7_400}));
        assert_eq!(bounded.upcoming(0, 5), [2_000, 7_400]);
        assert_eq!(bounded.latest_until(50_000), Some(7_400));
    }
}
