//! The example projector: folds the heartbeats of processes (`heartbeat.received`) into the state of each process
//! (`process.state`).
//!
//! A process is `alive` if its last heartbeat is at most 15 seconds old, else `stale`. The next heartbeat makes it `alive`
//! again. Because the time of the last heartbeat is part of the state, a process that stopped while no projector ran becomes
//! stale too.

use super::{Projection, Projector, ProjectorError, ProjectorOptions, Rejection, States};
use crate::bus::Bus;
use crate::event::Event;
use serde::{Deserialize, Serialize};
use std::time::Duration;

prombus_protocol::topic! {
    /// Heartbeats of processes.
    pub HEARTBEAT_RECEIVED: HeartbeatPayload = "heartbeat.received";
    /// The state of each process, by key `host:name:pid`.
    pub PROCESS_STATE: ProcessState = "process.state";
}

/// The group that reads the heartbeats.
pub const GROUP: &str = "process-projector";
/// A process whose last heartbeat is older than this is stale.
pub const STALE_MS: i64 = 15_000;
/// How often the projector looks for stale processes.
pub const SCAN_EVERY: Duration = Duration::from_secs(5);

/// A heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatPayload {
    /// The process id on its host.
    pub pid: u64,
    /// The name of the process.
    pub name: String,
    /// The host that it runs on.
    pub host: String,
    /// CPU usage, in percent.
    pub cpu_pct: f64,
    /// Memory usage, in MB.
    pub mem_mb: f64,
    /// The id of its session or boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sid: Option<String>,
}

impl HeartbeatPayload {
    /// The key of the process's state.
    pub fn process_id(&self) -> String {
        format!("{}:{}:{}", self.host, self.name, self.pid)
    }
}

/// Whether a process has sent a recent heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessStatus {
    /// The last heartbeat of the process is recent.
    Alive,
    /// The last heartbeat of the process is older than [`STALE_MS`].
    Stale,
}

/// The state of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessState {
    /// `host:name:pid`, which is also the event's key.
    #[serde(rename = "processId")]
    pub process_id: String,
    /// The name of the process.
    pub name: String,
    /// The host that it runs on.
    pub host: String,
    /// The process id on its host.
    pub pid: u64,
    /// The id of its session or boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sid: Option<String>,
    /// CPU usage at the last heartbeat, in percent.
    pub cpu_pct: f64,
    /// Memory usage at the last heartbeat, in MB.
    pub mem_mb: f64,
    /// The time of its last heartbeat, in milliseconds since 1970.
    pub last_seen_ts: i64,
    /// Whether that heartbeat is recent.
    pub status: ProcessStatus,
}

/// Folds heartbeats into states of processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessProjection;

impl Projection for ProcessProjection {
    type Input = HeartbeatPayload;
    type State = ProcessState;

    fn fold(
        &mut self,
        heartbeat: HeartbeatPayload,
        event: &Event,
        states: &mut States<ProcessState>,
    ) -> Result<(), Rejection> {
        let process_id = heartbeat.process_id();
        if states.get(&process_id).is_some_and(|state| state.last_seen_ts > event.ts()) {
            // A late heartbeat: a newer one was folded already.
            return Ok(());
        }
        let HeartbeatPayload { pid, name, host, cpu_pct, mem_mb, sid } = heartbeat;
        let (last_seen_ts, status) = (event.ts(), ProcessStatus::Alive);
        let state = ProcessState {
            process_id: process_id.clone(),
            name,
            host,
            pid,
            sid,
            cpu_pct,
            mem_mb,
            last_seen_ts,
            status,
        };
        states.set(process_id, state);
        Ok(())
    }

    fn tick(&mut self, now_ms: i64, states: &mut States<ProcessState>) {
        let silent: Vec<ProcessState> = states
            .iter()
            .map(|(_, state)| state)
            .filter(|state| state.status == ProcessStatus::Alive && now_ms - state.last_seen_ts > STALE_MS)
            .cloned()
            .collect();
        for state in silent {
            states.set(state.process_id.clone(), ProcessState { status: ProcessStatus::Stale, ..state });
        }
    }
}

/// The options of the process projector.
pub fn options() -> ProjectorOptions<HeartbeatPayload, ProcessState> {
    ProjectorOptions::group(GROUP).input(HEARTBEAT_RECEIVED).output(PROCESS_STATE).tick_every(SCAN_EVERY)
}

/// Opens the process projector.
///
/// ```
/// use prombus::Bus;
/// use prombus::consume::projector::process_state::{self, HEARTBEAT_RECEIVED, HeartbeatPayload};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bus = Bus::memory();
/// let projector = process_state::open(&bus).await?.spawn();
/// let heartbeat = HeartbeatPayload {
///     pid: 1234, name: "stt".into(), host: "local".into(), cpu_pct: 12.5, mem_mb: 210.0, sid: None,
/// };
/// bus.publish(HEARTBEAT_RECEIVED, &heartbeat).await?;
/// projector.stop().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// See [`ProjectorError`].
pub async fn open(bus: &Bus) -> Result<Projector<ProcessProjection>, ProjectorError> {
    Projector::open(bus, options(), ProcessProjection).await
}
