//! Leaves the group at the end of the command.

use super::stderr_writer::StderrWriter;
use crate::cmd::serve::stop_signals::{Signals, Stop};
use anyhow::anyhow;
use prombus_client::Subscription;

/// Leaves the group: events without a result go to other members at once, and their attempt does not count. A signal ends the wait
/// for a server that does not respond.
///
/// `stop` is the signal that ended the command. Without one, `--limit` was reached: the command then fails if results were lost.
pub async fn leave(
    subscription: Subscription,
    stderr: &StderrWriter,
    signals: &mut Signals,
    stop: Option<Stop>,
) -> anyhow::Result<Option<Stop>> {
    let left = tokio::select! {
        left = subscription.unsubscribe() => left,
        signal = signals.next() => return Ok(stop.or(Some(signal))),
    };
    let failed = left.map_err(|error| anyhow!("cannot leave the group: {error}"));
    match (failed, stop) {
        (Err(error), None) => return Err(error),
        (Err(error), Some(_)) => stderr.print_error(&error.to_string()),
        (Ok(()), _) => {}
    }
    stderr.flush().await;
    Ok(stop)
}
