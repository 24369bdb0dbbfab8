//! The metrics of a gateway (a server that shares its store with others) about its role and the relay. They outlive changes of
//! the role.

use super::text::{FamilyKind, MetricsText};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Role, term, takeovers, and relayed connections.
#[derive(Debug)]
pub(crate) struct SharedStoreMetrics {
    pub(crate) is_leader: AtomicBool,
    /// The term of this process as leader, or of the last leader that it followed.
    pub(crate) term: AtomicU64,
    /// Incremented by the caller of `Server::bind_shared`.
    takeovers: Arc<AtomicU64>,
    /// Whether the follower's last probe reached the leader.
    pub(crate) is_leader_reached: AtomicBool,
    /// Connections that are relayed at the moment.
    relayed_now: AtomicU64,
    /// All connections that were relayed since the process started.
    relayed_total: AtomicU64,
    /// Connections that were closed because their relay preface was refused.
    pub(crate) refused_prefaces: AtomicU64,
}

/// One relayed connection, counted while it is held.
#[derive(Debug)]
pub(crate) struct RelayedConnection(Arc<SharedStoreMetrics>);

impl SharedStoreMetrics {
    pub(crate) fn new(takeovers: &Arc<AtomicU64>) -> Self {
        Self {
            is_leader: AtomicBool::new(false),
            term: AtomicU64::new(0),
            takeovers: Arc::clone(takeovers),
            is_leader_reached: AtomicBool::new(false),
            relayed_now: AtomicU64::new(0),
            relayed_total: AtomicU64::new(0),
            refused_prefaces: AtomicU64::new(0),
        }
    }

    pub(crate) fn relayed(self: &Arc<Self>) -> RelayedConnection {
        self.relayed_now.fetch_add(1, Ordering::Relaxed);
        self.relayed_total.fetch_add(1, Ordering::Relaxed);
        RelayedConnection(Arc::clone(self))
    }

    pub(super) fn put(&self, text: &mut MetricsText) {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let is_leader = self.is_leader.load(Ordering::Relaxed);
        text.family("prombus_role", FamilyKind::Gauge, "1 for the current role of this gateway.");
        text.sample(&[("role", "leader")], u64::from(is_leader));
        text.sample(&[("role", "follower")], u64::from(!is_leader));
        text.family("prombus_term", FamilyKind::Gauge, "The term of the last known leader.");
        text.sample(&[], load(&self.term));
        text.family(
            "prombus_takeovers_total",
            FamilyKind::Counter,
            "How often this process became the leader.",
        );
        text.sample(&[], load(&self.takeovers));
        if !is_leader {
            let is_reached = self.is_leader_reached.load(Ordering::Relaxed);
            text.family(
                "prombus_leader_reached",
                FamilyKind::Gauge,
                "1 while this follower reaches the leader.",
            );
            text.sample(&[], u64::from(is_reached));
        }
        text.family(
            "prombus_relayed_connections_open",
            FamilyKind::Gauge,
            "Connections that are currently relayed to the leader.",
        );
        text.sample(&[], load(&self.relayed_now));
        text.family(
            "prombus_relayed_connections_total",
            FamilyKind::Counter,
            "Connections that were relayed to a leader.",
        );
        text.sample(&[], load(&self.relayed_total));
        text.family(
            "prombus_relay_prefaces_refused_total",
            FamilyKind::Counter,
            "Connections closed because they claimed to come from another gateway and could not prove it.",
        );
        text.sample(&[], load(&self.refused_prefaces));
    }
}

impl Drop for RelayedConnection {
    fn drop(&mut self) {
        self.0.relayed_now.fetch_sub(1, Ordering::Relaxed);
    }
}
