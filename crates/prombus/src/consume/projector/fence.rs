//! Keeps an older projector of a group from publishing after a newer one was opened in this process.
//!
//! A supervisor may open a projector while the previous one is still being dropped, or has a commit in progress. The newer
//! one must not read the states before the older one's last commit has ended. So both share a fence: a lock on the number of
//! the projector that may publish (its *turn*). Each commit holds the lock, and a projector that is opened takes the next
//! number under the same lock.

use super::ProjectorError;
use crate::backend::Backend;
use crate::bus::Bus;
use crate::publish::PublishBatch;
use crate::publishing::{PublishResult, Publishing};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Weak};

/// Identifies a projector's group: the address of the backend, the input and the group. The address is not reused while a
/// projector holds the backend.
type Key = (usize, String, String);

static FENCES: LazyLock<Mutex<HashMap<Key, Weak<Fence>>>> = LazyLock::new(Mutex::default);

/// Shared by the projectors of a group in this process.
type Fence = tokio::sync::Mutex<FenceState>;

#[derive(Default)]
struct FenceState {
    /// The number of the projector that may publish: the one that was opened last.
    turn: u64,
    /// The commit in progress. It stays here if the projector that began it is dropped.
    publishing: Option<Publishing>,
}

/// A projector's right to publish.
pub(super) struct PublishTurn {
    fence: Arc<Fence>,
    /// The turn of this projector. The projector may publish while [`FenceState::turn`] has this value.
    number: u64,
}

impl PublishTurn {
    /// Takes the turn from the projector that holds it, after waiting for that projector's commit in progress.
    pub(super) async fn take(bus: &Bus, input: &str, group: &str) -> Self {
        let address = Arc::as_ptr(bus.backend()).cast::<()>() as usize;
        let fence = {
            let mut fences = FENCES.lock();
            fences.retain(|_, fence| fence.strong_count() > 0);
            let known = fences.entry((address, input.to_owned(), group.to_owned())).or_default();
            known.upgrade().unwrap_or_else(|| {
                let fence = Arc::default();
                *known = Arc::downgrade(&fence);
                fence
            })
        };
        let mut state = fence.lock().await;
        if state.publishing.is_some() {
            // If this commit fails, none of its states are stored, and its inputs stay unacked.
            let _ = state.published().await;
        }
        state.turn += 1;
        let number = state.turn;
        drop(state);
        Self { fence, number }
    }

    /// Publishes a batch, unless another projector has taken the turn.
    pub(super) async fn publish(
        &self,
        backend: &dyn Backend,
        batch: PublishBatch,
    ) -> Result<PublishResult, ProjectorError> {
        let mut state = self.fence.lock().await;
        if state.turn != self.number {
            return Err(ProjectorError::Superseded);
        }
        state.publishing = Some(backend.publish(batch));
        Ok(state.published().await)
    }
}

impl FenceState {
    /// Waits for the commit in progress.
    async fn published(&mut self) -> PublishResult {
        let publishing = &mut self.publishing;
        let result = poll_fn(|context| match publishing {
            Some(publishing) => Pin::new(publishing).poll(context),
            None => unreachable!("called while a commit is in progress"),
        });
        let result = result.await;
        self.publishing = None;
        result
    }
}
