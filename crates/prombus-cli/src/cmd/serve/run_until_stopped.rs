//! Serving until a signal ends it.
//!
//! The order of stopping: the gateway takes no new work, answers what is in flight and closes its connections; then the
//! store makes everything durable and is closed. A process that is killed in the middle loses nothing that was answered.

use super::stop_signals::Signals;
use crate::messages::one_line;
use anyhow::anyhow;
use prombus_server::Server;
use std::cell::Cell;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A signal that comes again within this time is the same wish.
const SAME_SIGNAL: Duration = Duration::from_millis(250);

/// A process ends within `drain_timeout` and this time of its signal, or says why not.
const CLOSE_EXTRA: Duration = Duration::from_secs(2);

/// Serves until a signal comes, then drains the gateway and awaits `close`. `close` gets the time that the clients have left it:
/// what remains of `drain_timeout` and two seconds.
///
/// # Errors
/// When connections did not end in their time, or `close` failed.
pub async fn run_until_stopped(
    server: Server,
    mut signals: Signals,
    drain_timeout: Duration,
    close: impl AsyncFnOnce(Duration) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (began, has_begun) = oneshot::channel();
    tokio::spawn(async move {
        let signal = signals.next().await;
        tracing::info!("stopping: {signal}; no new work, clients have {} s", drain_timeout.as_secs_f32());
        let _ = began.send(Instant::now());
        // Whoever signals a process and its group says the same thing twice.
        let asked = Instant::now();
        let mut again = signals.next().await;
        while asked.elapsed() < SAME_SIGNAL {
            again = signals.next().await;
        }
        tracing::warn!("stopping at once: {again} again");
        std::process::exit(again.exit_code());
    });
    let (stop, is_stopped) = oneshot::channel();
    let shutdown = async move {
        if let Ok(at) = has_begun.await {
            let _ = stop.send(at);
        }
    };
    // Set by `overdue`; stays empty if the gateway ends by itself.
    let stopped_at = Cell::new(None);
    let mut running = std::pin::pin!(server.run(shutdown));
    // The gateway keeps to its own time; this is for one that does not, so that the store is closed in any case.
    let overdue = async {
        let Ok(at) = is_stopped.await else { return std::future::pending().await };
        stopped_at.set(Some(at));
        tokio::time::sleep_until((at + drain_timeout + Duration::from_millis(500)).into()).await;
    };
    let ran = tokio::select! {
        ran = &mut running => ran.map_err(anyhow::Error::from),
        () = overdue => Err(anyhow!("connections were still open when their time to go was over")),
    };
    if let Err(error) = &ran {
        tracing::error!("{}", one_line(error));
    } else {
        tracing::info!("stopping: closing the store");
    }
    close(time_to_close(stopped_at.get(), Instant::now(), drain_timeout)).await?;
    tracing::info!("stopped");
    ran
}

/// What is left for the store, if the gateway was told to stop at `stopped_at`.
fn time_to_close(stopped_at: Option<Instant>, now: Instant, drain_timeout: Duration) -> Duration {
    let drained = stopped_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
    (drain_timeout + CLOSE_EXTRA).saturating_sub(drained)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_gets_the_time_that_the_clients_did_not_need() {
        let (at, seconds) = (Instant::now(), Duration::from_secs);
        let left = |drained| time_to_close(Some(at), at + drained, seconds(8));
        assert_eq!(left(Duration::ZERO), seconds(10));
        assert_eq!(left(seconds(3)), seconds(7));
        assert_eq!(left(Duration::from_millis(8_500)), Duration::from_millis(1_500));
        assert_eq!(left(seconds(11)), Duration::ZERO);
        assert_eq!(time_to_close(None, at, seconds(8)), seconds(10));
    }
}
