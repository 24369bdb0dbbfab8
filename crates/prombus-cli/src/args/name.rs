//! Names of topics and groups. They are checked before a command connects: a wrong name is a wrong argument.

use prombus_protocol::{GroupNameError, TopicError, check_group_name, check_pattern, check_topic};

/// The name of a topic.
pub fn topic(text: &str) -> Result<String, TopicError> {
    check_topic(text).map(|()| text.to_owned())
}

/// The name of a topic, or a pattern.
pub fn pattern(text: &str) -> Result<String, TopicError> {
    check_pattern(text).map(|()| text.to_owned())
}

/// The name of a group.
pub fn group(text: &str) -> Result<String, GroupNameError> {
    check_group_name(text).map(|()| text.to_owned())
}
