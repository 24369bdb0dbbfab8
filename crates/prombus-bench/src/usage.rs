//! CPU time and memory of a process, from `/proc`.

use anyhow::Context;
use std::time::Duration;

/// The resources that a process uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU time of all its threads so far, user and system.
    pub cpu: Duration,
    /// Resident memory now.
    pub resident_bytes: u64,
}

impl Usage {
    /// The usage of this process.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn of_self() -> anyhow::Result<Self> {
        Self::of(std::process::id())
    }

    /// The usage of a process.
    ///
    /// # Errors
    /// If the process does not exist.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        Self::parse(&stat).with_context(|| format!("{path} is not as expected"))
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name in parentheses may contain any character, so the fields begin after the last parenthesis.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let ticks = number(11)? + number(12)?;
        let pages = number(21)?;
        let per_second = rustix::param::clock_ticks_per_second();
        Some(Self {
            cpu: Duration::from_secs_f64(ticks as f64 / per_second as f64),
            resident_bytes: pages * rustix::param::page_size() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_parentheses_is_parsed() {
        let stat = "12 (a) b) S 1 1 1 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 100 1000 7 9";
        let usage = Usage::parse(stat).expect("it is a stat line");
        assert_eq!(
            usage.cpu,
            Duration::from_secs_f64(300.0 / rustix::param::clock_ticks_per_second() as f64)
        );
        assert_eq!(usage.resident_bytes, 7 * rustix::param::page_size() as u64);
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(Usage::of_self().expect("it runs").resident_bytes > 0);
    }
}
