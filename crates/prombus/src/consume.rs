//! Consumers with more guarantees than a plain handler: [`exactly_once`] remembers which events were handled, [`projector`]
//! folds a topic into states by key.
//!
//! `docs/consuming.md` says what each of them guarantees and what it does not.

pub mod dedupe;
pub mod exactly_once;
pub mod projector;
mod rejected;

pub use rejected::Rejected;

use tokio::sync::watch;

/// Resolves when the handle requests a stop. Never resolves if the handle was dropped without requesting one.
pub(crate) async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    if stopped.wait_for(|is_stopped| *is_stopped).await.is_err() {
        std::future::pending::<()>().await;
    }
}
