//! A JSON value without a fixed type, so that an error about a wrong type can name the field, which serde's messages do not.

use super::error::OptionError;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use uuid::Uuid;

/// A JSON value; borrowed where possible.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Untyped<'a> {
    Null,
    Bool(bool),
    Integer(i64),
    /// Also whole numbers that do not fit an `i64`.
    Float(f64),
    Text(Cow<'a, str>),
    List(Vec<Untyped<'a>>),
    /// In the order of the text; if a name occurs twice, the last value counts.
    Map(Vec<(Cow<'a, str>, Untyped<'a>)>),
}

impl<'a> Untyped<'a> {
    /// Parses a text that is known to be JSON.
    pub(crate) fn parse(json: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// Converts `null` to `None`.
    pub(crate) fn into_option(self) -> Option<Self> {
        match self {
            Untyped::Null => None,
            other => Some(other),
        }
    }

    /// Whether two values are equal: `1000` and `1e3` are.
    pub(crate) fn means(&self, other: &Self) -> bool {
        match (self, other) {
            (Untyped::Integer(whole), Untyped::Float(float))
            | (Untyped::Float(float), Untyped::Integer(whole)) => *whole as f64 == *float,
            _ => self == other,
        }
    }

    fn refused(&self, field: &str, allowed: &'static str) -> OptionError {
        OptionError::refused(field, self, allowed)
    }

    pub(crate) fn text(self, field: &str) -> Result<Cow<'a, str>, OptionError> {
        match self {
            Untyped::Text(text) => Ok(text),
            other => Err(other.refused(field, "a string")),
        }
    }

    pub(crate) fn bool(self, field: &str) -> Result<bool, OptionError> {
        match self {
            Untyped::Bool(flag) => Ok(flag),
            other => Err(other.refused(field, "true or false")),
        }
    }

    pub(crate) fn uuid(self, field: &str) -> Result<Uuid, OptionError> {
        let parsed = match &self {
            Untyped::Text(text) => Uuid::try_parse(text).ok(),
            _ => None,
        };
        parsed.ok_or_else(|| OptionError::NotUuid { field: field.to_owned(), got: self.to_string() })
    }

    /// A whole number in a range; `1000.0` and `1e3` are whole.
    pub(crate) fn whole(self, field: &str, least: i64, most: i64) -> Result<i64, OptionError> {
        let number = match self {
            Untyped::Integer(number) => Some(number),
            // Above 2^53 a float is not exact, so it does not count as a whole number.
            Untyped::Float(number) if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 => {
                Some(number as i64)
            }
            _ => None,
        };
        match number {
            Some(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(OptionError::NotInRange { field: field.to_owned(), got: self.to_string(), least, most }),
        }
    }

    pub(crate) fn list(self, field: &str) -> Result<Vec<Untyped<'a>>, OptionError> {
        match self {
            Untyped::List(items) => Ok(items),
            other => Err(other.refused(field, "a list")),
        }
    }

    pub(crate) fn map(self, field: &str) -> Result<Vec<(Cow<'a, str>, Untyped<'a>)>, OptionError> {
        match self {
            Untyped::Map(fields) => Ok(fields),
            other => Err(other.refused(field, "an object")),
        }
    }
}

/// The value as messages show it: JSON, cut if it is long.
impl fmt::Display for Untyped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 80;
        match self {
            Untyped::Null => f.write_str("null"),
            Untyped::Bool(flag) => write!(f, "{flag}"),
            Untyped::Integer(number) => write!(f, "{number}"),
            Untyped::Float(number) => write!(f, "{number:?}"),
            Untyped::Text(text) => match text.char_indices().nth(LONGEST) {
                None => write!(f, "{text:?}"),
                Some((cut, _)) => write!(f, "{:?}…", &text[..cut]),
            },
            Untyped::List(_) => f.write_str("a list"),
            Untyped::Map(_) => f.write_str("an object"),
        }
    }
}

struct UntypedVisitor;

impl<'de> Deserialize<'de> for Untyped<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UntypedVisitor)
    }
}

impl<'de> Visitor<'de> for UntypedVisitor {
    type Value = Untyped<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Untyped::Null)
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(Untyped::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Self::Value, E> {
        Ok(Untyped::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Untyped::Integer(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(number).map_or(Untyped::Float(number as f64), Untyped::Integer))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Untyped::Float(number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Untyped::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Untyped::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(Untyped::Text(Cow::Owned(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Untyped::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some((Name(name), value)) = map.next_entry()? {
            fields.push((name, value));
        }
        Ok(Untyped::Map(fields))
    }
}

/// A field's name, borrowed where possible (serde's own `Cow` never borrows here).
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Untyped::deserialize(deserializer)? {
            Untyped::Text(text) => Ok(Name(text)),
            other => Err(serde::de::Error::custom(format_args!("{other} is not a field name"))),
        }
    }
}
