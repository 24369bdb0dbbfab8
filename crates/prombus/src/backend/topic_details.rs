//! A topic with its settings, as operators see it.

use crate::info::TopicInfo;
use crate::settings::{TopicOptions, TopicSettings};

/// A topic and its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicDetails {
    /// The topic as lists show it.
    pub info: TopicInfo,
    /// The settings in effect: the rules, overridden by the topic's own settings.
    pub settings: TopicSettings,
    /// The topic's own settings, which [`Backend::set_topic`](crate::Backend::set_topic) stored.
    pub own: TopicOptions,
}
