//! What a process does on a shared store now, and what it counts.

use crate::bus::Bus;
use crate::engine::LeaseRecord;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a process does on a shared store now.
#[derive(Clone)]
pub enum Role {
    /// Another process leads, or nobody does, or this one has not been able to renew its lease for too long.
    Following {
        /// The leader's record when its term was first seen; `None` if nobody leads as far as is known, or if the record is that
        /// of an earlier process at this process's own address.
        leader: Option<LeaseRecord>,
    },
    /// It holds the lease and opens the engine.
    TakingOver {
        /// The term that begins.
        term: u64,
    },
    /// It leads.
    Leading {
        /// Its term. It may be published again, with the same bus, after a time without renewals.
        term: u64,
        /// The bus. It stops when another process takes over.
        bus: Bus,
        /// Authenticates followers that relay connections to this process.
        secret: [u8; 32],
    },
}

impl Role {
    /// Whether both mean the same to somebody who acts on roles.
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
    /// Without secrets.
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
    takeovers: AtomicU64,
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
