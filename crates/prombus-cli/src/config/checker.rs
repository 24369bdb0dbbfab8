//! Checks values one by one and gathers what is wrong, so that a user sees all of it at once.

use super::layer::Problem;
use prombus_protocol::Pattern;
use prombus_server::Rate;
use std::error::Error;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// Longer than any of the times here makes sense; far from where clocks overflow.
const DURATION_MS_MAX: u64 = 24 * 3_600_000;

/// More than any machine sends.
const PER_SECOND_MAX: f64 = 1e9;

/// Gathers problems.
#[derive(Debug, Default)]
pub struct Checker {
    /// What was found.
    pub problems: Vec<Problem>,
}

impl Checker {
    /// Notes that the value at a path is bad.
    pub fn refuse(&mut self, path: impl Into<String>, why: impl Into<String>) {
        self.problems.push(Problem::new(path, why));
    }

    /// Sets a number if it is given and in its range.
    pub fn number<T: TryFrom<u64>>(
        &mut self,
        path: &str,
        value: Option<u64>,
        range: RangeInclusive<u64>,
        into: &mut T,
    ) {
        let Some(value) = value else { return };
        match T::try_from(value) {
            Ok(number) if range.contains(&value) => *into = number,
            _ => {
                let (least, most) = (range.start(), range.end());
                let allowed = match *most {
                    u64::MAX => format!("at least {least} is allowed"),
                    _ => format!("{least} to {most} are allowed"),
                };
                self.refuse(path, format!("{value}: {allowed}"));
            }
        }
    }

    /// Sets a time if it is given and above zero.
    pub fn duration(&mut self, path: &str, value_ms: Option<u64>, into: &mut Duration) {
        let mut ms = 0_u64;
        self.number(path, value_ms, 1..=DURATION_MS_MAX, &mut ms);
        if ms > 0 {
            *into = Duration::from_millis(ms);
        }
    }

    /// A rate, if one is given. A burst that is not given is what comes in a second.
    pub fn rate(&mut self, rate: (&str, Option<f64>), burst: (&str, Option<f64>)) -> Option<Rate> {
        let (rate_path, per_second) = rate;
        let (burst_path, given_burst) = burst;
        let Some(per_second) = per_second else {
            if given_burst.is_some() {
                let rate_key = rate_path.rsplit('.').next().unwrap_or(rate_path);
                self.refuse(burst_path, format!("means nothing without {rate_key}"));
            }
            return None;
        };
        // Not a number is in no range.
        if !(f64::MIN_POSITIVE..=PER_SECOND_MAX).contains(&per_second) {
            self.refuse(rate_path, format!("{per_second}: a rate is above 0, and at most {PER_SECOND_MAX}"));
            return None;
        }
        let burst = given_burst.unwrap_or_else(|| per_second.max(1.0));
        if !(1.0..=PER_SECOND_MAX).contains(&burst) {
            self.refuse(burst_path, format!("{burst}: at least 1 is allowed, or nothing would ever pass"));
            return None;
        }
        Some(Rate { per_second, burst })
    }

    /// Parses a text; the error is the parser's.
    pub fn parsed<T: FromStr<Err: Error + Send + Sync + 'static>>(
        &mut self,
        path: &str,
        text: &str,
    ) -> Option<T> {
        let parsed = text.parse().map_err(anyhow::Error::from);
        parsed.map_err(|error| self.refuse(path, crate::one_line(&error))).ok()
    }

    /// Parses a pattern over topics.
    pub fn pattern(&mut self, path: &str, text: &str) -> Option<Pattern> {
        Pattern::new(text).map_err(|error| self.refuse(path, error.to_string())).ok()
    }

    /// A text that must be there.
    pub fn required<'a>(&mut self, table: &str, key: &str, value: Option<&'a String>) -> Option<&'a str> {
        match value.map(|text| text.trim()) {
            None => self.refuse(table, format!("{key} is missing")),
            Some("") => self.refuse(format!("{table}.{key}"), "is empty"),
            Some(text) => return Some(text),
        }
        None
    }

    /// Makes sure that a file can be read.
    pub fn file(&mut self, path: &str, file: &str) {
        if Path::new(file).is_dir() {
            self.refuse(path, format!("{file} is a folder, not a file"));
        } else if let Err(error) = std::fs::File::open(file) {
            self.refuse(path, format!("cannot read {file}: {}", reason(&error)));
        }
    }
}

/// What the system said, without its number.
pub fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_above_zero_and_bursts_let_something_pass() {
        let mut checker = Checker::default();
        let mut rate = |rate, burst| checker.rate(("a.rate", rate), ("a.burst", burst));
        assert_eq!(rate(None, None), None);
        assert_eq!(rate(Some(200.0), None), Some(Rate { per_second: 200.0, burst: 200.0 }));
        assert_eq!(rate(Some(0.5), None), Some(Rate { per_second: 0.5, burst: 1.0 }));
        for (per_second, burst) in
            [(0.0, None), (-1.0, None), (f64::NAN, None), (f64::INFINITY, None), (1.0, Some(0.5))]
        {
            assert_eq!(rate(Some(per_second), burst), None);
        }
        assert_eq!(rate(None, Some(5.0)), None);
        assert_eq!(checker.problems.len(), 6);
        assert_eq!(checker.problems[5], Problem::new("a.burst", "means nothing without rate"));
    }

    #[test]
    fn a_number_out_of_range_leaves_the_default() {
        let mut checker = Checker::default();
        let mut value = 7_usize;
        checker.number("a", Some(0), 1..=u64::MAX, &mut value);
        checker.number("a", Some(11), 1..=10, &mut value);
        assert_eq!(value, 7);
        assert_eq!(checker.problems[0].why, "0: at least 1 is allowed");
        assert_eq!(checker.problems[1].why, "11: 1 to 10 are allowed");
        checker.number("a", Some(3), 1..=10, &mut value);
        assert_eq!(value, 3);
    }
}
