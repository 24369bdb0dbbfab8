//! The role of a gateway (a server that shares its store with others): it leads the store, or it follows and relays to the
//! leader.
//!
//! The lease record is the entry of the shared store that names its leader. It also contains the number of the current term. A
//! term is a period in which one process leads; each new term has a higher number.

use prombus::Backend;
use std::fmt;
use std::sync::Arc;

/// The current role of a gateway of a shared store.
#[derive(Clone)]
pub enum ServerRole {
    /// Another process leads. Connections are relayed to it.
    Following {
        /// The leader; `None` while no leader is known, or while this process is taking over.
        leader: Option<LeaderEndpoint>,
    },
    /// This process leads, and serves connections itself.
    Leading {
        /// The backend for this term.
        backend: Arc<dyn Backend>,
        /// The number of the term.
        term: u64,
        /// The secret of the lease record, which authenticates followers.
        secret: [u8; 32],
    },
}

/// How followers reach the leader: the content of the lease record, which the leader writes into the shared store.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaderEndpoint {
    /// The number of the term.
    pub term: u64,
    /// The leader's address, as `host:port`.
    pub address: String,
    /// SHA-256 of the leader's certificate; `None` if it listens without TLS.
    pub cert_hash: Option<[u8; 32]>,
    /// Authenticates the follower to the leader, and the leader to the follower.
    pub secret: [u8; 32],
}

impl fmt::Debug for LeaderEndpoint {
    /// Omits the secret.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { term, address, cert_hash, .. } = self;
        let transport = if cert_hash.is_some() { "TLS" } else { "plain TCP" };
        write!(formatter, "LeaderEndpoint(term {term} at {address}, {transport})")
    }
}

impl fmt::Debug for ServerRole {
    /// Omits the secret.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Following { leader } => {
                formatter.debug_struct("Following").field("leader", leader).finish()
            }
            Self::Leading { term, .. } => write!(formatter, "Leading(term {term})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_not_in_the_debug_text() {
        let secret = [0xab; 32];
        let leader = LeaderEndpoint { term: 7, address: "db:1".to_owned(), cert_hash: None, secret };
        let leading =
            ServerRole::Leading { backend: prombus::Bus::memory().backend().clone(), term: 7, secret };
        let following = ServerRole::Following { leader: Some(leader) };
        for text in [format!("{leading:?}"), format!("{following:?}")] {
            assert!(text.contains("term 7"), "{text}");
            assert!(!text.contains("171") && !text.to_lowercase().contains("ab, "), "{text}");
        }
    }
}
