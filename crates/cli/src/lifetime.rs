//! Times of arguments: a number with a unit.

use std::time::Duration;

/// Parses a time such as `30d`.
pub fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let fault = || "must be a number above 0 with s, m, h, d or w, such as 30d".to_owned();
    let (number, unit) = text
        .char_indices()
        .next_back()
        .map(|(at, unit)| (&text[..at], unit))
        .ok_or_else(fault)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        'w' => 604_800,
        _ => return Err(fault()),
    };
    // `parse` accepts a sign.
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().map_err(|_| fault())?;
    let life = number.checked_mul(seconds).filter(|life| *life > 0);
    life.filter(|_| is_number)
        .map(Duration::from_secs)
        .ok_or_else(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_have_a_number_and_a_unit() {
        for (text, expected) in [
            ("90s", Some(90)),
            ("5m", Some(300)),
            ("12h", Some(43_200)),
            ("30d", Some(2_592_000)),
            ("2w", Some(1_209_600)),
            ("", None),
            ("30", None),
            ("d", None),
            ("0d", None),
            ("-1d", None),
            ("+1d", None),
            ("1.5d", None),
            ("30 d", None),
            ("1y", None),
            ("99999999999999999999d", None),
            ("18446744073709551615w", None),
        ] {
            let found = parse_lifetime(text).ok().map(|life| life.as_secs());
            assert_eq!(found, expected, "{text}");
        }
    }
}
