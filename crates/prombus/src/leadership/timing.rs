//! The intervals of the leader lease.

/// How often the leader lease is renewed and read, and after which time without a renewal the leader and challengers
/// act.
///
/// `gate_ms` must be well below `take_after_ms`: the leader stops leasing events before a challenger takes the lease,
/// even if the clocks of the two run at slightly different speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    /// The leader renews the lease this often. Default: 2 s.
    pub renew_every_ms: u64,
    /// After this time without a confirmed renewal the leader leases no more events. Default: 5 s.
    pub gate_ms: u64,
    /// A challenger that has seen no renewal for this long takes the lease. Default: 6 s.
    pub take_after_ms: u64,
    /// A challenger reads the lease record this often. Also the minimum time between two attempts to take the lease.
    /// Default: 250 ms.
    pub poll_every_ms: u64,
}

impl Default for LeaseTiming {
    fn default() -> Self {
        Self { renew_every_ms: 2_000, gate_ms: 5_000, take_after_ms: 6_000, poll_every_ms: 250 }
    }
}
