//! Dates in the form that models read.

const SECONDS_OF_DAY: i64 = 24 * 60 * 60;
const WEEKDAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// UTC day of an epoch second: `Thursday, 1970-01-01`.
pub(crate) fn day(seconds: i64) -> String {
    // Euclidean: seconds before 1970 belong to the day that contains them.
    let days = seconds.div_euclid(SECONDS_OF_DAY);
    let weekday = usize::try_from(days.rem_euclid(7)).unwrap_or_default();
    let (year, month, day) = civil(days);
    format!("{}, {year:04}-{month:02}-{day:02}", WEEKDAYS[weekday])
}

/// UTC minute of an epoch second: `1970-01-01 00:00`.
pub(crate) fn minute(seconds: i64) -> String {
    let (year, month, day) = civil(seconds.div_euclid(SECONDS_OF_DAY));
    let minutes = seconds.rem_euclid(SECONDS_OF_DAY) / 60;
    let (hour, minute) = (minutes / 60, minutes % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// Year, month and day from days since 1970-01-01: the inverse of Howard Hinnant's "days from civil".
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_days_and_minutes_in_utc() {
        for (seconds, expected) in [
            (0, "Thursday, 1970-01-01"),
            (86_399, "Thursday, 1970-01-01"),
            (951_782_400, "Tuesday, 2000-02-29"),
            (1_795_737_600, "Friday, 2026-11-27"),
            (4_107_542_400, "Monday, 2100-03-01"),
            (-1, "Wednesday, 1969-12-31"),
        ] {
            assert_eq!(day(seconds), expected, "{seconds}");
        }
        assert_eq!(minute(951_782_400 + 13 * 3_600 + 299), "2000-02-29 13:04");
    }
}
