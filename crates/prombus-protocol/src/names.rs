//! Looks up field names as people type them: camelCase and snake_case are the same name, and a near miss is distinguished from an
//! unknown name.
//!
//! ```
//! use prombus_protocol::names::{Found, find};
//!
//! let known = ["maxInFlight", "key"];
//! assert_eq!(find("max_in_flight", &known), Found::Known(0));
//! assert_eq!(find("maxinflight", &known), Found::Near("maxInFlight"));
//! assert_eq!(find("max_in_fligt", &known), Found::Near("maxInFlight"));
//! assert_eq!(find("colour", &known), Found::Unknown);
//! ```

/// A name counts as mistyped only if the known name has at least this many letters; shorter names are too similar to each other.
const SHORTEST_TO_MISTYPE: usize = 6;

/// The result of looking up a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// The known name at this index, in either spelling.
    Known(usize),
    /// The name is not known, but probably means this one: it differs only in case, `_` and `-`, or by one edit from a known name of
    /// six letters or more.
    Near(&'a str),
    /// The name resembles no known name.
    Unknown,
}

/// Names that were ignored, in their order, to be listed in the response. The list is bounded because a client decides how many
/// names it sends and how long they are: it holds at most `NAMES_MAX` names, each cut to `CHARS_MAX` characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoredNames<const NAMES_MAX: usize, const CHARS_MAX: usize>(Vec<String>);

impl<const NAMES_MAX: usize, const CHARS_MAX: usize> IgnoredNames<NAMES_MAX, CHARS_MAX> {
    /// Adds a name, unless it is already listed or the list is full.
    pub fn add(&mut self, name: &str) {
        let name = shown(name, CHARS_MAX);
        if self.0.len() < NAMES_MAX && !self.0.iter().any(|listed| listed == name) {
            self.0.push(name.to_owned());
        }
    }

    /// Whether the list has no names.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Returns the names by value.
    pub fn into_names(self) -> Vec<String> {
        self.0
    }
}

/// A client's text, cut to the length that a response may show.
pub fn shown(text: &str, chars_max: usize) -> &str {
    text.char_indices().nth(chars_max).map_or(text, |(cut, _)| &text[..cut])
}

/// Looks a name up. `known` has one spelling of each name, camelCase or snake_case.
pub fn find<'a>(name: &str, known: &[&'a str]) -> Found<'a> {
    // Fast path: most names are spelled as in the table.
    let exact = known.iter().position(|known| *known == name);
    if let Some(index) = exact.or_else(|| known.iter().position(|known| is_same(name, known))) {
        return Found::Known(index);
    }
    let near = |known: &&&str| is_folded_same(name, known) || is_one_edit(name, known);
    known.iter().find(near).map_or(Found::Unknown, |known| Found::Near(known))
}

/// Whether two texts are the same name, each in camelCase or snake_case.
pub fn is_same(left: &str, right: &str) -> bool {
    left == right || (is_one_style(left) && is_one_style(right) && camel(left).eq(camel(right)))
}

/// Whether a text can be a name in camelCase or snake_case. A text with both `_` and capitals is neither.
fn is_one_style(name: &str) -> bool {
    !(name.contains('_') && name.contains(|letter: char| letter.is_ascii_uppercase()))
}

/// The letters of a name in camelCase.
fn camel(name: &str) -> impl Iterator<Item = u8> + '_ {
    let bytes = name.as_bytes();
    (0..bytes.len()).filter_map(move |at| match bytes[at] {
        b'_' if at > 0 && bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase) => None,
        letter if at > 1 && bytes[at - 1] == b'_' && letter.is_ascii_lowercase() => {
            Some(letter.to_ascii_uppercase())
        }
        letter => Some(letter),
    })
}

fn folded(name: &str) -> impl Iterator<Item = u8> + '_ {
    name.bytes().filter(|byte| !matches!(byte, b'_' | b'-')).map(|byte| byte.to_ascii_lowercase())
}

fn is_folded_same(left: &str, right: &str) -> bool {
    folded(left).eq(folded(right))
}

