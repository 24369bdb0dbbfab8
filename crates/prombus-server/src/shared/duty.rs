//! The current duty of this gateway, derived from its role: to serve the store for a term (a period in which one process leads),
//! or to relay to the leader.

use crate::gateway::{Gateway, GatewayParts};
use crate::http;
use crate::metrics::SharedStoreMetrics;
use crate::relay::{Leader, PrefaceCheck};
use crate::role::ServerRole;
use crate::shutdown::{StopReason, StopSender, Stopping};
use axum::Router;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::watch;

/// The current duty.
#[derive(Clone)]
pub(super) enum Duty {
    /// This process serves the store.
    Leading(Arc<Leading>),
    /// This process relays to the leader; `None` while no leader is known.
    Following(Option<Arc<Leader>>),
}

/// A term that this process leads.
pub(super) struct Leading {
    /// The number of the term.
    pub(super) term: u64,
    pub(super) gateway: Arc<Gateway>,
    pub(super) router: Router,
    /// Checks the prefaces of connections that followers relay in this term.
    pub(super) prefaces: Arc<PrefaceCheck>,
    /// Ends the connections of this term.
    stop: StopSender,
}

impl Leading {
    /// Ends the connections of this term.
    pub(super) fn stop(&self, reason: StopReason) {
        self.stop.send_replace(Some(reason));
    }
}

impl Duty {
    /// Whether a connection that is relayed to `leader` must end, because another process has become the leader, or this process
    /// has. While no leader is known, the connection stays open: the old leader either still serves the connection or ends it.
    pub(super) fn ends_relay_to(&self, leader: &Leader) -> bool {
        match self {
            Self::Leading(_) => true,
            Self::Following(None) => false,
            Self::Following(Some(now)) => now.endpoint != leader.endpoint,
        }
    }

    /// Whether this duty already corresponds to `role`. Each renewal of the leader lease sends the same role again.
    fn is_for(&self, role: &ServerRole) -> bool {
        match (self, role) {
            (Self::Leading(now), ServerRole::Leading { backend, term, .. }) => {
                now.term == *term && Arc::ptr_eq(&now.gateway.backend, backend)
            }
            (Self::Following(now), ServerRole::Following { leader }) => {
                now.as_ref().map(|now| &now.endpoint) == leader.as_ref()
            }
            _ => false,
        }
    }
}

/// Updates the duty when the role changes.
pub(super) struct DutyUpdater {
    pub(super) roles: watch::Receiver<ServerRole>,
    pub(super) parts: Arc<GatewayParts>,
    pub(super) metrics: Arc<SharedStoreMetrics>,
    pub(super) duties: watch::Sender<Duty>,
    /// The preface check of the newest term that this process led. After a pause in renewing the leader lease, the process may
    /// lead the same term again, and must then still refuse the prefaces that it has seen.
    pub(super) prefaces: Option<(u64, Arc<PrefaceCheck>)>,
}

impl DutyUpdater {
    /// Applies the current role.
    pub(super) fn apply_current(mut self) -> Self {
        let role = self.roles.borrow_and_update().clone();
        self.apply(role);
        self
    }

    /// Applies every change of the role until the channel closes. The last role then stays in effect.
    pub(super) async fn run(mut self) {
        while self.roles.changed().await.is_ok() {
            self = self.apply_current();
        }
    }

    fn apply(&mut self, role: ServerRole) {
        if self.duties.borrow().is_for(&role) {
            return;
        }
        tracing::info!("this gateway's role changed to {role:?}");
        let duty = match role {
            ServerRole::Following { leader } => {
                let is_insecure = self.parts.options.relay_insecure;
                Duty::Following(leader.map(|leader| Arc::new(Leader::new(leader, is_insecure))))
            }
            ServerRole::Leading { backend, term, secret } => {
                let (stop, stopping) = Stopping::new();
                let gateway = Arc::new(self.parts.gateway(backend, stopping));
                let router = http::router(Arc::clone(&gateway));
                let prefaces = self.prefaces(term, &secret);
                Duty::Leading(Arc::new(Leading { term, gateway, router, prefaces, stop }))
            }
        };
        self.record(&duty);
        if let Duty::Leading(before) = self.duties.send_replace(duty) {
            before.stop(StopReason::Deposed);
        }
    }

    fn prefaces(&mut self, term: u64, secret: &[u8; 32]) -> Arc<PrefaceCheck> {
        match &self.prefaces {
            Some((of, prefaces)) if *of == term => Arc::clone(prefaces),
            _ => {
                let prefaces = Arc::new(PrefaceCheck::new(term, secret));
                self.prefaces = Some((term, Arc::clone(&prefaces)));
                prefaces
            }
        }
    }

    fn record(&self, duty: &Duty) {
        self.metrics.is_leader.store(matches!(duty, Duty::Leading(_)), Ordering::Relaxed);
        self.metrics.is_leader_reached.store(false, Ordering::Relaxed);
        match duty {
            Duty::Leading(leading) => self.metrics.term.store(leading.term, Ordering::Relaxed),
            Duty::Following(Some(leader)) => self.metrics.term.store(leader.endpoint.term, Ordering::Relaxed),
            Duty::Following(None) => {}
        }
    }
}
