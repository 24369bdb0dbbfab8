//! Folds heartbeats into states of processes: three processes, one of which stops sending for a while.
//!
//! ```text
//! cargo run -p prombus --example heartbeat            # in memory, for half a minute
//! DATA=./prombus-data cargo run -p prombus --example heartbeat
//! ```

#![allow(clippy::print_stdout, reason = "the output is what the example shows")]

use prombus::Bus;
use prombus::consume::projector::process_state::{
    self, HEARTBEAT_RECEIVED, HeartbeatPayload, PROCESS_STATE, ProcessState,
};
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let bus = match std::env::var_os("DATA") {
        Some(folder) => Bus::open(folder).await?,
        None => Bus::memory(),
    };
    let mut states = bus.subscribe(PROCESS_STATE.name(), format!("watch-{}", std::process::id())).await?;
    let projector = process_state::open(&bus).await?.spawn();

    let publisher = bus.clone();
    let beating = tokio::spawn(async move {
        for second in 0..30 {
            for (name, pid) in [("web", 101), ("worker", 102), ("stt", 103)] {
                // No heartbeats for 20 seconds: the process is stale after 15 of them.
                if name == "worker" && (5..25).contains(&second) {
                    continue;
                }
                let (name, host) = (name.to_owned(), "local".to_owned());
                let heartbeat = HeartbeatPayload { pid, name, host, cpu_pct: 12.5, mem_mb: 210.0, sid: None };
                publisher.publish(HEARTBEAT_RECEIVED, &heartbeat).await?;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok::<(), prombus::PublishError>(())
    });

    let mut known = std::collections::HashMap::new();
    while !beating.is_finished() {
        let Ok(next) = tokio::time::timeout(Duration::from_millis(500), states.next()).await else {
            continue;
        };
        let Some(delivery) = next else { break };
        let delivery = delivery?;
        let state: ProcessState = delivery.json()?;
        if known.insert(state.process_id.clone(), state.status) != Some(state.status) {
            println!("{} is {:?}", state.process_id, state.status);
        }
        drop(delivery.ack());
    }
    beating.await??;
    projector.stop().await?;
    Ok(bus.close().await?)
}
