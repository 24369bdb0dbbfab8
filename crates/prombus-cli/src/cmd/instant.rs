//! Times as people write them: UTC, to the millisecond, or milliseconds since 1970.

const DAY_MS: i64 = 86_400_000;

/// Reads milliseconds since 1970, or a date like 2026-05-01 or 2026-05-01T12:30:00.250Z.
///
/// # Errors
/// Says what is wanted.
pub fn parse(text: &str) -> Result<i64, String> {
    let wanted = || "milliseconds since 1970, or a time like 2026-05-01T12:00:00Z, is wanted".to_owned();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| wanted());
    }
    parse_date(text).ok_or_else(wanted)
}

fn parse_date(text: &str) -> Option<i64> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time.strip_suffix('Z').unwrap_or(time)),
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
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut parts = time.split(':').filter(|part| !part.is_empty());
    let mut part = |below: i64| match parts.next() {
        None => Some(0),
        Some(text) => number(text, 2).filter(|value| *value < below),
    };
    let (hours, minutes, seconds) = (part(24)?, part(60)?, part(60)?);
    if parts.next().is_some() || fraction.len() > 9 || fraction.is_empty() {
        return None;
    }
    let ms = number(&format!("{fraction:0<3}")[..3], 3)?;
    Some(days * DAY_MS + ((hours * 60 + minutes) * 60 + seconds) * 1000 + ms)
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

/// A time as 2026-05-01T12:00:00.000Z.
pub fn text(ts_ms: i64) -> String {
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

/// A length of time in its largest whole unit.
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
    fn times_read_back_as_written() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_741_964_400_123, "2025-03-14T15:00:00.123Z"),
            (1_735_689_599_999, "2024-12-31T23:59:59.999Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(text(ms), expected);
            assert_eq!(parse(expected), Ok(ms));
        }
        for day in (0..40_000).step_by(13) {
            assert_eq!(parse(&text(day * DAY_MS + 5)), Ok(day * DAY_MS + 5));
        }
    }

    #[test]
    fn parts_may_be_left_out_and_nonsense_is_refused() {
        assert_eq!(parse("1970-01-02"), Ok(DAY_MS));
        assert_eq!(parse("1970-01-01T01:02Z"), Ok(3_720_000));
        assert_eq!(parse("1741964400123"), Ok(1_741_964_400_123));
        for text in
            ["", "2025-02-29", "2025-13-01", "2025-01-00", "2025-01-01T24:00", "yesterday", "2025-1-1"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_have_their_largest_whole_unit() {
        assert_eq!([length(86_400_000), length(5_400_000), length(1_500)], ["1 d", "90 min", "1500 ms"]);
    }
}
