//! Parses a whole event record in the body of a publish (`envelope=1`), in the format that `/export` writes.

use super::ApiError;
use super::fields::{self, IgnoredNames};
use prombus_protocol::names::{Found, find};
use prombus_protocol::{ErrorCode, PublishOptions, RawValue, Topic};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::error::Category;
use std::borrow::Cow;
use std::fmt;

/// The fields of a record. `seq` and `partition` are accepted and ignored: the server assigns the seq.
const NAMES: [&str; 12] = [
    "payload",
    "topic",
    "id",
    "ts",
    "key",
    "headers",
    "tags",
    "caused_by",
    "sid",
    "addressee",
    "seq",
    "partition",
];
const PAYLOAD: usize = 0;
const TOPIC: usize = 1;
/// The indexes in [`NAMES`] of fields that are publish options.
const OPTIONS: std::ops::RangeInclusive<usize> = 2..=9;

/// The unparsed values of [`NAMES`].
type Values<'a> = [Option<&'a RawValue>; NAMES.len()];

/// Splits a record into payload and options. The defaults apply to fields that the record does not have.
pub(super) fn open<'a>(
    json: &'a [u8],
    topic: &Topic,
    defaults: &PublishOptions,
    ignored: &mut IgnoredNames,
) -> Result<(&'a RawValue, PublishOptions), ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let read = RecordFields { ignored }.deserialize(&mut deserializer);
    let values = read.and_then(|values| deserializer.end().map(|()| values)).map_err(|error| {
        let code = match error.classify() {
            Category::Data => ErrorCode::BadRequest,
            Category::Io | Category::Syntax | Category::Eof => ErrorCode::BadJson,
        };
        ApiError::new(code, format!("not a record {{\"payload\": …}}: {error}"))
    })?;
    let missing = || ApiError::bad_request("not a record {\"payload\": …}: \"payload\" is missing");
    let payload = values[PAYLOAD].ok_or_else(missing)?;
    check_topic(values[TOPIC], topic)?;
    let options = OPTIONS.filter_map(|at| Some((NAMES[at], values[at]?.get().to_owned())));
    let own = PublishOptions::from_json(&fields::object(&options.collect::<Vec<_>>()))?;
    let mut headers = defaults.headers.clone();
    headers.extend(own.headers);
    let options = PublishOptions {
        id: own.id.or(defaults.id),
        ts: own.ts.or(defaults.ts),
        key: own.key.or_else(|| defaults.key.clone()),
        headers,
        tags: if own.tags.is_empty() { defaults.tags.clone() } else { own.tags },
        caused_by: if own.caused_by.is_empty() { defaults.caused_by.clone() } else { own.caused_by },
        sid: own.sid.or(defaults.sid),
        addressee: own.addressee.or_else(|| defaults.addressee.clone()),
    };
    Ok((payload, options))
}

fn check_topic(value: Option<&RawValue>, topic: &Topic) -> Result<(), ApiError> {
    let Some(value) = value else { return Ok(()) };
    let other: Option<Cow<'_, str>> =
        serde_json::from_str(value.get()).map_err(|_| ApiError::bad_request("\"topic\" must be a string"))?;
    match other {
        Some(other) if other != topic.as_str() => {
            let message =
                format!("the record's \"topic\" is {other:?}, but the path names {:?}", topic.as_str());
            Err(ApiError::bad_request(message))
        }
        _ => Ok(()),
    }
}

/// Reads the fields of an object.
struct RecordFields<'i> {
    ignored: &'i mut IgnoredNames,
}

impl<'de> DeserializeSeed<'de> for RecordFields<'_> {
    type Value = Values<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RecordFields<'_> {
    type Value = Values<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut values = Values::default();
        while let Some((name, value)) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
            match find(&name, &NAMES) {
                Found::Known(at) => match values[at] {
                    Some(other) if !fields::is_same_json(other.get(), value.get()) => {
                        return Err(A::Error::custom(fields::differing(NAMES[at], &name).message));
                    }
                    _ => values[at] = Some(value),
                },
                Found::Near(meant) => return Err(A::Error::custom(fields::mistyped("field", &name, meant))),
                Found::Unknown => self.ignored.add(&name),
            }
        }
        Ok(values)
    }
}
