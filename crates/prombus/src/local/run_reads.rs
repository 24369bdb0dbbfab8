//! Decides on which thread reads run: not on an async thread if they read files.

use crate::engine::{Engine, off_async_threads};
use crate::error::ReadError;

/// Runs reads to completion. If the engine reads local files, they run on a thread that may be blocked. Otherwise they run in the
/// calling task, where they wait for the network without blocking a thread.
///
/// # Errors
/// The errors of `reads`; a panic in them may become [`ReadError::Failed`].
pub(super) async fn run_reads<T, E>(
    engine: &dyn Engine,
    reads: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<ReadError> + Send + 'static,
{
    if !engine.capabilities().reads_locally {
        return reads.await;
    }
    off_async_threads(move |may_block| may_block.block_on(reads)).await
}
