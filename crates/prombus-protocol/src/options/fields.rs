//! Sorts the fields of a JSON object by a list of known names.

use super::OptionError;
use super::untyped::Untyped;
use crate::names::{self, Found, IgnoredNames, find};
use std::borrow::Cow;

/// Longer names are cut to this many characters in messages and lists.
const SHOWN_CHARS_MAX: usize = 100;

/// Names of event fields, frame fields and options. Clients may pass on any of them as an option, so none of them counts as a
/// mistyped option.
pub(crate) const EVENT_AND_FRAME_FIELDS: &[&str] = &[
    "topic",
    "group",
    "payload",
    "partition",
    "ttlMs",
    "manualAck",
    "op",
    "corr",
    "token",
    "opts",
    "event",
    "ctx",
    "code",
    "msg",
    "reason",
    "attempt",
    "cursor",
    "lastId",
    "lastTs",
    "limit",
    "ok",
    "err",
    "id",
    "sid",
    "ts",
    "key",
    "headers",
    "tags",
    "caused_by",
    "from",
    "afterId",
    "batchSize",
    "maxInFlight",
    "ackTimeoutMs",
    "maxAttempts",
    "topics",
    "filter",
    "maxInflightPerSub",
];

/// Names of fields that were ignored.
pub(crate) type Ignored = IgnoredNames<100, SHOWN_CHARS_MAX>;

/// The values of the known fields, in the order of `known`; `null` counts as absent. If a name occurs twice in one spelling, the last value
/// counts. Two spellings of a name with different values are an error, and so is a mistyped name.
pub(crate) fn sorted<'a, const N: usize>(
    fields: Vec<(Cow<'a, str>, Untyped<'a>)>,
    known: &[&str; N],
    ignored: &mut Ignored,
) -> Result<[Option<Untyped<'a>>; N], OptionError> {
    let mut names: [Cow<'a, str>; N] = std::array::from_fn(|_| Cow::Borrowed(""));
    let mut values: [Option<Untyped<'a>>; N] = std::array::from_fn(|_| None);
    for (name, value) in fields {
        match find(&name, known) {
            Found::Known(index) => {
                let value = value.into_option();
                let is_other_spelling = !names[index].is_empty() && names[index] != name;
                if is_other_spelling {
                    match (&values[index], &value) {
                        (Some(one), Some(two)) if !one.means(two) => {
                            let field = std::mem::take(&mut names[index]).into_owned();
                            return Err(OptionError::Contradiction { field, other: name.into_owned() });
                        }
                        (Some(_), None) => continue,
                        _ => {}
                    }
                }
                values[index] = value;
                names[index] = name;
            }
            _ if matches!(value, Untyped::Null) => {}
            Found::Near(meant) if !EVENT_AND_FRAME_FIELDS.contains(&&*name) => {
                return Err(OptionError::Mistyped { field: shown(&name), meant: meant.to_owned() });
            }
            Found::Near(_) | Found::Unknown => ignored.add(&name),
        }
    }
    Ok(values)
}

/// A name from a client, cut to the length that a message may show.
pub(crate) fn shown(name: &str) -> String {
    names::shown(name, SHOWN_CHARS_MAX).to_owned()
}
