//! Parses the query string. It is parsed by hand so that each error names the parameter and its value.
//!
//! A parameter with a single value must not be repeated, because proxies and servers differ in which value they use. `fields.rs`
//! decides which spellings are the same name.

use super::ApiError;
use super::fields::{self, IgnoredNames, shown};
use crate::clock::now_ms;
use prombus::BusPosition;
use prombus_protocol::{Filter, MAX_TS_MS, Start, Uuid, parse_instant};
use std::collections::BTreeMap;

/// Decoded names and values.
#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    pairs: Vec<(String, String)>,
}

/// Where to start reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    At(Start),
    After(ResumePoint),
}

/// Where a client resumes: after an event, or at a position that it got from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResumePoint {
    Id(Uuid),
    Position(BusPosition),
}

impl ResumePoint {
    /// Parses an event id or a position; `None` if the text is neither.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let position = || text.parse().ok().map(Self::Position);
        Uuid::try_parse(text).ok().map(Self::Id).or_else(position)
    }
}

const A_TIME: &str =
    "a time: milliseconds since 1970, ISO 8601 like 2026-05-01T12:00:00Z, or how long ago, like -90m or -1d";
const A_PLACE: &str = "an event id or a position from an earlier response";

impl Query {
    pub(super) fn parse(text: &str) -> Result<Self, ApiError> {
        let mut pairs = Vec::new();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = decode(name).ok_or_else(|| {
                ApiError::bad_request("the query has a name that is not percent-encoded UTF-8")
            })?;
            let value = decode(value).ok_or_else(|| {
                ApiError::bad_request(format!("{:?}: not percent-encoded UTF-8", shown(&name)))
            })?;
            pairs.push((name, value));
        }
        Ok(Self { pairs })
    }

    /// Returns the query with only the known names, in the spelling of the route; and, separately, the unknown names.
    pub(super) fn with_names(&self, known: &[&'static str]) -> Result<(Self, IgnoredNames), ApiError> {
        let (mut kept, mut ignored) = (Vec::new(), IgnoredNames::default());
        // The spellings of each known name in the query.
        let mut spellings: Vec<(&'static str, String)> = Vec::new();
        for (name, value) in &self.pairs {
            let Some(meant) = fields::known("parameter", name, known)? else {
                ignored.add(name);
                continue;
            };
            let first = spellings.iter().find(|(known, _)| *known == meant).map(|(_, first)| first.clone());
            match first {
                None => spellings.push((meant, name.clone())),
                Some(first) if first == *name => {}
                Some(first) => {
                    if !spellings.iter().any(|(_, spelling)| spelling == name) {
                        if !self.all(&first).eq(self.all(name)) {
                            return Err(fields::differing(&first, name));
                        }
                        spellings.push((meant, name.clone()));
                    }
                    continue;
                }
            }
            kept.push((meant.to_owned(), value.clone()));
        }
        Ok((Self { pairs: kept }, ignored))
    }

    /// A query of decoded names and values.
    pub(super) fn of(pairs: Vec<(String, String)>) -> Self {
        Self { pairs }
    }

    /// All names and values.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// All values of a name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The value of a parameter that must not be repeated.
    pub(super) fn one<'a>(&'a self, name: &'a str) -> Result<Option<&'a str>, ApiError> {
        let mut values = self.all(name);
        let value = values.next();
        match values.next() {
            None => Ok(value),
            Some(_) => Err(ApiError::bad_request(format!("\"{name}\" is given more than once"))),
        }
    }

    pub(super) fn whole(&self, name: &str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| refused(name, text, &format!("a whole number from {least} to {most}")))
    }

    /// A time; a later time than an event can have becomes the latest possible time.
    pub(super) fn bound_ts(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        let ts = parse_instant(text, now_ms()).map_err(|_| refused(name, text, A_TIME))?;
        Ok(Some(ts.min(MAX_TS_MS)))
    }

    /// A time that an event can have; later times are an error.
    pub(super) fn ts(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        let ts = parse_instant(text, now_ms()).ok().filter(|ts| *ts <= MAX_TS_MS);
        ts.map(Some).ok_or_else(|| refused(name, text, A_TIME))
    }

    pub(super) fn place(&self, name: &str) -> Result<Option<ResumePoint>, ApiError> {
        let text = self.one(name)?;
        text.map(|text| ResumePoint::parse(text).ok_or_else(|| refused(name, text, A_PLACE))).transpose()
    }

    /// The filter of `key`, `tag` and `header`; `None` without any of them.
    pub(super) fn filter(&self) -> Result<Option<Filter>, ApiError> {
        let mut header = BTreeMap::new();
        for text in self.all("header") {
            let named = text.split_once(':').filter(|(name, _)| !name.is_empty());
            let (name, value) =
                named.ok_or_else(|| refused("header", text, "a header in the form name:value"))?;
            if header.insert(name.to_owned(), value.to_owned()).is_some() {
                let name = shown(name);
                return Err(ApiError::bad_request(format!("\"header\": {name:?} is given more than once")));
            }
        }
        let text = |name| self.one(name).map(|text| text.map(str::to_owned));
        let filter = Filter { key: text("key")?, tag: text("tag")?, header };
        Ok((!filter.is_empty()).then_some(filter))
    }

    pub(super) fn uuid(&self, name: &str) -> Result<Option<Uuid>, ApiError> {
        let text = self.one(name)?;
        text.map(|text| Uuid::try_parse(text).map_err(|_| refused(name, text, "a UUID"))).transpose()
    }

    pub(super) fn uuids(&self, name: &str) -> Result<Vec<Uuid>, ApiError> {
        self.all(name).map(|text| Uuid::try_parse(text).map_err(|_| refused(name, text, "a UUID"))).collect()
    }

    /// A flag, written as `1` or `0`; `None` if it is absent.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.one(name)? {
            None => Ok(None),
            Some("1") => Ok(Some(true)),
            Some("0") => Ok(Some(false)),
            Some(text) => Err(refused(name, text, "1 or 0")),
        }
    }

    /// Parses `from`, with the `ts` or `afterId` that it requires; `None` if `from` is absent.
    pub(super) fn begin(&self) -> Result<Option<Begin>, ApiError> {
        let missing = |name: &str, from: &str| {
            ApiError::bad_request(format!("\"{name}\" is missing: from={from} requires it"))
        };
        // Checked even if `from` does not need them: a bad value is a mistake either way.
        let (ts, after) = (self.ts("ts")?, self.place("afterId")?);
        let begin = match self.one("from")? {
            None => return Ok(None),
            Some("earliest") => Begin::At(Start::Earliest),
            Some("latest") => Begin::At(Start::Latest),
            Some("ts") => Begin::At(Start::Ts(ts.ok_or_else(|| missing("ts", "ts"))?)),
            Some("afterId") => Begin::After(after.ok_or_else(|| missing("afterId", "afterId"))?),
            Some(text) => return Err(refused("from", text, "one of earliest, latest, ts and afterId")),
        };
        Ok(Some(begin))
    }

    /// Whether the newest events come first, according to `order`.
    pub(super) fn is_descending(&self) -> Result<bool, ApiError> {
        match self.one("order")? {
            None | Some("asc") => Ok(false),
            Some("desc") => Ok(true),
            Some(text) => Err(refused("order", text, "asc or desc")),
        }
    }
}

