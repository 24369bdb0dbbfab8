//! Which events a member wants: those that pass the group's filter and its own.

use crate::backend::{EventFilter, EventView};
use crate::engine::StoredEvent;
use prombus_protocol::{Body, Filter, Topic};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The filter of the group, and the member's own.
pub(super) struct MemberFilter {
    pub(super) group: Option<Filter>,
    pub(super) own: Option<EventFilter>,
}

impl MemberFilter {
    pub(super) fn is_any(&self) -> bool {
        self.group.is_some() || self.own.is_some()
    }

    /// Whether the group and the member want an event. A filter that panics wants it: better delivered than lost.
    #[inline]
    pub(super) fn wants(&self, topic: &Topic, event: &StoredEvent<'_>) -> bool {
        let key = || event.key.and_then(|key| std::str::from_utf8(key).ok());
        if self.group.as_ref().is_some_and(|filter| !filter.matches(key(), &Body::new(event.body))) {
            return false;
        }
        self.own.as_ref().is_none_or(|filter| {
            let answer = catch_unwind(AssertUnwindSafe(|| filter(&EventView::new(topic, event))));
            answer.unwrap_or_else(|_| {
                tracing::error!("the filter of a subscription to {topic} panicked at seq {}", event.seq);
                true
            })
        })
    }
}
