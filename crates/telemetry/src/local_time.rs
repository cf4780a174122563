//! The time of day in the time zone of this machine, for persons at a terminal.

use std::fmt;

use chrono::{DateTime, Local, TimeZone};
use clock::Clock;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Formats epoch milliseconds as `12:03:11` in local time.
pub fn time_of_day(at_ms: i64) -> String {
    in_zone(at_ms, &Local)
}

fn in_zone<Z: TimeZone<Offset: fmt::Display>>(at_ms: i64, zone: &Z) -> String {
    let at = DateTime::from_timestamp_millis(at_ms).unwrap_or_default();
    at.with_timezone(zone).format("%H:%M:%S").to_string()
}

pub(super) struct TimeOfDay;

impl FormatTime for TimeOfDay {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        writer.write_str(&time_of_day(Clock::system().now_ms()))
    }
}

#[cfg(test)]
mod tests {
    use chrono::FixedOffset;

    use super::*;

    #[test]
    fn formats_time_in_its_zone() {
        let zone = FixedOffset::east_opt(8 * 3600).unwrap();
        assert_eq!(in_zone(1_795_353_000_000, &zone), "21:10:00");
    }
}
