//! The group and the member that a subscription asks for.

use super::event_view::EventFilter;
use crate::delivery::MemberSettings;
use prombus_protocol::{Filter, GroupName, Pattern, Start, SubscribeOptions, TopicError};

/// A group as a subscription asks for it.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// The subscription as written: a topic or a pattern. With `group` it names the group.
    pub subscription: Pattern,
    /// The group's name.
    pub group: GroupName,
    /// More topics and patterns of the group.
    pub topics: Vec<Pattern>,
    /// Selects the events that the members receive.
    pub filter: Option<Filter>,
    /// Where a new group starts.
    pub from: Start,
    /// If this creates the group, the group is deleted after this many milliseconds without members. For an existing group it has
    /// no effect.
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

/// A member as it joins.
#[derive(Clone, Default)]
pub struct MemberOptions {
    /// The window, the lease time and the number of attempts.
    pub settings: MemberSettings,
    /// This member's own filter.
    pub filter: Option<EventFilter>,
    /// Its name in lists, metrics and logs.
    pub name: Option<String>,
    /// Its address, if it is outside this process.
    pub label: Option<String>,
}
