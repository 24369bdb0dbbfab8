//! Leaves the group at the end of the command.

use super::stderr_writer::StderrWriter;
use crate::cmd::serve::stop_signals::{Signals, Stop};
use anyhow::anyhow;
use prombus_client::Subscription;

/// Leaves the group: events without a result go to other members at once, and their attempt does not count. A signal ends the wait
/// for a server that does not respond.
///
/// `stop` is the signal that ended the command. Without one, `--limit` was reached: the command then fails if leaving fails and some results
/// had no answer (`has_unanswered`), because these results are lost.
pub async fn leave(
    subscription: Subscription,
    stderr: &StderrWriter,
    signals: &mut Signals,
    stop: Option<Stop>,
    has_unanswered: bool,
) -> anyhow::Result<Option<Stop>> {
    let left = tokio::select! {
        left = subscription.unsubscribe() => left,
        signal = signals.next() => return Ok(stop.or(Some(signal))),
    };
    let failed = left.err().map(|error| anyhow!("cannot leave the group: {error}"));
    let failed = match failed {
        Some(error) if stop.is_none() && has_unanswered => Err(error),
        Some(error) => {
            stderr.print_error(&error.to_string());
            Ok(stop)
        }
        None => Ok(stop),
    };
    stderr.flush().await;
    failed
}
