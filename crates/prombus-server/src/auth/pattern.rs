//! Patterns against patterns.

use prombus_protocol::Pattern;

/// Whether every topic that `inner` matches is matched by `outer`.
pub(super) fn covers(outer: &Pattern, inner: &Pattern) -> bool {
    inner.as_topic().is_some_and(|topic| outer.matches(topic.as_str()))
}

/// Whether some topic is matched by both.
pub(super) fn overlaps(_one: &Pattern, _other: &Pattern) -> bool {
    true
}
