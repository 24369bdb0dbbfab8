//! Selects the events that are delivered to a member: those that are not addressed to another group, and pass both the group's
//! filter and the member's own filter.

use crate::backend::{EventFilter, EventView};
use crate::engine::StoredEvent;
use prombus_protocol::{Addressee, Body, Filter, Topic};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The group, its filter, and the member's own filter.
pub(super) struct MemberFilter {
    pub(super) addressee: Addressee,
    pub(super) group: Option<Filter>,
    pub(super) own: Option<EventFilter>,
}

impl MemberFilter {
    pub(super) fn is_any(&self) -> bool {
        self.group.is_some() || self.own.is_some()
    }

    /// Whether an event is meant for the group and passes both filters. If the member's filter panics, the event counts as passed, so that no
    /// event is lost.
    #[inline]
    pub(super) fn passes(&self, topic: &Topic, event: &StoredEvent<'_>) -> bool {
        let body = Body::new(event.body);
        if body.is_addressed() && body.addressee().is_none_or(|addressee| addressee != self.addressee) {
            return false;
        }
        let key = || event.key.and_then(|key| std::str::from_utf8(key).ok());
        if self.group.as_ref().is_some_and(|filter| !filter.matches(key(), &body)) {
            return false;
        }
        self.own.as_ref().is_none_or(|filter| {
            let passes = catch_unwind(AssertUnwindSafe(|| filter(&EventView::new(topic, event))));
            passes.unwrap_or_else(|_| {
                tracing::error!("the filter of a subscription to {topic} panicked at seq {}", event.seq);
                true
            })
        })
    }
}
