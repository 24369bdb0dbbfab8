//! While this process is a follower, checks once a second whether it reaches the leader, over the same path as the connections of
//! clients.

use super::duty::Duty;
use crate::metrics::SharedStoreMetrics;
use crate::peer::Ends;
use crate::relay::Leader;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Pause between two probes.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the leader may take to respond, without the time to connect.
const PATIENCE: Duration = Duration::from_secs(2);
/// A cheap route. Any response counts: the probe does not check the leader's own health.
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
/// The start of every HTTP response.
const ANSWER: &[u8] = b"HTTP/1.1 ";

/// Probes the leader while this process follows a known leader. `ends` are those of this process, which is the client of the
/// probe.
pub(super) async fn probe_leaders(
    mut duties: watch::Receiver<Duty>,
    metrics: Arc<SharedStoreMetrics>,
    ends: Ends,
) {
    loop {
        let duty = duties.borrow_and_update().clone();
        if let Duty::Following(Some(leader)) = duty {
            let probed = tokio::select! {
                probed = probe(&leader, ends) => probed,
                changed = duties.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            metrics.is_leader_reached.store(probed.is_ok(), Ordering::Relaxed);
            leader.set_reached(probed);
        }
        tokio::select! {
            () = sleep(INTERVAL) => {}
            changed = duties.changed() => if changed.is_err() { return },
        }
    }
}

async fn probe(leader: &Leader, ends: Ends) -> Result<(), String> {
    let mut hop = leader.connect(ends).await.map_err(|error| error.to_string())?;
    let mut answer = [0; ANSWER.len()];
    let asking = async {
        hop.write_all(REQUEST).await?;
        hop.flush().await?;
        hop.read_exact(&mut answer).await
    };
    let asked: io::Result<_> = timeout(PATIENCE, asking).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()));
    let address = &leader.endpoint.address;
    asked.map_err(|error| format!("the leader at {address} does not respond: {error}"))?;
    if answer == ANSWER {
        return Ok(());
    }
    Err(format!("the leader at {address} does not speak HTTP"))
}
