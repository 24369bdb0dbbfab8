//! Matches the names in query strings and bodies against the known names.
//!
//! Both spellings of a known name (camelCase and snake_case) are accepted. A near miss is an error with a suggestion, because a
//! user who mistypes an option believes that it applies. Other unknown names are ignored, and the response to an operation lists
//! them.

use super::ApiError;
use prombus_protocol::names::{self, Found, find};
use prombus_protocol::{RawValue, put_string};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

/// Longer texts are truncated in messages and lists.
const SHOWN_CHARS_MAX: usize = 80;
/// Maximum number of ignored names that a response lists.
const IGNORED_MAX: usize = 32;

/// Unknown names in a request, which the response lists.
pub(super) type IgnoredNames = names::IgnoredNames<IGNORED_MAX, SHOWN_CHARS_MAX>;

/// Ignored names in the order in which a response lists them.
pub(super) fn in_order(ignored: &IgnoredNames) -> BTreeSet<&str> {
    ignored.names().iter().map(String::as_str).collect()
}

/// The known fields of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) names: &'static [&'static str],
    /// Fields whose value may be an object, with its shape.
    pub(super) nested: &'static [(&'static str, Shape)],
}

impl Shape {
    pub(super) const fn flat(names: &'static [&'static str]) -> Self {
        Self { names, nested: &[] }
    }
}

/// The known name that `name` is a spelling of; `None` if it is not known.
pub(super) fn known<'a>(what: &str, name: &str, names: &[&'a str]) -> Result<Option<&'a str>, ApiError> {
    match find(name, names) {
        Found::Known(at) => Ok(Some(names[at])),
        Found::Near(meant) => Err(ApiError::bad_request(mistyped(what, name, meant))),
        Found::Unknown => Ok(None),
    }
}

pub(super) fn mistyped(what: &str, name: &str, meant: &str) -> String {
    format!("unknown {what} {:?}: did you mean {meant:?}?", shown(name))
}

pub(super) fn differing(one: &str, other: &str) -> ApiError {
    let (one, other) = (shown(one), shown(other));
    if one == other {
        return ApiError::bad_request(format!("{one:?} is given twice with different values"));
    }
    ApiError::bad_request(format!("{one:?} and {other:?} are the same name with different values"))
}

/// The known fields of an object, in the spelling of the shape. Unknown names are added to `ignored`. `None`: not an object.
pub(super) fn canonical(
    json: &str,
    shape: &Shape,
    ignored: &mut IgnoredNames,
) -> Result<Option<Vec<(&'static str, String)>>, ApiError> {
    let Ok(Object(given)) = serde_json::from_str::<Object<'_>>(json) else { return Ok(None) };
    let mut kept: Vec<(&'static str, Cow<'_, str>, String)> = Vec::new();
    for (name, value) in given {
        let Some(meant) = known("field", &name, shape.names)? else {
            ignored.add(&name);
            continue;
        };
        let nested = shape.nested.iter().find(|(of, _)| *of == meant);
        let nested = nested.map(|(_, shape)| canonical(value.get(), shape, ignored)).transpose()?;
        let value = nested.flatten().map_or_else(|| value.get().to_owned(), |fields| object(&fields));
        match kept.iter().find(|(known, ..)| *known == meant) {
            Some((_, spelling, other)) if !is_same_json(other, &value) => {
                return Err(differing(spelling, &name));
            }
            Some(_) => {}
            None => kept.push((meant, name, value)),
        }
    }
    Ok(Some(kept.into_iter().map(|(name, _, value)| (name, value)).collect()))
}

/// Fields as a JSON object.
pub(super) fn object(fields: &[(&str, String)]) -> String {
    let mut json = vec![b'{'];
    for (at, (name, value)) in fields.iter().enumerate() {
        if at > 0 {
            json.push(b',');
        }
        put_string(&mut json, name);
        json.push(b':');
        json.extend_from_slice(value.as_bytes());
    }
    json.push(b'}');
    String::from_utf8_lossy(&json).into_owned()
}

/// Whether two JSON texts have the same value.
pub(super) fn is_same_json(one: &str, other: &str) -> bool {
    let parsed = |text| serde_json::from_str::<Value>(text).ok();
    one == other || parsed(one).is_some_and(|one| Some(one) == parsed(other))
}

/// The text, truncated for an error message.
pub(super) fn shown(text: &str) -> &str {
    names::shown(text, SHOWN_CHARS_MAX)
}

/// The fields of an object in their order: unescaped names and unparsed values.
struct Object<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(entry) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
                    fields.push(entry);
                }
                Ok(Object(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INNER: Shape = Shape::flat(&["afterId", "ts"]);
    const SHAPE: Shape = Shape { names: &["to", "delay_ms", "reason"], nested: &[("to", INNER)] };

    fn read(json: &str) -> Result<(String, Vec<String>), String> {
        let mut ignored = IgnoredNames::default();
        let fields = canonical(json, &SHAPE, &mut ignored).map_err(|error| error.message)?;
        let fields = fields.ok_or_else(|| "no object".to_owned())?;
        Ok((object(&fields), in_order(&ignored).into_iter().map(str::to_owned).collect()))
    }

    #[test]
    fn spellings_and_escapes_are_one_name() {
        for json in [
            r#"{"to":{"afterId":1},"delay_ms":2}"#,
            r#"{"to":{"after_id":1},"delayMs":2}"#,
            r#"{"\u0074o":{"after_\u0069d":1},"delayM\u0073":2}"#,
            r#"{"to":{"after_id":1},"delayMs":2,"delay_ms":2}"#,
            r#"{"to":{"after_id":1},"delay_ms":2,"to":{"afterId": 1}}"#,
        ] {
            assert_eq!(
                read(json),
                Ok((r#"{"to":{"afterId":1},"delay_ms":2}"#.to_owned(), Vec::new())),
                "{json}"
            );
        }
        assert_eq!(
            read(r#"{"to":"latest","\u0061bc":1,"xyz":2,"abc":3}"#),
            Ok((r#"{"to":"latest"}"#.to_owned(), vec!["abc".to_owned(), "xyz".to_owned()]))
        );
        assert_eq!(read(r#"{"to":{"x":1}}"#), Ok((r#"{"to":{}}"#.to_owned(), vec!["x".to_owned()])));
        assert_eq!(read("[]"), Err("no object".to_owned()));
    }

    #[test]
    fn near_misses_and_contradictions_are_errors() {
        for (json, message) in [
            (r#"{"delayms":1}"#, "unknown field \"delayms\": did you mean \"delay_ms\"?"),
            (r#"{"reson":1}"#, "unknown field \"reson\": did you mean \"reason\"?"),
            (r#"{"re\u0073on":1}"#, "unknown field \"reson\": did you mean \"reason\"?"),
            (r#"{"to":{"afterid":1}}"#, "unknown field \"afterid\": did you mean \"afterId\"?"),
            (
                r#"{"delayMs":1,"delay_ms":2}"#,
                "\"delayMs\" and \"delay_ms\" are the same name with different values",
            ),
            (r#"{"to":1,"to":2}"#, "\"to\" is given twice with different values"),
        ] {
            assert_eq!(read(json), Err(message.to_owned()), "{json}");
        }
    }

    #[test]
    fn the_list_of_ignored_names_is_bounded() {
        let mut ignored = IgnoredNames::default();
        for number in 0..10_000 {
            ignored.add(&format!("{number}{}", "x".repeat(1_000)));
        }
        assert_eq!(ignored.names().len(), IGNORED_MAX);
        assert!(ignored.names().iter().all(|name| name.len() <= SHOWN_CHARS_MAX));
    }
}
