//! Options of a publish.

use super::fields::{Ignored, sorted};
use super::untyped::Untyped;
use super::{OptionError, check_count, check_length, check_range};
use crate::event::Addressee;
use crate::group_name::GroupName;
use crate::idempotency_key::id_of_checked_key;
use crate::limits::{
    MAX_CAUSED_BY, MAX_HEADER_NAME_BYTES, MAX_HEADER_VALUE_BYTES, MAX_HEADERS, MAX_KEY_BYTES, MAX_TAG_BYTES,
    MAX_TAGS, MAX_TS_MS,
};
use crate::pattern::Pattern;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Options of a publish, in addition to topic and payload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PublishOptions {
    /// The event's id. A publish with an id that the topic already has adds nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    /// Milliseconds since 1970; the server's time if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts: Option<i64>,
    /// The entity that the event is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Names and values that are stored next to the payload.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Labels to filter by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Ids of the events that caused this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caused_by: Vec<Uuid>,
    /// The id of the publisher's session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sid: Option<Uuid>,
    /// The only group that receives the event. Over a connection, this requires the scope `admin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addressee: Option<Addressee>,
}

/// The names that `opts` of a PUBLISH may have.
pub(crate) const NAMES: [&str; 9] =
    ["id", "ts", "key", "headers", "tags", "caused_by", "sid", "idempotencyKey", "addressee"];
/// The names that `addressee` may have.
const ADDRESSEE_NAMES: [&str; 2] = ["subscription", "group"];

impl PublishOptions {
    /// Whether no option is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// Names the field, its value and what is allowed.
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
        check_count("caused_by", self.caused_by.len(), MAX_CAUSED_BY)?;
        self.addressee.as_ref().map_or(Ok(()), check_addressee)
    }

    /// Reads and checks options. `idempotencyKey` becomes an id ([`id_of_checked_key`]). Unknown fields are ignored.
    ///
    /// # Errors
    /// Names the field, the value and what is allowed.
    pub fn from_json(json: &str) -> Result<Self, OptionError> {
        Self::from_json_noting(json, &mut Ignored::default())
    }

    pub(crate) fn from_json_noting(json: &str, ignored: &mut Ignored) -> Result<Self, OptionError> {
        Self::from_untyped(Untyped::parse(json).map_err(OptionError::unreadable)?, ignored)
    }

    fn from_untyped(value: Untyped<'_>, ignored: &mut Ignored) -> Result<Self, OptionError> {
        let mut options = Self::default();
        let Some(value) = value.into_option() else { return Ok(options) };
        let [id, ts, key, headers, tags, caused_by, sid, idempotency_key, addressee] =
            sorted(value.map("opts")?, &NAMES, ignored)?;
        options.id = id.map(|id| id.uuid("id")).transpose()?;
        options.ts = ts.map(|ts| ts.whole("ts", 0, MAX_TS_MS)).transpose()?;
        options.key = key.map(|key| key.text("key")).transpose()?.map(Into::into);
        options.headers = headers.map(headers_of).transpose()?.unwrap_or_default();
        let tags = tags.map(|tags| tags.list("tags")).transpose()?.unwrap_or_default();
        options.tags = tags.into_iter().map(|tag| Ok(tag.text("tags")?.into())).collect::<Result<_, _>>()?;
        let ids = caused_by.map(|ids| ids.list("caused_by")).transpose()?.unwrap_or_default();
        options.caused_by = ids.into_iter().map(|id| id.uuid("caused_by")).collect::<Result<_, _>>()?;
        options.sid = sid.map(|sid| sid.uuid("sid")).transpose()?;
        options.addressee = addressee.map(|it| addressee_of(it, ignored)).transpose()?;
        if let Some(key) = idempotency_key {
            let key = key.text("idempotencyKey")?;
            if options.id.replace(id_of_checked_key(&key)?).is_some() {
                return Err(OptionError::Exclusive { field: "id", other: "idempotencyKey" });
            }
        }
        options.check()?;
        Ok(options)
    }
}

fn headers_of(value: Untyped<'_>) -> Result<BTreeMap<String, String>, OptionError> {
    value
        .map("headers")?
        .into_iter()
        .map(|(name, value)| Ok((name.into_owned(), value.text("headers")?.into_owned())))
        .collect()
}

fn addressee_of(value: Untyped<'_>, ignored: &mut Ignored) -> Result<Addressee, OptionError> {
    let values = sorted(value.map("addressee")?, &ADDRESSEE_NAMES, ignored)?;
    let [subscription, group] = values.map(|value| value.map(|it| it.text("addressee")).transpose());
    match (subscription?, group?) {
        (Some(subscription), Some(group)) => Ok(Addressee::new(subscription, group)),
        _ => Err(OptionError::NotAllowed {
            field: "addressee".to_owned(),
            got: "an object without both names".to_owned(),
            allowed: "{\"subscription\": a topic or pattern, \"group\": the name of a group}",
        }),
    }
}

fn check_addressee(addressee: &Addressee) -> Result<(), OptionError> {
    if let Err(source) = Pattern::new(&addressee.subscription) {
        return Err(OptionError::Topic { field: "addressee".to_owned(), source });
    }
    if GroupName::new(&addressee.group).is_err() {
        return Err(OptionError::NotAllowed {
            field: "addressee".to_owned(),
            got: format!("the group {:?}", super::fields::shown(&addressee.group)),
            allowed: "the name of a group",
        });
    }
    Ok(())
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
        let value = Untyped::deserialize(deserializer)?;
        Self::from_untyped(value, &mut Ignored::default()).map_err(serde::de::Error::custom)
    }
}
