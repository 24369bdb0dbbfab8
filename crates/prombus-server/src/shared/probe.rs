//! Whether a follower reaches the leader: asked once a second, the way that connections of clients go.

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

const INTERVAL: Duration = Duration::from_secs(1);
/// How long the leader may take to answer, besides the connection.
const PATIENCE: Duration = Duration::from_secs(2);
/// A cheap route. Any answer will do: the leader's own health is not the question.
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 ";

/// Probes the leader while there is one. `ends` are those of this process: it is its own client.
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
    asked.map_err(|error| format!("the leader at {address} does not answer: {error}"))?;
    if answer == ANSWER {
        return Ok(());
    }
    Err(format!("the leader at {address} does not speak HTTP"))
}
