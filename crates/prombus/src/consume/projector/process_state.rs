//! The example projector: heartbeats of processes become what is known about each of them, `heartbeat.received` to
//! `process.state`.
//!
//! A process is `alive` when it was heard of within 15 seconds, else `stale`; whoever comes back is `alive` again. Because the
//! time of the last heartbeat is part of the state, a process that fell silent while no projector ran becomes stale too.

use super::{Projection, Projector, ProjectorError, ProjectorOptions, Rejection, States};
use crate::bus::Bus;
use crate::event::Event;
use serde::{Deserialize, Serialize};
use std::time::Duration;

prombus_protocol::topic! {
    /// Where processes say that they live.
    pub HEARTBEAT_RECEIVED: HeartbeatPayload = "heartbeat.received";
    /// What is known about each process, by key `host:name:pid`.
    pub PROCESS_STATE: ProcessState = "process.state";
}

/// The group that reads the heartbeats.
pub const GROUP: &str = "process-projector";
/// A process that was not heard of for longer is stale.
pub const STALE_MS: i64 = 15_000;
/// How often stale processes are looked for.
pub const SCAN_EVERY: Duration = Duration::from_secs(5);

/// A heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatPayload {
    /// The process's number on its host.
    pub pid: u64,
    /// What it is called.
    pub name: String,
    /// Where it runs.
    pub host: String,
    /// How much of a processor it uses, in percent.
    pub cpu_pct: f64,
    /// How much memory it uses, in MB.
    pub mem_mb: f64,
    /// Its session or boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sid: Option<String>,
}

impl HeartbeatPayload {
    /// What the process is called in states.
    pub fn process_id(&self) -> String {
        format!("{}:{}:{}", self.host, self.name, self.pid)
    }
}

/// Whether a process was heard of lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessStatus {
    /// It was.
    Alive,
    /// It was not.
    Stale,
}

/// What is known about a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessState {
    /// `host:name:pid`, which is the key of the event too.
    #[serde(rename = "processId")]
    pub process_id: String,
    /// What it is called.
    pub name: String,
    /// Where it runs.
    pub host: String,
    /// Its number there.
    pub pid: u64,
    /// Its session or boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sid: Option<String>,
    /// How much of a processor it used last, in percent.
    pub cpu_pct: f64,
    /// How much memory it used last, in MB.
    pub mem_mb: f64,
    /// When its last heartbeat was, in milliseconds since 1970.
    pub last_seen_ts: i64,
    /// Whether that is long ago.
    pub status: ProcessStatus,
}

/// Folds heartbeats into states of processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessProjection;

impl Projection for ProcessProjection {
    type State = ProcessState;

    fn fold(&mut self, event: &Event, states: &mut States<ProcessState>) -> Result<(), Rejection> {
        let heartbeat: HeartbeatPayload = event.json()?;
        let process_id = heartbeat.process_id();
        if states.get(&process_id).is_some_and(|state| state.last_seen_ts > event.ts()) {
            // It was late; something newer is known.
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
pub fn options() -> ProjectorOptions {
    let options = ProjectorOptions::new(HEARTBEAT_RECEIVED.name(), PROCESS_STATE.name(), GROUP);
    ProjectorOptions { tick_every: Some(SCAN_EVERY), ..options }
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
