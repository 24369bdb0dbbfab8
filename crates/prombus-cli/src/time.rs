//! Parses times on the command line, and formats durations.

pub use prombus_protocol::instant_text as text;
use prombus_protocol::{InstantError, parse_instant};
use std::time::{SystemTime, UNIX_EPOCH};

/// Parses the time that an argument gives.
///
/// # Errors
/// Describes the accepted formats.
pub fn parse(text: &str) -> Result<i64, InstantError> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    parse_instant(text, i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Parses the time since which events are wanted: as [`parse`], and a duration before now may have no minus sign (`1d`).
///
/// # Errors
/// Describes the accepted formats.
pub fn parse_since(text: &str) -> Result<i64, InstantError> {
    parse(text).or_else(|error| parse(&format!("-{text}")).map_err(|_| error))
}

/// A duration in the largest unit that divides it.
pub fn length(ms: u64) -> String {
    let units = [(24 * 3_600_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    match units.into_iter().find(|(unit, _)| ms >= *unit && ms % unit == 0) {
        Some((unit, name)) => format!("{} {name}", ms / unit),
        None => format!("{ms} ms"),
    }
}

/// How long something lasts, in one unit and about two digits.
pub fn rough(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 => format!("{:.1} s", ms as f64 / 1_000.0),
        10_000..120_000 => format!("{} s", ms / 1_000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_shown_in_the_largest_unit_that_divides_it() {
        assert_eq!([length(86_400_000), length(5_400_000), length(1_500)], ["1 d", "90 min", "1500 ms"]);
    }

    #[test]
    fn a_rough_duration_has_one_unit() {
        let texts = [999, 1_500, 61_000, 300_000, 86_400_000, 864_000_000].map(rough);
        assert_eq!(texts, ["999 ms", "1.5 s", "61 s", "5 min", "24 h", "10 d"]);
    }

    #[test]
    fn a_time_ago_is_before_now() {
        assert!(parse_since("1d").expect("a time") < parse_since("-1h").expect("a time"));
        assert_eq!(parse_since("1970-01-02"), Ok(86_400_000));
        assert!(parse_since("soon").is_err() && parse_since("--1d").is_err());
        assert!(parse("-1d").expect("a time") < parse("-1h").expect("a time"));
    }
}
