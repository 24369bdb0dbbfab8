//! Parses times as people write them: milliseconds since 1970, ISO 8601, or a duration before now.

use thiserror::Error;

const DAY_MS: i64 = 86_400_000;

/// A text that is not a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a time is milliseconds since 1970, ISO 8601 like 2026-05-01T12:00:00Z, or how long ago, like -90m or -1d"
)]
pub struct InstantError;

/// Parses a time: milliseconds since 1970; a date like 2026-05-01 or 2026-05-01T12:30:00.250Z, optionally with an offset like
/// +02:00; or a duration before `now_ms`: -500ms, -30s, -90m, -2h, -1d, -1w.
///
/// ```
/// use prombus_protocol::parse_instant;
///
/// assert_eq!(parse_instant("-1d", 100_000_000), Ok(13_600_000));
/// assert_eq!(parse_instant("1970-01-01T01:00:00+01:00", 0), Ok(0));
/// ```
///
/// # Errors
/// If the text has none of these forms, or a date is before 1970. A duration that reaches back before 1970 gives 0.
pub fn parse_instant(text: &str, now_ms: i64) -> Result<i64, InstantError> {
    if is_digits(text) {
        return text.parse().map_err(|_| InstantError);
    }
    let ago = text.strip_prefix('-').filter(|ago| ago.starts_with(|first: char| first.is_ascii_digit()));
    let ms = match ago {
        Some(ago) => now_ms.checked_sub(parse_length(ago).ok_or(InstantError)?).map(|ms| ms.max(0)),
        None => parse_date(text),
    };
    ms.filter(|ms| *ms >= 0).ok_or(InstantError)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse_length(text: &str) -> Option<i64> {
    let unit_at = text.find(|unit: char| !unit.is_ascii_digit())?;
    let (count, unit) = text.split_at(unit_at);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => DAY_MS,
        "w" => 7 * DAY_MS,
        _ => return None,
    };
    count.parse::<i64>().ok()?.checked_mul(unit_ms)
}

fn parse_date(text: &str) -> Option<i64> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time),
        None => (text.strip_suffix('Z').unwrap_or(text), ""),
    };
    let mut parts = date.split('-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    if parts.next().is_some() || !(1970..=9999).contains(&year) || !(1..=12).contains(&month) {
        return None;
    }
    let days = days_before(year, month) + day - 1;
    let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    if day < 1 || days >= days_before(next_year, next_month) {
        return None;
    }
    let (time, offset_ms) = split_offset(time)?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut parts = time.split(':').filter(|part| !part.is_empty());
    let mut part = |below: i64| match parts.next() {
        None => Some(0),
        Some(text) => number(text, 2).filter(|value| *value < below),
    };
    let (hours, minutes, seconds) = (part(24)?, part(60)?, part(60)?);
    if parts.next().is_some() || fraction.len() > 9 || !is_digits(fraction) {
        return None;
    }
    let ms = number(&format!("{fraction:0<3}")[..3], 3)?;
    Some(days * DAY_MS + ((hours * 60 + minutes) * 60 + seconds) * 1000 + ms - offset_ms)
}

/// Takes `Z`, or an offset like +02:00, +0200 or -05, from the end of a time. A space counts as a plus, because an unencoded plus in
/// a URL query is decoded to a space.
fn split_offset(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix('Z') {
        return Some((time, 0));
    }
    let Some(at) = time.find(['+', '-', ' ']) else { return Some((time, 0)) };
    let digits = time[at + 1..].replacen(':', "", 1);
    if !is_digits(&digits) {
        return None;
    }
    let (hours, minutes) = match digits.len() {
        2 => (number(&digits, 2)?, 0),
        4 => (number(&digits[..2], 2)?, number(&digits[2..], 2)?),
        _ => return None,
    };
    if at == 0 || hours > 23 || minutes > 59 {
        return None;
    }
    let offset_ms = (hours * 60 + minutes) * 60_000;
    Some((&time[..at], if time[at..].starts_with('-') { -offset_ms } else { offset_ms }))
}

