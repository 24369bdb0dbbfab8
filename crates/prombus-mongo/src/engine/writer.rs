//! The state that one commit passes to the next.

use crate::engine::bulk::Plan;
use crate::engine::catalog::Catalog;

/// The leader's catalog, the next fence, and a bulk whose outcome is unknown.
pub(crate) struct Writer {
    pub(crate) catalog: Catalog,
    /// The number of the next fence.
    pub(crate) next_fence: u64,
    /// A commit that was sent and whose outcome is unknown: the number of the [`PendingCommit`](prombus::engine::network::PendingCommit),
    /// and its plan.
    pub(crate) unanswered: Option<(u64, Plan)>,
}

impl Writer {
    pub(crate) fn new(catalog: Catalog, next_fence: u64) -> Self {
        Self { catalog, next_fence, unanswered: None }
    }
}
