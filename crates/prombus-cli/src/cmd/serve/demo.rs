//! `--demo`: sample data for a first look at a server. Sample processes send heartbeats, and the process projector turns them
//! into states. Every minute one of the processes stops for 20 s and becomes stale.
//!
//! The demo uses the bus inside the server, not the network, so it needs no token.

use anyhow::Context;
use prombus::consume::projector::process_state::{self, HEARTBEAT_RECEIVED, HeartbeatPayload, PROCESS_STATE};
use prombus::{Bus, PublishError, PublishOptions, TopicOptions, TopicRule};
use std::time::Duration;

/// How often each process sends a heartbeat.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// The process that stops sending heartbeats, from second `SILENT_FROM` of each minute to the minute's end. A process is stale
/// after 15 s without a heartbeat.
const SILENT: &str = "worker";
/// The second of each minute at which [`SILENT`] stops.
const SILENT_FROM: u64 = 40;
/// The invented names and pids of the sample processes.
const SAMPLES: [(&str, u64); 3] = [("web", 101), (SILENT, 102), ("stt", 103)];
/// The host name of the sample processes.
const HOST: &str = "demo";

/// The configured topic rules, followed by those of the demo.
pub fn topic_rules(is_demo: bool, configured: &[TopicRule]) -> Vec<TopicRule> {
    let demo = if is_demo { rules() } else { Vec::new() };
    configured.iter().cloned().chain(demo).collect()
}

/// Heartbeats are kept for an hour; states are compacted to the newest of each process.
fn rules() -> Vec<TopicRule> {
    let hour = TopicOptions { retention_ms: Some(3_600_000), ..TopicOptions::default() };
    let newest = TopicOptions { compaction: Some(true), ..TopicOptions::default() };
    let rules = [(HEARTBEAT_RECEIVED.name(), hour), (PROCESS_STATE.name(), newest)];
    rules.into_iter().filter_map(|(name, options)| TopicRule::new(name, options).ok()).collect()
}

/// Starts the projector and the heartbeats. Both end when the bus is closed.
///
/// # Errors
/// When the states cannot be read.
pub async fn start(bus: &Bus) -> anyhow::Result<()> {
    let projector = process_state::open(bus).await.context("cannot start the demo")?;
    drop(projector.spawn());
    tokio::spawn(beat(bus.clone()));
    Ok(())
}

/// The lines that the demo adds to the banner.
pub fn lines(header: &str, url: &str) -> Vec<String> {
    let (heartbeats, states) = (HEARTBEAT_RECEIVED.name(), PROCESS_STATE.name());
    vec![
        format!("{heartbeats} is projected to {states}; {HOST}:{SILENT}:102 stops for 20 s every minute"),
        format!("curl {header}-N {url}/subscribe/{states}"),
        format!("curl {header}{url}/state/{states}"),
        format!("curl {header}{url}/groups"),
    ]
}

async fn beat(bus: Bus) {
    let mut ticks = tokio::time::interval(BEAT_EVERY);
    let mut usage = OwnUsage::default();
    for second in 0_u64.. {
        ticks.tick().await;
        let mut batch = bus.batch();
        for heartbeat in samples(second).chain([usage.heartbeat()]) {
            let pushed = batch.push(HEARTBEAT_RECEIVED, &heartbeat, &PublishOptions::default());
            debug_assert!(pushed.is_ok(), "{pushed:?}");
        }
        match bus.publish_batch(batch).await {
            Ok(_) => {}
            Err(PublishError::Unavailable(_)) => return,
            Err(error) => tracing::warn!("demo: cannot publish heartbeats: {error}"),
        }
    }
}

/// The heartbeats that the sample processes send in the given second.
fn samples(second: u64) -> impl Iterator<Item = HeartbeatPayload> {
    let is_beating = move |name: &str| name != SILENT || second % 60 < SILENT_FROM;
    SAMPLES.into_iter().filter(move |(name, _)| is_beating(name)).map(move |(name, pid)| {
        // Waves of different lengths, so that charts have something to show.
        let wave = (second as f64 / (pid - 95) as f64).sin();
        heartbeat(name, pid, 25.0 + 20.0 * wave, 200.0 + 30.0 * wave)
    })
}

fn heartbeat(name: &str, pid: u64, cpu_pct: f64, mem_mb: f64) -> HeartbeatPayload {
    let rounded = |number: f64| (number * 10.0).round() / 10.0;
    let (cpu_pct, mem_mb) = (rounded(cpu_pct), rounded(mem_mb));
    HeartbeatPayload { pid, name: name.to_owned(), host: HOST.to_owned(), cpu_pct, mem_mb, sid: None }
}

/// The CPU and memory use of this process, where `/proc` has them.
#[derive(Default)]
struct OwnUsage {
    /// CPU time at the last heartbeat, in clock ticks of 10 ms; `None` before the first.
    ticks: Option<u64>,
}

impl OwnUsage {
    fn heartbeat(&mut self) -> HeartbeatPayload {
        let ticks = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| ticks_of(&stat));
        let used = ticks.zip(self.ticks).map_or(0, |(now, before)| now.saturating_sub(before));
        self.ticks = ticks;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: f64 = line.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0.0);
        heartbeat("prombus", u64::from(std::process::id()), used as f64, kib * 1_024.0 / 1e6)
    }
}

/// User plus system time from `/proc/self/stat`, in clock ticks. Splits at the last `)` because the program name before it may
/// contain any character.
fn ticks_of(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_silent_for_20_seconds_of_a_minute() {
        let beats =
            |name: &str| (0..120).filter(|second| samples(*second).any(|beat| beat.name == name)).count();
        assert_eq!((beats("web"), beats(SILENT), beats("stt")), (120, 80, 120));
    }

    #[test]
    fn own_usage_is_read_from_the_system() {
        assert_eq!(ticks_of("1 (a) b) c) S 2 3 4 5 6 7 8 9 10 11 120 34 0"), Some(154));
        if cfg!(target_os = "linux") {
            let mut usage = OwnUsage::default();
            assert!(usage.heartbeat().mem_mb > 1.0);
            assert!(usage.ticks.is_some());
        }
    }
}
