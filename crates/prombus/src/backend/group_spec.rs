//! The group and the member that a subscription asks for.

use super::event_view::EventFilter;
use crate::delivery::MemberSettings;
use prombus_protocol::{Filter, GroupName, Pattern, Start, SubscribeOptions, TopicError};

/// A group as a subscription asks for it.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// The subscription as the client wrote it: a topic or a pattern. Together with the group's name it identifies the group.
    pub subscription: Pattern,
    /// The group's name.
    pub group: GroupName,
    /// More topics and patterns that the group reads.
    pub topics: Vec<Pattern>,
    /// Selects the events that the members receive; `None` selects all.
    pub filter: Option<Filter>,
    /// Where a new group starts.
    pub from: Start,
    /// If a new group is created, it is deleted after this many milliseconds without members; `None` means that the default of
    /// the bus applies. Ignored if the group already exists.
    pub expire_ms: Option<u64>,
}

impl GroupSpec {
    /// The group that the options of a subscription ask for. An empty filter is the same as none.
    ///
    /// # Errors
    /// [`TopicError`] when one of the options' topics is not a topic or pattern.
    pub fn from_options(
        subscription: Pattern,
        group: GroupName,
        options: &SubscribeOptions,
    ) -> Result<Self, TopicError> {
        Ok(Self {
            subscription,
            group,
            topics: options.topics.iter().map(Pattern::new).collect::<Result<_, _>>()?,
            filter: options.filter.clone().filter(|filter| !filter.is_empty()),
            from: options.from,
            expire_ms: options.expire_ms,
        })
    }
}

/// The options of a member that joins a group.
#[derive(Clone, Default)]
pub struct MemberOptions {
    /// The maximum number of events in flight (the window), the lease time, and the number of attempts.
    pub settings: MemberSettings,
    /// This member's own filter; `None` accepts all events of the group.
    pub filter: Option<EventFilter>,
    /// Its name in lists, metrics and logs.
    pub name: Option<String>,
    /// Its address, if it is outside this process.
    pub label: Option<String>,
}
