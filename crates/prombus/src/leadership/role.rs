//! The role of a process on a shared store, and figures about its leadership.

use crate::bus::Bus;
use crate::engine::LeaseRecord;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The role of a process on a shared store.
#[derive(Clone)]
pub enum Role {
    /// Another process leads, or no process does, or this process leads but could not renew its lease in time.
    Following {
        /// The leader's record, as it was when its term was first seen. `None` if no leader is known, or if the
        /// record has the address of this process: then it is usually a record that this process wrote before a
        /// restart.
        leader: Option<LeaseRecord>,
    },
    /// This process holds the lease, and is opening the engine.
    TakingOver {
        /// The new term.
        term: u64,
    },
    /// This process leads.
    Leading {
        /// The term. After a time without renewals, this role may be published again with the same term and bus.
        term: u64,
        /// The bus. It stops when another process takes over.
        bus: Bus,
        /// Authenticates followers that relay connections to this process.
        secret: [u8; 32],
    },
}

impl Role {
    /// Whether a change from one role to the other needs no action of the server.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Following { leader: a }, Self::Following { leader: b }) => {
                let identity = |it: &LeaseRecord| (it.term, it.leader_id.clone());
                a.as_ref().map(identity) == b.as_ref().map(identity)
            }
            (Self::TakingOver { term: a }, Self::TakingOver { term: b })
            | (Self::Leading { term: a, .. }, Self::Leading { term: b, .. }) => a == b,
            _ => false,
        }
    }
}

impl std::fmt::Debug for Role {
    /// Leaves out the secret.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Following { leader } => write!(formatter, "Following({leader:?})"),
            Self::TakingOver { term } => write!(formatter, "TakingOver(term {term})"),
            Self::Leading { term, .. } => write!(formatter, "Leading(term {term})"),
        }
    }
}

/// Figures for operators. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LeadershipFigures(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// See [`LeadershipFigures::takeovers`].
    takeovers: AtomicU64,
    /// See [`LeadershipFigures::term`].
    term: AtomicU64,
}

impl LeadershipFigures {
    /// How often this process became the leader.
    pub fn takeovers(&self) -> u64 {
        self.0.takeovers.load(Ordering::Relaxed)
    }

    /// The newest term that this process knows.
    pub fn term(&self) -> u64 {
        self.0.term.load(Ordering::Relaxed)
    }

    pub(super) fn count_takeover(&self) {
        self.0.takeovers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn saw_term(&self, term: u64) {
        self.0.term.fetch_max(term, Ordering::Relaxed);
    }
}
