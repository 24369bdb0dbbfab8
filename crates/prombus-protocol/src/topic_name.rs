//! Topic names: their rules, and a type for valid names.
//!
//! A name has 1 to 255 bytes of `A-Z a-z 0-9 . _ : -`, in non-empty segments separated by dots. A leading `dlq.` does
//! not count for the length, so that every topic can have a dead-letter topic. Patterns are in `pattern.rs`.

use crate::limits::MAX_TOPIC_BYTES;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// The prefix of the names of dead-letter topics.
pub const DEAD_LETTER_PREFIX: &str = "dlq.";

/// A topic name or pattern that breaks the rules.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopicError {
    /// The name is empty.
    #[error("empty topic name: 1 to 255 of A-Z a-z 0-9 . _ : - are allowed")]
    Empty,
    /// The name is too long.
    #[error("topic name of {bytes} bytes: at most 255 are allowed (a leading \"dlq.\" does not count)")]
    TooLong {
        /// The name's length.
        bytes: usize,
    },
    /// The name contains a character that is not allowed.
    #[error("topic name has {character:?} at byte {position}: only A-Z a-z 0-9 . _ : - are allowed")]
    Character {
        /// The character.
        character: char,
        /// The byte position of the character.
        position: usize,
    },
    /// Two dots in a row, or a dot at an end.
    #[error("topic name has an empty segment at byte {position}: segments are separated by single dots")]
    EmptySegment {
        /// The byte position of the empty segment.
        position: usize,
    },
    /// A topic name contains a wildcard, or a pattern has a segment that is only partly a wildcard.
    #[error("{text:?} has a wildcard that is not allowed here: {allowed}")]
    Wildcard {
        /// The name or pattern.
        text: String,
        /// The rule for wildcards.
        allowed: &'static str,
    },
}

/// The problem with a name, in a form that `const` code can create.
#[derive(Clone, Copy)]
pub(crate) enum NameFault {
    Empty,
    TooLong,
    Character(usize),
    EmptySegment(usize),
}

pub(crate) const fn is_name_byte(byte: u8) -> bool {
    NAME_BYTES[byte as usize]
}

const NAME_BYTES: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        allowed[at] = byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
        at += 1;
    }
    allowed
};

const fn counted_bytes(name: &[u8]) -> usize {
    match name {
        [b'd', b'l', b'q', b'.', rest @ ..] => rest.len(),
        _ => name.len(),
    }
}

/// Checks the rules of names. For patterns, `stars` allows the character `*`; the caller checks their segments.
pub(crate) const fn fault_of(name: &[u8], stars: bool) -> Option<NameFault> {
    if name.is_empty() {
        return Some(NameFault::Empty);
    }
    if counted_bytes(name) > MAX_TOPIC_BYTES {
        return Some(NameFault::TooLong);
    }
    let mut at = 0;
    let mut segment_start = 0;
    while at < name.len() {
        let byte = name[at];
        let allowed = is_name_byte(byte) || (stars && byte == b'*');
        if !allowed {
            return Some(NameFault::Character(at));
        }
        if byte == b'.' {
            if at == segment_start {
                return Some(NameFault::EmptySegment(at));
            }
            segment_start = at + 1;
        }
        at += 1;
    }
    if segment_start == name.len() { Some(NameFault::EmptySegment(segment_start)) } else { None }
}

pub(crate) fn describe(fault: NameFault, name: &str) -> TopicError {
    match fault {
        NameFault::Empty => TopicError::Empty,
        NameFault::TooLong => TopicError::TooLong { bytes: counted_bytes(name.as_bytes()) },
        NameFault::EmptySegment(position) => TopicError::EmptySegment { position },
        NameFault::Character(position) => match name.get(position..).and_then(|rest| rest.chars().next()) {
            Some('*') => {
                TopicError::Wildcard { text: name.to_owned(), allowed: "only patterns may contain wildcards" }
            }
            character => TopicError::Character { character: character.unwrap_or('\u{fffd}'), position },
        },
    }
}

/// Checks a topic name without creating a [`Topic`], so nothing is allocated.
///
/// # Errors
/// Says which rule the name breaks.
pub fn check_topic(name: &str) -> Result<(), TopicError> {
    match fault_of(name.as_bytes(), false) {
        None => Ok(()),
        Some(fault) => Err(describe(fault, name)),
    }
}

/// A valid topic name. Cloning it is cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Topic(Arc<str>);

impl Topic {
    /// Checks a name.
    ///
    /// # Errors
    /// Says which rule the name breaks.
    pub fn new(name: impl AsRef<str>) -> Result<Self, TopicError> {
        let name = name.as_ref();
        check_topic(name)?;
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this topic holds dead letters: its name begins with `dlq.`.
    pub fn is_dead_letter(&self) -> bool {
        self.0.starts_with(DEAD_LETTER_PREFIX)
    }

    /// The topic of this topic's dead letters: `dlq.<topic>`. A dead-letter topic has none of its own and returns itself, because its
    /// failed events stay in it.
    #[must_use]
    pub fn dead_letter(&self) -> Self {
        if self.is_dead_letter() {
            return self.clone();
        }
        Self(format!("{DEAD_LETTER_PREFIX}{}", self.0).into())
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AsRef<str> for Topic {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Topic {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq<str> for Topic {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Topic {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl std::str::FromStr for Topic {
    type Err = TopicError;

    fn from_str(name: &str) -> Result<Self, TopicError> {
        Self::new(name)
    }
}

impl TryFrom<String> for Topic {
    type Error = TopicError;

    fn try_from(name: String) -> Result<Self, TopicError> {
        Self::new(name)
    }
}

impl TryFrom<&str> for Topic {
    type Error = TopicError;

    fn try_from(name: &str) -> Result<Self, TopicError> {
        Self::new(name)
    }
}

impl Serialize for Topic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Topic {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Cow::<str>::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leading_dlq_does_not_count_for_the_length() {
        let longest = Topic::new("a".repeat(255)).unwrap();
        assert_eq!(Topic::new("a".repeat(256)), Err(TopicError::TooLong { bytes: 256 }));
        let dead_letters = longest.dead_letter();
        assert_eq!(Topic::new(dead_letters.as_str()), Ok(dead_letters.clone()));
        assert_eq!(dead_letters.dead_letter(), dead_letters);
        assert!(dead_letters.is_dead_letter() && !longest.is_dead_letter());
    }

    #[test]
    fn errors_say_what_is_wrong_and_what_is_allowed() {
        let message = |name: &str| Topic::new(name).unwrap_err().to_string();
        assert_eq!(message(""), "empty topic name: 1 to 255 of A-Z a-z 0-9 . _ : - are allowed");
        assert_eq!(message("a.b c"), "topic name has ' ' at byte 3: only A-Z a-z 0-9 . _ : - are allowed");
        assert_eq!(message("größe"), "topic name has 'ö' at byte 2: only A-Z a-z 0-9 . _ : - are allowed");
        assert!(message("a..b").contains("empty segment at byte 2"));
        assert!(message("a.*").contains("wildcard"));
    }

    #[test]
    fn serde_checks_the_name() {
        assert_eq!(serde_json::from_str::<Topic>("\"a.b\"").unwrap(), "a.b");
        assert_eq!(serde_json::from_str::<Topic>("\"a\\u002eb\"").unwrap(), "a.b");
        assert!(serde_json::from_str::<Topic>("\"a b\"").is_err());
        assert_eq!(serde_json::to_string(&Topic::new("a.b").unwrap()).unwrap(), "\"a.b\"");
    }
}
