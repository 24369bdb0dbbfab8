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

/// A duration in the largest unit that divides it.
pub fn length(ms: u64) -> String {
    let units = [(24 * 3_600_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    match units.into_iter().find(|(unit, _)| ms >= *unit && ms % unit == 0) {
        Some((unit, name)) => format!("{} {name}", ms / unit),
        None => format!("{ms} ms"),
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
    fn a_time_ago_is_before_now() {
        assert!(parse("-1d").expect("a time") < parse("-1h").expect("a time"));
    }
}
