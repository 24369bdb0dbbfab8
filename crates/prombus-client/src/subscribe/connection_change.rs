//! Reports when the connection of a subscription is lost, and when it is restored.

use std::fmt;

/// A change of a subscription's connection; see [`Subscribe::on_connection_change`](crate::Subscribe::on_connection_change).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionChange {
    /// The connection was lost, for this reason. The subscription reconnects.
    Lost(String),
    /// The subscription has joined the group again, over a new connection.
    Restored,
}

type Callback = dyn Fn(&ConnectionChange) + Send + Sync;

/// The callback of a subscription, if one was set.
#[derive(Default)]
pub(super) struct ConnectionCallback(Option<Box<Callback>>);

impl ConnectionCallback {
    pub(super) fn new(callback: impl Fn(&ConnectionChange) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(callback)))
    }

    pub(super) fn call(&self, change: &ConnectionChange) {
        if let Some(callback) = &self.0 {
            callback(change);
        }
    }
}

impl fmt::Debug for ConnectionCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionCallback({})", self.0.is_some())
    }
}
