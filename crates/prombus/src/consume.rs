//! Consumers that do more than handle one event after the other: [`exactly_once`] remembers what was done, [`projector`] folds
//! a topic into states by key.
//!
//! `docs/consuming.md` says what each of them promises and what not.

pub mod dedupe;
pub mod exactly_once;
pub mod projector;
mod rejected;

pub use rejected::Rejected;

use tokio::sync::watch;

/// Resolves when a handle says stop; never, once the handle is gone.
pub(crate) async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    if stopped.wait_for(|is_stopped| *is_stopped).await.is_err() {
        std::future::pending::<()>().await;
    }
}
