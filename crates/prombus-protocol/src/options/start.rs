//! The place where a group starts, or to which it is moved.

use super::OptionError;
use super::fields::{Ignored, sorted};
use super::untyped::Untyped;
use crate::limits::MAX_TS_MS;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// A place in a topic. In JSON it is `"latest"`, `"earliest"`, `{"from":"ts","ts":…}` or `{"from":"afterId","afterId":…}`. The object
/// may omit `from` if it has only one of `ts` and `afterId`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Start {
    /// After the newest event.
    #[default]
    Latest,
    /// At the oldest event that is kept.
    Earliest,
    /// At the first event with this `ts` or a later one, in milliseconds since 1970.
    Ts(i64),
    /// After the event with this id.
    AfterId(Uuid),
}

const FORMS: &str = "\"latest\", \"earliest\", \"ts\" or \"afterId\"";

impl Start {
    /// The name of the form: `latest`, `earliest`, `ts` or `afterId`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Latest => "latest",
            Self::Earliest => "earliest",
            Self::Ts(_) => "ts",
            Self::AfterId(_) => "afterId",
        }
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// Names the field, its value and what is allowed.
    pub fn check(&self) -> Result<(), OptionError> {
        match self {
            Self::Ts(ts) => super::check_range("ts", *ts, 0, MAX_TS_MS),
            _ => Ok(()),
        }
    }

    /// The start that `from` and the fields `ts` and `afterId` describe. Without `from`, it is [`Start::Latest`]. A `ts` or `afterId` that
    /// `from` does not use is ignored.
    pub(crate) fn from_parts(
        from: Option<Untyped<'_>>,
        ts: Option<Untyped<'_>>,
        after_id: Option<Untyped<'_>>,
        ignored: &mut Ignored,
    ) -> Result<Self, OptionError> {
        let missing = |field: &str, needed_by| OptionError::Missing { field: field.to_owned(), needed_by };
        let Some(from) = from else { return Ok(Self::Latest) };
        if let (Untyped::Map(_), None, None) = (&from, &ts, &after_id) {
            return Self::from_untyped("from", from, ignored);
        }
        let name = match &from {
            Untyped::Text(name) => &**name,
            _ => "",
        };
        match name {
            "latest" => Ok(Self::Latest),
            "earliest" => Ok(Self::Earliest),
            "ts" => Ok(Self::Ts(ts.ok_or_else(|| missing("ts", "ts"))?.whole("ts", 0, MAX_TS_MS)?)),
            "afterId" => {
                let id = after_id.ok_or_else(|| missing("afterId", "afterId"))?;
                Ok(Self::AfterId(id.uuid("afterId")?))
            }
            _ => Err(OptionError::refused("from", &from, FORMS)),
        }
    }

    /// The start that a field such as SEEK's `to` describes: either its value alone, or the value `"ts"` or `"afterId"` with the field of
    /// that name next to it.
    pub(crate) fn from_field(
        field: &str,
        value: Untyped<'_>,
        ts: Option<Untyped<'_>>,
        after_id: Option<Untyped<'_>>,
        ignored: &mut Ignored,
    ) -> Result<Self, OptionError> {
        match &value {
            Untyped::Text(name) if matches!(&**name, "ts" | "afterId") => {
                Self::from_parts(Some(value), ts, after_id, ignored)
            }
            _ => Self::from_untyped(field, value, ignored),
        }
    }

    /// The start that the value of a single field describes.
    pub(crate) fn from_untyped(
        field: &str,
        value: Untyped<'_>,
        ignored: &mut Ignored,
    ) -> Result<Self, OptionError> {
        let allowed = "\"latest\", \"earliest\", {\"ts\": …} or {\"afterId\": …}";
        let fields = match value {
            Untyped::Text(name) if name == "latest" => return Ok(Self::Latest),
            Untyped::Text(name) if name == "earliest" => return Ok(Self::Earliest),
            Untyped::Map(fields) => fields,
            other => return Err(OptionError::refused(field, &other, allowed)),
        };
        let [from, ts, after_id] = sorted(fields, &["from", "ts", "afterId"], ignored)?;
        let clear = match (&from, &ts, &after_id) {
            (Some(_), ..) => from,
            (None, Some(_), None) => Some(Untyped::Text("ts".into())),
            (None, None, Some(_)) => Some(Untyped::Text("afterId".into())),
            _ => return Err(OptionError::refused(field, &Untyped::Map(Vec::new()), allowed)),
        };
        Self::from_parts(clear, ts, after_id, ignored)
    }
}

impl Serialize for Start {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if matches!(self, Self::Latest | Self::Earliest) {
            return serializer.serialize_str(self.name());
        }
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("from", self.name())?;
        match self {
            Self::Ts(ts) => map.serialize_entry("ts", ts)?,
            Self::AfterId(id) => map.serialize_entry("afterId", id)?,
            Self::Latest | Self::Earliest => {}
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Start {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Untyped::deserialize(deserializer)?;
        Self::from_untyped("from", value, &mut Ignored::default()).map_err(serde::de::Error::custom)
    }
}
