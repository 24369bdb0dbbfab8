//! The options of a process that takes part in leading a store.

use super::timing::LeaseTiming;

/// The options of a process that takes part in leading a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeadershipOptions {
    /// Where followers reach this process when it leads, as `host:port`.
    pub address: String,
    /// SHA-256 of this process's certificate; `None` if it listens without TLS.
    pub cert_hash: Option<[u8; 32]>,
    /// The intervals of the leader lease.
    pub timing: LeaseTiming,
    /// A call of the lease record without a response within this time counts as lost. Default: 2 s.
    pub call_timeout_ms: u64,
    /// How long a process waits after the engine could not be opened or stopped early. Doubles with each failure, up to
    /// 30 s. Default: 1 s.
    pub retry_ms: u64,
    /// A leader without a confirmed renewal for [`LeaseTiming::take_after_ms`] plus this time publishes
    /// [`Role::Following`](super::Role::Following), so that the server closes its client connections. The bus stays
    /// open, and the next confirmed renewal makes this process lead again. Default: 10 s, which is also how long
    /// publishers wait for an engine.
    pub step_aside_ms: u64,
    /// How long [`Leadership::stop`](super::Leadership::stop) tries to release the lease. Default: 5 s; a challenger takes
    /// the lease after 6 s in any case.
    pub release_timeout_ms: u64,
}

impl LeadershipOptions {
    /// The defaults, for a process with this address.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            cert_hash: None,
            timing: LeaseTiming::default(),
            call_timeout_ms: 2_000,
            retry_ms: 1_000,
            step_aside_ms: 10_000,
            release_timeout_ms: 5_000,
        }
    }
}
