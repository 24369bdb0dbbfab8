//! Options of a publish.

use super::loose::Loose;
use super::{OptionError, check_count, check_length, check_range};
use crate::limits::{
    MAX_CAUSED_BY, MAX_HEADER_NAME_BYTES, MAX_HEADER_VALUE_BYTES, MAX_HEADERS, MAX_KEY_BYTES, MAX_TAG_BYTES,
    MAX_TAGS, MAX_TS_MS,
};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// What a publisher may say beside topic and payload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PublishOptions {
    /// The event's id. A second publish with an id that the topic has adds nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    /// Milliseconds since 1970; the server's time if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts: Option<i64>,
    /// What the event is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Names and values that travel beside the payload.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Labels to filter by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Ids of the events that led to this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caused_by: Vec<Uuid>,
    /// The session or boot of the publisher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sid: Option<Uuid>,
}

impl PublishOptions {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// Names the field, what it is and what is allowed.
    pub fn check(&self) -> Result<(), OptionError> {
        if let Some(ts) = self.ts {
            check_range("ts", ts, 0, MAX_TS_MS)?;
        }
        if let Some(key) = &self.key {
            check_length("key", key, 1, MAX_KEY_BYTES)?;
        }
        check_headers("headers", &self.headers)?;
        check_count("tags", self.tags.len(), MAX_TAGS)?;
        for tag in &self.tags {
            check_length("tags", tag, 1, MAX_TAG_BYTES)?;
        }
        check_count("caused_by", self.caused_by.len(), MAX_CAUSED_BY)
    }

    /// Reads and checks options.
    ///
    /// # Errors
    /// Names the field, what came and what is allowed.
    pub fn from_json(json: &str) -> Result<Self, OptionError> {
        Self::from_loose(Loose::parse(json).map_err(OptionError::unreadable)?)
    }

    pub(crate) fn from_loose(value: Loose<'_>) -> Result<Self, OptionError> {
        let mut options = Self::default();
        let Some(value) = value.into_option() else { return Ok(options) };
        for (name, value) in value.map("opts")? {
            let value = value.into_option();
            match &*name {
                "id" => options.id = value.map(|id| id.uuid("id")).transpose()?,
                "ts" => options.ts = value.map(|ts| ts.whole("ts", 0, MAX_TS_MS)).transpose()?,
                "key" => options.key = value.map(|key| key.text("key")).transpose()?.map(Into::into),
                "headers" => options.headers = value.map(headers_of).transpose()?.unwrap_or_default(),
                "tags" => {
                    let tags = value.map(|tags| tags.list("tags")).transpose()?.unwrap_or_default();
                    options.tags =
                        tags.into_iter().map(|tag| Ok(tag.text("tags")?.into())).collect::<Result<_, _>>()?;
                }
                "caused_by" => {
                    let ids = value.map(|ids| ids.list("caused_by")).transpose()?.unwrap_or_default();
                    options.caused_by =
                        ids.into_iter().map(|id| id.uuid("caused_by")).collect::<Result<_, _>>()?;
                }
                "sid" => options.sid = value.map(|sid| sid.uuid("sid")).transpose()?,
                _ => {}
            }
        }
        options.check()?;
        Ok(options)
    }
}

fn headers_of(value: Loose<'_>) -> Result<BTreeMap<String, String>, OptionError> {
    value
        .map("headers")?
        .into_iter()
        .map(|(name, value)| Ok((name.into_owned(), value.text("headers")?.into_owned())))
        .collect()
}

pub(super) fn check_headers(field: &str, headers: &BTreeMap<String, String>) -> Result<(), OptionError> {
    check_count(field, headers.len(), MAX_HEADERS)?;
    for (name, value) in headers {
        check_length(field, name, 1, MAX_HEADER_NAME_BYTES)?;
        check_length(field, value, 0, MAX_HEADER_VALUE_BYTES)?;
    }
    Ok(())
}

impl<'de> Deserialize<'de> for PublishOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_loose(Loose::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}