/// Whether one edit turns one name into the other: a letter inserted, removed or changed, or two neighbours swapped.
fn is_one_edit(name: &str, known: &str) -> bool {
    // The bound prevents copying a long name that a client sent.
    if name.len() > known.len() * 2 + 2 {
        return false;
    }
    let (name, known): (Vec<u8>, Vec<u8>) = (folded(name).collect(), folded(known).collect());
    if known.len() < SHORTEST_TO_MISTYPE || name.len().abs_diff(known.len()) > 1 {
        return false;
    }
    let start = name.iter().zip(&known).take_while(|(left, right)| left == right).count();
    let (name, known) = (&name[start..], &known[start..]);
    match name.len().cmp(&known.len()) {
        std::cmp::Ordering::Less => name == &known[1..],
        std::cmp::Ordering::Greater => &name[1..] == known,
        std::cmp::Ordering::Equal => match (name, known) {
            ([_, name @ ..], [_, known @ ..]) if name == known => true,
            ([a, b, name @ ..], [c, d, known @ ..]) => a == d && b == c && name == known,
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_names_are_listed_once_and_within_limits() {
        let mut ignored = IgnoredNames::<3, 4>::default();
        for name in ["b", "äöüßx", "b", "äöüßy", "a", "c"] {
            ignored.add(name);
        }
        assert_eq!(ignored.names(), ["b", "äöüß", "a"]);
    }

    const KNOWN: [&str; 7] =
        ["maxInFlight", "ackTimeoutMs", "caused_by", "delay_ms", "key", "payload", "from"];

    #[test]
    fn both_spellings_are_the_name() {
        for (name, index) in [
            ("maxInFlight", 0),
            ("max_in_flight", 0),
            ("ack_timeout_ms", 1),
            ("caused_by", 2),
            ("causedBy", 2),
            ("delayMs", 3),
            ("key", 4),
        ] {
            assert_eq!(find(name, &KNOWN), Found::Known(index), "{name}");
        }
    }

    #[test]
    fn a_near_miss_is_told_from_another_name() {
        for (name, meant) in [
            ("max_inFlight", "maxInFlight"),
            ("MaxInFlight", "maxInFlight"),
            ("max-in-flight", "maxInFlight"),
            ("maxinflight", "maxInFlight"),
            ("maxInFligth", "maxInFlight"),
            ("max_in_flights", "maxInFlight"),
            ("axInFlight", "maxInFlight"),
            ("causedby", "caused_by"),
            ("caused__by", "caused_by"),
            ("KEY", "key"),
            ("_key", "key"),
            ("key_", "key"),
            ("payloads", "payload"),
            ("paylaod", "payload"),
            ("Paylod", "payload"),
        ] {
            assert_eq!(find(name, &KNOWN), Found::Near(meant), "{name}");
        }
        for name in ["", "keys", "form", "froms", "paylo", "payloadid", "max", "x", "maxFlightIn", "é", "kéy"]
        {
            assert_eq!(find(name, &KNOWN), Found::Unknown, "{name}");
        }
    }

    /// Checks `find` against the definition of an edit: it must find every text that one edit makes of a name.
    #[test]
    fn every_single_edit_is_found() {
        for known in KNOWN.iter().filter(|known| folded(known).count() >= SHORTEST_TO_MISTYPE) {
            let letters: Vec<u8> = folded(known).collect();
            let mut edits: Vec<Vec<u8>> = Vec::new();
            for at in 0..=letters.len() {
                edits.push([&letters[..at], b"q", &letters[at..]].concat());
                if at < letters.len() {
                    edits.push([&letters[..at], &letters[at + 1..]].concat());
                    edits.push([&letters[..at], b"q", &letters[at + 1..]].concat());
                }
                if at + 1 < letters.len() {
                    let mut swapped = letters.clone();
                    swapped.swap(at, at + 1);
                    edits.push(swapped);
                }
            }
            for edit in edits {
                let edit = String::from_utf8(edit).expect("letters");
                let found = find(&edit, &[known]);
                assert!(matches!(found, Found::Known(0) | Found::Near(_)), "{edit} of {known}: {found:?}");
                let twice = format!("zz{edit}");
                assert_eq!(find(&twice, &[known]), Found::Unknown, "{twice} of {known}");
            }
        }
    }
}
