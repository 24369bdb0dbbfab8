//! Filters: which events of its topics a group receives.

use super::publish::check_headers;
use super::untyped::Untyped;
use super::{OptionError, check_length};
use crate::body::Body;
use crate::limits::{MAX_KEY_BYTES, MAX_TAG_BYTES};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// A filter by key, tag and headers. An event must match every condition that is given. An empty filter matches every event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Filter {
    /// The event must have this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The event must have this tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// The event must have all these headers, with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub header: BTreeMap<String, String>,
}

impl Filter {
    /// Whether the filter matches every event.
    pub fn is_empty(&self) -> bool {
        self.key.is_none() && self.tag.is_none() && self.header.is_empty()
    }

    /// Whether the filter matches an event with this key and this stored body. The key is a separate argument because stores have it
    /// without parsing the body.
    pub fn matches(&self, key: Option<&str>, body: &Body<'_>) -> bool {
        self.key.as_deref().is_none_or(|wanted| key == Some(wanted))
            && self.tag.as_deref().is_none_or(|wanted| body.has_tag(wanted))
            && self
                .header
                .iter()
                .all(|(name, wanted)| body.header(name).is_some_and(|value| value == *wanted))
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// Names the field, its value and what is allowed.
    pub fn check(&self) -> Result<(), OptionError> {
        if let Some(key) = &self.key {
            check_length("filter.key", key, 1, MAX_KEY_BYTES)?;
        }
        if let Some(tag) = &self.tag {
            check_length("filter.tag", tag, 1, MAX_TAG_BYTES)?;
        }
        check_headers("filter.header", &self.header)
    }

    pub(crate) fn from_untyped(value: Untyped<'_>) -> Result<Self, OptionError> {
        let mut filter = Self::default();
        for (name, value) in value.map("filter")? {
            let value = value.into_option();
            match &*name {
                "key" => filter.key = value.map(|key| key.text("filter.key")).transpose()?.map(Into::into),
                "tag" => filter.tag = value.map(|tag| tag.text("filter.tag")).transpose()?.map(Into::into),
                "header" => {
                    let fields = value.map(|map| map.map("filter.header")).transpose()?.unwrap_or_default();
                    filter.header = fields
                        .into_iter()
                        .map(|(name, value)| Ok((name.into(), value.text("filter.header")?.into())))
                        .collect::<Result<_, _>>()?;
                }
                _ => {
                    return Err(OptionError::refused("filter", &Untyped::Text(name), "key, tag and header"));
                }
            }
        }
        filter.check()?;
        Ok(filter)
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_untyped(Untyped::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}
