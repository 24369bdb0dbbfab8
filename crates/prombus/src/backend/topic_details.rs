//! A topic with its settings, as operators see it.

use crate::info::TopicInfo;
use crate::settings::{TopicOptions, TopicSettings};

/// A topic and everything that is set about it.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicDetails {
    /// The topic as lists show it.
    pub info: TopicInfo,
    /// The settings in effect: the rules, and what is set about the topic itself.
    pub settings: TopicSettings,
    /// The settings that were made for this topic alone, while the bus was running.
    pub own: TopicOptions,
}
