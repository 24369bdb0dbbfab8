//! Tests under load have a short form, for every run, and a long form that environment variables select. They run one at a time,
//! so that they do not disturb each other's measurements.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

static TURN: Mutex<()> = Mutex::new(());

/// Runs a test under load while no other such test runs.
pub fn alone(test: impl Future<Output = ()>) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test);
    runtime.shutdown_background();
    drop(turn);
}

/// The number in an environment variable, if it is set.
pub fn asked(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.replace('_', "").parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

/// Waits until a condition holds; panics after `patience`.
pub async fn wait_until(what: &str, patience: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < patience, "not within {patience:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Pseudo-random numbers, reproducible by seed (splitmix64).
pub struct Random(u64);

impl Random {
    /// Takes the seed from `PROMBUS_SEED`, or from the clock, and prints it.
    pub fn from_environment(test: &str) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = asked("PROMBUS_SEED").unwrap_or(u64::from(now.subsec_nanos()));
        println!("{test}: PROMBUS_SEED={seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
