//! Tracks whether the database server can be used. A failed operation marks it as unreachable, and a probe detects its recovery.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The pause before the first probe. The pause doubles after each probe.
const PROBE_MIN: Duration = Duration::from_millis(50);
/// The longest pause between two probes.
const PROBE_MAX: Duration = Duration::from_secs(2);
/// If the server fails again within this time after a successful probe, the pause continues to grow instead of starting again at the
/// minimum.
const FLAPPING: Duration = Duration::from_secs(1);

/// The availability of the server, shared by everything that uses it.
#[derive(Debug)]
pub(crate) struct Availability {
    /// Why the server cannot be used; `None` while it can.
    outage: watch::Sender<Option<String>>,
    /// Whether an operation failed since the last call of `take_failed`.
    has_failed: AtomicBool,
}

impl Availability {
    pub(crate) fn new() -> Self {
        Self { outage: watch::Sender::new(None), has_failed: AtomicBool::new(false) }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<String>> {
        self.outage.subscribe()
    }

    pub(crate) fn is_away(&self) -> bool {
        self.outage.borrow().is_some()
    }

    /// Reports a failed operation. Until the probe succeeds, the server counts as unreachable.
    pub(crate) fn failed(&self, reason: &str) {
        self.has_failed.store(true, Ordering::SeqCst);
        self.outage.send_if_modified(|outage| {
            let is_new = outage.is_none();
            outage.get_or_insert_with(|| reason.to_owned());
            is_new
        });
    }

    /// Returns whether an operation failed since the last call. If so, another server may have become the primary.
    pub(crate) fn take_failed(&self) -> bool {
        self.has_failed.swap(false, Ordering::SeqCst)
    }

    /// Waits until the server can be used.
    pub(crate) async fn wait(&self) {
        // The sender is in `self`, so waiting cannot fail.
        let _ = self.outage.subscribe().wait_for(Option::is_none).await;
    }

    /// Probes the server whenever it is unreachable, until the task is dropped.
    pub(crate) async fn run_probe<F>(&self, probe: impl Fn() -> F)
    where
        F: Future<Output = Result<(), String>>,
    {
        let mut outage = self.outage.subscribe();
        let (mut pause, mut since_up) = (PROBE_MIN, Instant::now());
        loop {
            let _ = outage.wait_for(Option::is_some).await;
            if since_up.elapsed() > FLAPPING {
                pause = PROBE_MIN;
            }
            loop {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PROBE_MAX);
                match probe().await {
                    Ok(()) => break,
                    Err(reason) => tracing::debug!("MongoDB is still unreachable: {reason}"),
                }
            }
            since_up = Instant::now();
            self.outage.send_replace(None);
        }
    }
}
