//! The commands that subscriptions, deliveries and handlers send to the member's task.

use super::settlement::{Settled, Settlement};
use crate::error::ClientError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Receives the result of a command.
pub(super) type Reply<T> = oneshot::Sender<Result<T, ClientError>>;

/// A command.
pub(super) enum Command {
    /// Settles a delivery.
    Settle { serial: u64, settlement: Settlement, reply: Option<Reply<Settled>> },
    /// Extends the lease of a delivery. The result is false if the lease is over.
    Extend { serial: u64, by: Duration, reply: Reply<bool> },
    /// Reports that a delivery was dropped without a result.
    Release { serial: u64 },
    /// Stops (true) or starts (false) deliveries.
    Pause(bool),
    /// Stops deliveries permanently. Deliveries that the consumer has can be settled as long as the connection lasts.
    Drain,
    /// Leaves the group. The reply is sent when the server has responded to this and to all results.
    Leave(Reply<()>),
}

/// Sends commands to the task. The task leaves the group when all handles are dropped.
#[derive(Clone)]
pub(super) struct MemberHandle {
    commands: mpsc::UnboundedSender<Command>,
    /// The server's address, for errors.
    address: Arc<str>,
}

impl MemberHandle {
    pub(super) fn new(address: &str) -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        (Self { commands, address: address.into() }, receiver)
    }

    /// Sends a command. It has no effect if the subscription has ended.
    pub(super) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Sends a command and waits for its result.
    pub(super) async fn request<T>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, ClientError> {
        let (reply, result) = oneshot::channel();
        self.send(command(reply));
        result.await.unwrap_or_else(|_| {
            let why = "the subscription has ended".to_owned();
            Err(ClientError::Lost { address: self.address.to_string(), why })
        })
    }
}

impl std::fmt::Debug for MemberHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemberHandle({})", self.address)
    }
}
