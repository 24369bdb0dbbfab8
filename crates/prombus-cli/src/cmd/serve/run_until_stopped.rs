//! Serves until a signal stops the process.
//!
//! Shutdown order: the server refuses new work, answers requests in flight and closes its connections; then the store makes
//! everything durable and closes. A process that is killed in between loses no event whose publish was answered with OK.

use super::stop_signals::Signals;
use crate::messages::one_line;
use anyhow::anyhow;
use prombus_server::Server;
use std::cell::Cell;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A second signal within this time is ignored: a supervisor may signal both the process and its process group.
const SAME_SIGNAL: Duration = Duration::from_millis(250);

/// The process exits at most `drain_timeout` plus this time after its signal. If the store cannot close by then, the error says
/// so.
const CLOSE_EXTRA: Duration = Duration::from_secs(2);

/// Serves until a signal arrives, then drains the server and awaits `close`. The argument of `close` is the time that closing
/// may take: the part of `drain_timeout` that is left when all clients have disconnected, plus two seconds.
///
/// # Errors
/// When connections were still open at the drain timeout, or `close` failed.
pub async fn run_until_stopped(
    server: Server,
    mut signals: Signals,
    drain_timeout: Duration,
    close: impl AsyncFnOnce(Duration) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (began, has_begun) = oneshot::channel();
    tokio::spawn(async move {
        let signal = signals.next().await;
        tracing::info!(
            "stopping: received {signal}; clients have {} s to disconnect",
            drain_timeout.as_secs_f32()
        );
        let _ = began.send(Instant::now());
        let first_at = Instant::now();
        let mut second = signals.next().await;
        while first_at.elapsed() < SAME_SIGNAL {
            second = signals.next().await;
        }
        tracing::warn!("exiting at once: received a second signal, {second}");
        std::process::exit(second.exit_code());
    });
    let (stop, is_stopped) = oneshot::channel();
    let shutdown = async move {
        if let Ok(at) = has_begun.await {
            let _ = stop.send(at);
        }
    };
    // When the stop signal arrived. Set by `overdue`; stays `None` if the server ends without a signal.
    let stopped_at = Cell::new(None);
    let mut running = std::pin::pin!(server.run(shutdown));
    // The server enforces `drain_timeout` itself. This is a second bound, so that the store is closed in any case.
    let overdue = async {
        let Ok(at) = is_stopped.await else { return std::future::pending().await };
        stopped_at.set(Some(at));
        tokio::time::sleep_until((at + drain_timeout + Duration::from_millis(500)).into()).await;
    };
    let ran = tokio::select! {
        ran = &mut running => ran.map_err(anyhow::Error::from),
        () = overdue => Err(anyhow!("connections were still open after drain_timeout_ms")),
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

/// The time that the store has to close, if the server began to stop at `stopped_at`.
fn time_to_close(stopped_at: Option<Instant>, now: Instant, drain_timeout: Duration) -> Duration {
    let drained = stopped_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
    (drain_timeout + CLOSE_EXTRA).saturating_sub(drained)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_gets_the_time_that_clients_left_over() {
        let (at, seconds) = (Instant::now(), Duration::from_secs);
        let left = |drained| time_to_close(Some(at), at + drained, seconds(8));
        assert_eq!(left(Duration::ZERO), seconds(10));
        assert_eq!(left(seconds(3)), seconds(7));
        assert_eq!(left(Duration::from_millis(8_500)), Duration::from_millis(1_500));
        assert_eq!(left(seconds(11)), Duration::ZERO);
        assert_eq!(time_to_close(None, at, seconds(8)), seconds(10));
    }
}
