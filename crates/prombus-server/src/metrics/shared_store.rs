//! What a gateway of a shared store counts about its role and the relay. It outlives changes of the role.

use super::text::{FamilyKind, MetricsText};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Role, term, takeovers, and relayed connections.
#[derive(Debug)]
pub(crate) struct SharedStoreMetrics {
    pub(crate) is_leader: AtomicBool,
    /// Of this leader, or of the last leader that was followed.
    pub(crate) term: AtomicU64,
    /// The caller counts.
    takeovers: Arc<AtomicU64>,
    /// Whether a follower has reached the leader with its last probe.
    pub(crate) is_leader_reached: AtomicBool,
    relayed_now: AtomicU64,
    relayed: AtomicU64,
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
            relayed: AtomicU64::new(0),
            refused_prefaces: AtomicU64::new(0),
        }
    }

    pub(crate) fn relayed(self: &Arc<Self>) -> RelayedConnection {
        self.relayed_now.fetch_add(1, Ordering::Relaxed);
        self.relayed.fetch_add(1, Ordering::Relaxed);
        RelayedConnection(Arc::clone(self))
    }

    pub(super) fn put(&self, text: &mut MetricsText) {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let is_leader = self.is_leader.load(Ordering::Relaxed);
        text.family("prombus_role", FamilyKind::Gauge, "1 for the role that this gateway has.");
        text.sample(&[("role", "leader")], u64::from(is_leader));
        text.sample(&[("role", "follower")], u64::from(!is_leader));
        text.family("prombus_term", FamilyKind::Gauge, "The term of the leader, as far as it is known here.");
        text.sample(&[], load(&self.term));
        text.family(
            "prombus_takeovers_total",
            FamilyKind::Counter,
            "Times that this process became the leader.",
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
            "prombus_relayed_connections",
            FamilyKind::Gauge,
            "Connections relayed to the leader now.",
        );
        text.sample(&[], load(&self.relayed_now));
        text.family(
            "prombus_relayed_connections_total",
            FamilyKind::Counter,
            "Connections that were relayed to a leader.",
        );
        text.sample(&[], load(&self.relayed));
        text.family(
            "prombus_relay_prefaces_refused_total",
            FamilyKind::Counter,
            "Connections closed because they claimed to be relayed and did not prove it.",
        );
        text.sample(&[], load(&self.refused_prefaces));
    }
}

impl Drop for RelayedConnection {
    fn drop(&mut self) {
        self.0.relayed_now.fetch_sub(1, Ordering::Relaxed);
    }
}