fn refused(name: &str, text: &str, allowed: &str) -> ApiError {
    ApiError::bad_request(format!("\"{name}\": {:?} is not {allowed}", shown(text)))
}

/// Percent-decodes; `+` is a space. `None`: invalid encoding or not UTF-8.
fn decode(text: &str) -> Option<String> {
    if !text.contains(['%', '+']) {
        return Some(text.to_owned());
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => hex(bytes.next()?)? << 4 | hex(bytes.next()?)?,
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

fn hex(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(error: ApiError) -> String {
        assert_eq!(error.status, 400);
        error.message
    }

    #[test]
    fn names_and_values_are_decoded() {
        let query = Query::parse("a=1&b=x%20y+z&&c&%61b=%C3%A9&d=%2B").expect("a query");
        assert_eq!(query.one("a").expect("once"), Some("1"));
        assert_eq!(query.one("b").expect("once"), Some("x y z"));
        assert_eq!(query.one("c").expect("once"), Some(""));
        assert_eq!(query.one("ab").expect("once"), Some("é"));
        assert_eq!(query.one("d").expect("once"), Some("+"));
        assert_eq!(query.one("e").expect("none"), None);
    }

    #[test]
    fn both_spellings_of_a_parameter_are_accepted_and_near_misses_are_not() {
        let known = ["fromTs", "caused_by", "limit"];
        let named = |text: &str| Query::parse(text).expect("a query").with_names(&known);
        for text in ["fromTs=1&limit=2", "from_ts=1&limit=2", "from%5Fts=1&fromTs=1&limit=2"] {
            let (query, ignored) = named(text).expect(text);
            assert_eq!(
                (query.one("fromTs").expect("once"), query.one("limit").expect("once")),
                (Some("1"), Some("2"))
            );
            assert!(ignored.is_empty());
        }
        let (query, ignored) = named("causedBy=1&causedBy=2&colour=red&colour=blue&a").expect("a query");
        assert_eq!(query.all("caused_by").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(fields::in_order(&ignored).into_iter().collect::<Vec<_>>(), ["a", "colour"]);
        assert!(named("fromTs=1&fromTs=1").expect("a query").0.one("fromTs").is_err());
        for (text, expected) in [
            ("fromts=1", "unknown parameter \"fromts\": did you mean \"fromTs\"?"),
            ("causd_by=1", "unknown parameter \"causd_by\": did you mean \"caused_by\"?"),
            ("LIMIT=1", "unknown parameter \"LIMIT\": did you mean \"limit\"?"),
            ("fromTs=1&from_ts=2", "\"fromTs\" and \"from_ts\" are the same name with different values"),
            (
                "caused_by=1&causedBy=1&caused_by=2",
                "\"caused_by\" and \"causedBy\" are the same name with different values",
            ),
        ] {
            assert_eq!(message(named(text).expect_err(text)), expected);
        }
    }

    #[test]
    fn broken_encoding_names_the_value() {
        for text in ["a=%", "a=%4", "a=%zz", "a=%ff", "a=%+1"] {
            assert_eq!(message(Query::parse(text).expect_err(text)), "\"a\": not percent-encoded UTF-8");
        }
        assert!(Query::parse("%ff=1").is_err());
    }

    #[test]
    fn errors_name_the_value_and_what_is_allowed() {
        let query = Query::parse("limit=abc&n=0&x=1&x=2&id=7&f=yes&from=ts&ts=1").expect("a query");
        let limit = query.whole("limit", 1, 10).map_err(message);
        assert_eq!(limit, Err("\"limit\": \"abc\" is not a whole number from 1 to 10".to_owned()));
        assert!(query.whole("n", 1, 10).is_err());
        assert_eq!(query.one("x").map_err(message), Err("\"x\" is given more than once".to_owned()));
        assert_eq!(query.uuid("id").map_err(message), Err("\"id\": \"7\" is not a UUID".to_owned()));
        assert!(query.flag("f").is_err());
        assert_eq!(query.begin().expect("a start"), Some(Begin::At(Start::Ts(1))));
        let froms = ["from=ts", "from=afterId", "from=no", "from=ts&ts=-1", "ts=x", "afterId=x"];
        for text in froms {
            let query = Query::parse(text).expect("a query");
            assert!(query.begin().is_err(), "{text}");
        }
    }
}
