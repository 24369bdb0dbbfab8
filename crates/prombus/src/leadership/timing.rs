//! The intervals of the leader lease.

/// How often the leader renews the leader lease, how often challengers (processes that would take it) read it, and
/// how long both wait after the last renewal before they act.
///
/// `gate_ms` must be well below `take_after_ms`, so that the leader stops leasing events before a challenger takes
/// the lease, even if the clocks of the two run at slightly different speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    /// The leader renews the lease this often. Default: 2 s.
    pub renew_every_ms: u64,
    /// If the leader has had no confirmed renewal for this long, it stops leasing events to members. Default: 5 s.
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
