//! Patterns over topic names: `*` matches one whole segment, `**` any number of segments, including none.

use crate::topic_name::{DEAD_LETTER_PREFIX, Topic, TopicError, describe, fault_of};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Checks a pattern without creating a [`Pattern`], so nothing is allocated. A topic name is a pattern too.
///
/// # Errors
/// Says which rule the pattern breaks.
pub fn check_pattern(text: &str) -> Result<(), TopicError> {
    if let Some(fault) = fault_of(text.as_bytes(), true) {
        return Err(describe(fault, text));
    }
    // Most patterns on the wire are topic names.
    if !text.contains('*') {
        return Ok(());
    }
    if text.split('.').all(|segment| is_wildcard(segment) || !segment.contains('*')) {
        return Ok(());
    }
    Err(TopicError::Wildcard {
        text: text.to_owned(),
        allowed: "* matches one whole segment, ** any number of segments",
    })
}

fn is_wildcard(segment: &str) -> bool {
    matches!(segment, "*" | "**")
}

/// A topic name in which whole segments may be `*` (one segment) or `**` (any number of segments, including none).
///
/// Topics of dead letters match only patterns that begin with `dlq.`: a subscriber of `**` wants events, not the failures of other
/// consumers.
///
/// ```
/// use prombus_protocol::Pattern;
///
/// let pattern = Pattern::new("heartbeat.**")?;
/// assert!(pattern.matches("heartbeat.received"));
/// assert!(!Pattern::new("**")?.matches("dlq.heartbeat.received"));
/// # Ok::<(), prombus_protocol::TopicError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern(Arc<str>);

impl Pattern {
    /// Checks a pattern.
    ///
    /// # Errors
    /// Says which rule the pattern breaks.
    pub fn new(text: impl AsRef<str>) -> Result<Self, TopicError> {
        let text = text.as_ref();
        check_pattern(text)?;
        Ok(Self(text.into()))
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The one topic that this pattern matches, if it has no wildcard.
    pub fn as_topic(&self) -> Option<Topic> {
        Topic::new(self.as_str()).ok()
    }

    /// Whether the pattern matches a topic name. The time grows at most with the segments of the pattern times the segments of the topic;
    /// nothing is allocated.
    pub fn matches(&self, topic: &str) -> bool {
        if topic.starts_with(DEAD_LETTER_PREFIX) && !self.0.starts_with(DEAD_LETTER_PREFIX) {
            return false;
        }
        matches_segments(self.as_str(), topic)
    }
}

/// The first segment, and the rest after its dot.
fn cut(text: &str) -> (&str, Option<&str>) {
    match text.split_once('.') {
        Some((segment, rest)) => (segment, Some(rest)),
        None => (text, None),
    }
}

/// Greedy matching: a `**` first matches nothing, and on a mismatch the last `**` takes one more segment. An earlier `**` never has
/// to be tried again, because the later one can take every segment that the earlier one could take.
fn matches_segments(pattern: &str, topic: &str) -> bool {
    let (mut pattern, mut topic) = (Some(pattern), Some(topic));
    let mut last_any: Option<(Option<&str>, Option<&str>)> = None;
    loop {
        match pattern.map(cut) {
            Some(("**", None)) => return true,
            Some(("**", rest)) => {
                last_any = Some((rest, topic));
                pattern = rest;
                continue;
            }
            Some((wanted, rest)) => {
                if let Some((segment, topic_rest)) = topic.map(cut)
                    && (wanted == "*" || wanted == segment)
                {
                    (pattern, topic) = (rest, topic_rest);
                    continue;
                }
            }
            None if topic.is_none() => return true,
            None => {}
        }
        let Some((after_any, Some(taken_from))) = last_any else { return false };
        let (_, rest) = cut(taken_from);
        last_any = Some((after_any, rest));
        (pattern, topic) = (after_any, rest);
    }
}

impl From<Topic> for Pattern {
    fn from(topic: Topic) -> Self {
        Self(topic.as_str().into())
    }
}

impl std::str::FromStr for Pattern {
    type Err = TopicError;

    fn from_str(text: &str) -> Result<Self, TopicError> {
        Self::new(text)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AsRef<str> for Pattern {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Cow::<str>::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries every way to match.
    fn naive(pattern: &[&str], topic: &[&str]) -> bool {
        match (pattern, topic) {
            ([], []) => true,
            (["**", rest @ ..], _) => (0..=topic.len()).any(|taken| naive(rest, &topic[taken..])),
            ([wanted, rest @ ..], [segment, others @ ..]) => {
                (*wanted == "*" || wanted == segment) && naive(rest, others)
            }
            _ => false,
        }
    }

    fn all_of(alphabet: &[&str], longest: usize) -> Vec<String> {
        let mut all: Vec<String> = alphabet.iter().map(ToString::to_string).collect();
        let mut newest = all.clone();
        for _ in 1..longest {
            newest = newest.iter().flat_map(|a| alphabet.iter().map(move |b| format!("{a}.{b}"))).collect();
            all.extend_from_slice(&newest);
        }
        all
    }

    #[test]
    fn greedy_matching_agrees_with_trying_all_ways() {
        let topics = all_of(&["a", "b"], 5);
        for pattern in all_of(&["a", "b", "*", "**"], 4) {
            let parts: Vec<_> = pattern.split('.').collect();
            let compiled = Pattern::new(&pattern).unwrap();
            for topic in &topics {
                let expected = naive(&parts, &topic.split('.').collect::<Vec<_>>());
                assert_eq!(compiled.matches(topic), expected, "{pattern} on {topic}");
            }
        }
    }

    #[test]
    fn many_wildcards_do_not_take_exponential_time() {
        let pattern = Pattern::new(format!("{}b", "**.a.".repeat(50))).unwrap();
        let topic = vec!["a"; 127].join(".");
        assert!(!pattern.matches(&topic));
    }

    #[test]
    fn a_wildcard_is_a_whole_segment() {
        for text in ["a*", "a.b*", "***", "*a.b", "a.**b"] {
            assert!(matches!(Pattern::new(text), Err(TopicError::Wildcard { .. })), "{text}");
        }
        assert_eq!(Pattern::new("a.b").unwrap().as_topic().unwrap(), "a.b");
        assert_eq!(Pattern::new("a.*").unwrap().as_topic(), None);
    }
}