fn number(text: &str, digits: usize) -> Option<i64> {
    let is_good = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_good.then(|| text.parse().ok()).flatten()
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days from 1970 to the first of a month.
fn days_before(year: i64, month: i64) -> i64 {
    const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leaps = |year: i64| year / 4 - year / 100 + year / 400;
    let leap_days = leaps(year - 1) - leaps(1969) + i64::from(month > 2 && is_leap(year));
    let months = usize::try_from(month - 1).ok().and_then(|month| BEFORE.get(month)).copied();
    (year - 1970) * 365 + leap_days + months.unwrap_or(0)
}

/// Formats a time as 2026-05-01T12:00:00.000Z.
pub fn instant_text(ts_ms: i64) -> String {
    let (days, ms) = (ts_ms.div_euclid(DAY_MS), ts_ms.rem_euclid(DAY_MS));
    let mut year = 1970 + days.div_euclid(366);
    while days >= days_before(year + 1, 1) {
        year += 1;
    }
    let mut month = 1;
    while month < 12 && days >= days_before(year, month + 1) {
        month += 1;
    }
    let day = days - days_before(year, month) + 1;
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back_as_written() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_741_964_400_123, "2025-03-14T15:00:00.123Z"),
            (1_735_689_599_999, "2024-12-31T23:59:59.999Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(instant_text(ms), expected);
            assert_eq!(parse_instant(expected, 0), Ok(ms));
        }
        for day in (0..40_000).step_by(13) {
            assert_eq!(parse_instant(&instant_text(day * DAY_MS + 5), 0), Ok(day * DAY_MS + 5));
        }
    }

    #[test]
    fn parts_may_be_left_out_and_nonsense_is_refused() {
        let parse = |text| parse_instant(text, 0);
        assert_eq!(parse("1970-01-02"), Ok(DAY_MS));
        assert_eq!(parse("1970-01-01T01:02Z"), Ok(3_720_000));
        assert_eq!(parse("1741964400123"), Ok(1_741_964_400_123));
        for text in [
            "",
            "2025-02-29",
            "2025-13-01",
            "2025-01-00",
            "2025-01-01T24:00",
            "yesterday",
            "2025-1-1",
            "1969-12-31",
            "1970-01-01T00:00:00+01:00",
            "2025-01-01T00:00:00+1",
            "2025-01-01T00:00:00+0\u{e9}",
            "2025-01-01T00:00:00.",
            "2025-01-01T00:00:00.\u{e9}",
            "99999999999999999999",
            "\u{661}",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_offset_is_subtracted() {
        let noon = parse_instant("2025-01-01T12:00:00Z", 0);
        for text in [
            "2025-01-01T14:00:00+02:00",
            "2025-01-01T14:00:00+0200",
            "2025-01-01T14:00:00+02",
            "2025-01-01T14:00:00.000 02:00",
            "2025-01-01T07:00:00-05:00",
            "2025-01-01 12:00",
        ] {
            assert_eq!(parse_instant(text, 0), noon, "{text}");
        }
    }

    #[test]
    fn times_ago_count_from_now_and_end_at_1970() {
        let now_ms = 1_700_000_000_000;
        let ago = |text| parse_instant(text, now_ms).map(|ms| now_ms - ms);
        assert_eq!(
            [ago("-500ms"), ago("-30s"), ago("-90m"), ago("-2h"), ago("-1d"), ago("-2w"), ago("-0s")],
            [Ok(500), Ok(30_000), Ok(5_400_000), Ok(7_200_000), Ok(DAY_MS), Ok(14 * DAY_MS), Ok(0)]
        );
        assert_eq!(parse_instant("-99999d", now_ms), Ok(0));
        for text in
            ["-", "-1", "-d", "-1y", "-1 d", "--1d", "1d", "-99999999999999999d", "-9999999999999999999s"]
        {
            assert!(parse_instant(text, now_ms).is_err(), "{text}");
        }
    }
}
