//! Parser for durations in arguments.

use std::time::Duration;

/// A duration with its unit: `500ms`, `30s`, `5m`, `2h`, `1d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|unit: char| !unit.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(unit_at);
    let unit_ms = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    };
    let ms = count.parse::<u64>().ok().zip(unit_ms).and_then(|(count, unit_ms)| count.checked_mul(unit_ms));
    let ms = ms.filter(|ms| (1..=365 * 86_400_000).contains(ms));
    ms.map(Duration::from_millis)
        .ok_or_else(|| "expected a duration such as 500ms, 30s, 5m, 2h or 1d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_needs_a_unit() {
        let ms = |text: &str| duration(text).map(|duration| duration.as_millis());
        assert_eq!([ms("500ms"), ms("30s"), ms("2h")], [Ok(500), Ok(30_000), Ok(7_200_000)]);
        assert_eq!([ms("5m"), ms("5min"), ms("1d")], [Ok(300_000), Ok(300_000), Ok(86_400_000)]);
        for text in ["", "30", "s", "0s", "-1s", "1.5s", "1y", "99999999999999999999s", "400d"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
