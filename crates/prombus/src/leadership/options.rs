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
    /// A read or write of the lease record that has no response after this time counts as lost. Default: 2 s.
    pub call_timeout_ms: u64,
    /// How long this process waits before it tries to lead again, after the engine could not be opened or has failed. The
    /// time doubles with each failure, up to 30 s. Default: 1 s.
    pub retry_ms: u64,
    /// If a leader has had no confirmed renewal for [`LeaseTiming::take_after_ms`] plus this time, its role becomes
    /// [`Role::Following`](super::Role::Following), so that the server closes its client connections. The bus stays open,
    /// and with the next confirmed renewal this process leads again. Default: 10 s, the same as the time for which
    /// publishers wait for an engine that cannot commit.
    pub step_aside_ms: u64,
    /// How long [`Leadership::stop`](super::Leadership::stop) tries to release the lease. Default: 5 s. Trying for longer
    /// is of little use, because another process takes a lease that was not renewed for 6 s in any case.
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
