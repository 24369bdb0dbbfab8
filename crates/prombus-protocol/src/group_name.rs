//! Names of consumer groups.

use crate::limits::MAX_GROUP_BYTES;
use crate::topic_name::is_name_byte;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// A group name that breaks the rules.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GroupNameError {
    /// The name is empty.
    #[error("empty group name: 1 to 255 of A-Z a-z 0-9 . _ : - are allowed")]
    Empty,
    /// The name is too long.
    #[error("group name of {bytes} bytes: at most 255 are allowed")]
    TooLong {
        /// The name's length.
        bytes: usize,
    },
    /// The name contains a character that is not allowed.
    #[error("group name has {character:?} at byte {position}: only A-Z a-z 0-9 . _ : - are allowed")]
    Character {
        /// The character.
        character: char,
        /// The byte position of the character.
        position: usize,
    },
    /// A name that cannot be part of a URL path.
    #[error("a group cannot be named {0:?}: HTTP clients remove this segment from URL paths")]
    DotSegment(String),
}

/// Checks a group name without creating a [`GroupName`], so nothing is allocated.
///
/// # Errors
/// Says which rule the name breaks.
pub fn check_group_name(name: &str) -> Result<(), GroupNameError> {
    if name.is_empty() {
        return Err(GroupNameError::Empty);
    }
    if name.len() > MAX_GROUP_BYTES {
        return Err(GroupNameError::TooLong { bytes: name.len() });
    }
    match name.char_indices().find(|(_, character)| !character.is_ascii() || !is_name_byte(*character as u8))
    {
        None => Ok(()),
        Some((position, character)) => Err(GroupNameError::Character { character, position }),
    }
}

/// The name of a consumer group: 1 to 255 bytes of `A-Z a-z 0-9 . _ : -`. Cloning it is cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupName(Arc<str>);

impl GroupName {
    /// Checks a name.
    ///
    /// # Errors
    /// Says which rule the name breaks.
    pub fn new(name: impl AsRef<str>) -> Result<Self, GroupNameError> {
        let name = name.as_ref();
        check_group_name(name)?;
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Checks that a group with this name may be created. Browsers and `fetch` resolve the segments `.` and `..`, even written as
    /// `%2E`, before they send a path, so the routes of such a group could not be reached.
    ///
    /// # Errors
    /// [`GroupNameError::DotSegment`].
    pub fn check_new(&self) -> Result<(), GroupNameError> {
        match self.as_str() {
            "." | ".." => Err(GroupNameError::DotSegment(self.to_string())),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AsRef<str> for GroupName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for GroupName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl std::str::FromStr for GroupName {
    type Err = GroupNameError;

    fn from_str(name: &str) -> Result<Self, GroupNameError> {
        Self::new(name)
    }
}

impl Serialize for GroupName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for GroupName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Cow::<str>::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_names_may_contain_dots_anywhere() {
        for name in ["ops", "a..b", ".", "A:b_c-9"] {
            assert_eq!(GroupName::new(name).unwrap().as_str(), name);
        }
        for (name, is_good) in [(".", false), ("..", false), ("...", true), ("a", true)] {
            assert_eq!(GroupName::new(name).unwrap().check_new().is_ok(), is_good, "{name}");
        }
        assert_eq!(GroupName::new(""), Err(GroupNameError::Empty));
        assert_eq!(GroupName::new("a".repeat(256)), Err(GroupNameError::TooLong { bytes: 256 }));
        assert_eq!(GroupName::new("aé"), Err(GroupNameError::Character { character: 'é', position: 1 }));
    }
}
