//! Reads and writes the lease record, with a time limit.

use super::lease_machine::LeaseStep;
use crate::box_future::BoxFuture;
use crate::engine::{LeaseError, LeaseRecord, SharedStore};
use std::sync::Arc;
use std::time::Duration;

/// The read or write in progress, if any.
#[derive(Default)]
pub(super) struct LeaseCall(Option<BoxFuture<'static, LeaseAnswer>>);

pub(super) enum LeaseAnswer {
    Read(Result<Option<LeaseRecord>, LeaseError>),
    Set(Result<bool, LeaseError>),
}

impl LeaseCall {
    /// Starts the read or write of a step. Does nothing for the other steps.
    pub(super) fn start(&mut self, step: LeaseStep, store: Arc<dyn SharedStore>, limit: Duration) {
        match step {
            LeaseStep::Read => {
                self.0 =
                    Some(Box::pin(
                        async move { LeaseAnswer::Read(within(limit, store.lease().read()).await) },
                    ));
            }
            LeaseStep::CompareAndSet { expected, record } => {
                self.0 = Some(Box::pin(async move {
                    LeaseAnswer::Set(within(limit, store.lease().compare_and_set(expected, record)).await)
                }));
            }
            LeaseStep::WaitUntil(_) | LeaseStep::Stopped => {}
        }
    }

    /// Waits for the response of the call in progress; waits indefinitely if there is none. Cancel-safe: if this
    /// future is dropped, the next one waits for the same call.
    pub(super) async fn answer(&mut self) -> LeaseAnswer {
        let Some(call) = &mut self.0 else { return std::future::pending().await };
        let answer = call.await;
        self.0 = None;
        answer
    }
}

impl LeaseAnswer {
    pub(super) fn error(&self) -> Option<&LeaseError> {
        match self {
            Self::Read(read) => read.as_ref().err(),
            Self::Set(set) => set.as_ref().err(),
        }
    }
}

async fn within<T>(limit: Duration, call: BoxFuture<'_, Result<T, LeaseError>>) -> Result<T, LeaseError> {
    let late = |_| Err(LeaseError(format!("no response within {} ms", limit.as_millis())));
    tokio::time::timeout(limit, call).await.unwrap_or_else(late)
}
