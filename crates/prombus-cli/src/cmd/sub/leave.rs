//! Leaves the group at the end of the command.

use super::stderr_writer::StderrWriter;
use crate::cmd::serve::stop_signals::Signals;
use prombus_client::Subscription;

/// Leaves the group: events without a result go to other members at once, and their attempt does not count. A signal ends the wait
/// for a server that does not respond.
pub async fn leave(subscription: Subscription, stderr: &StderrWriter, signals: &mut Signals) {
    let left = tokio::select! {
        left = subscription.unsubscribe() => left,
        _ = signals.next() => return,
    };
    if let Err(error) = left {
        stderr.print_error(&format!("cannot leave the group: {error}"));
    }
    stderr.flush().await;
}
