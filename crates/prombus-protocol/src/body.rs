//! The stored form of an event, its body: the event's JSON without `id` and `seq`, which are prepended when it is sent.
//!
//! The order of the fields is fixed: `addressee` if the event has one, `ts`, `topic`, then the fields that are present of `sid`, `key`, `partition`, `headers`,
//! `caused_by` and `tags`, and `payload` last. `addressee` is first, so that one comparison of bytes shows whether it is present. So a record is a short prefix and a copy of the body, and the payload is found
//! without parsing it. The functions that read a body accept any bytes: if the bytes are not a body, they return `None` or an
//! error, and never panic.

use crate::event::{Addressee, EventRecord};
use crate::json::{put_i64, put_string, put_u64, put_uuid};
use crate::json_scanner::{JsonFault, Scanner, plain_prefix};
use crate::topic_name::Topic;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use uuid::Uuid;

/// The fields of a body, except the payload.
#[derive(Clone, Copy, Debug)]
pub struct BodyFields<'a> {
    /// Milliseconds since 1970.
    pub ts: i64,
    /// The topic's name.
    pub topic: &'a str,
    /// The publisher's session.
    pub sid: Option<Uuid>,
    /// The entity that the event is about.
    pub key: Option<&'a str>,
    /// The partition, if the store has partitions.
    pub partition: Option<u32>,
    /// Headers.
    pub headers: &'a BTreeMap<String, String>,
    /// The ids of the events that caused this one.
    pub caused_by: &'a [Uuid],
    /// Labels.
    pub tags: &'a [String],
    /// The only group that receives the event.
    pub addressee: Option<&'a Addressee>,
}

/// The first bytes of the body of an event with an addressee.
const ADDRESSED: &[u8] = b"{\"addressee\":";

/// Appends a body up to its payload. The payload follows (see [`push_json`](crate::push_json)), then [`put_body_end`].
pub fn put_body_head(into: &mut Vec<u8>, fields: &BodyFields<'_>) {
    match fields.addressee {
        Some(addressee) => put_addressed_ts(into, addressee, fields.ts),
        None => put_body_ts(into, fields.ts),
    }
    put_string(into, fields.topic);
    if let Some(sid) = fields.sid {
        into.extend_from_slice(b",\"sid\":");
        put_uuid(into, sid);
    }
    if let Some(key) = fields.key {
        into.extend_from_slice(b",\"key\":");
        put_string(into, key);
    }
    if let Some(partition) = fields.partition {
        into.extend_from_slice(b",\"partition\":");
        put_u64(into, u64::from(partition));
    }
    if !fields.headers.is_empty() {
        into.extend_from_slice(b",\"headers\":");
        put_list(into, b"{}", fields.headers, |into, (name, value)| {
            put_string(into, name);
            into.push(b':');
            put_string(into, value);
        });
    }
    if !fields.caused_by.is_empty() {
        into.extend_from_slice(b",\"caused_by\":");
        put_list(into, b"[]", fields.caused_by, |into, id| put_uuid(into, *id));
    }
    if !fields.tags.is_empty() {
        into.extend_from_slice(b",\"tags\":");
        put_list(into, b"[]", fields.tags, |into, tag| put_string(into, tag));
    }
    into.extend_from_slice(b",\"payload\":");
}

/// Appends the beginning of a body, up to its topic. It is the same for all events with the same `ts`, so callers can copy it from
/// one event to the next. [`put_body_topic`] follows.
pub fn put_body_ts(into: &mut Vec<u8>, ts: i64) {
    into.extend_from_slice(b"{\"ts\":");
    put_i64(into, ts);
    into.extend_from_slice(b",\"topic\":");
}

/// Appends the beginning of the body of an event with an addressee, up to its topic.
fn put_addressed_ts(into: &mut Vec<u8>, addressee: &Addressee, ts: i64) {
    into.extend_from_slice(ADDRESSED);
    into.extend_from_slice(b"{\"subscription\":");
    put_string(into, &addressee.subscription);
    into.extend_from_slice(b",\"group\":");
    put_string(into, &addressee.group);
    into.extend_from_slice(b"},\"ts\":");
    put_i64(into, ts);
    into.extend_from_slice(b",\"topic\":");
}

/// Appends the topic of a body without optional fields, and everything up to its payload.
pub fn put_body_topic(into: &mut Vec<u8>, topic: &Topic) {
    // A topic name contains no character that JSON escapes.
    into.push(b'"');
    into.extend_from_slice(topic.as_str().as_bytes());
    into.extend_from_slice(b"\",\"payload\":");
}

fn put_list<T>(
    into: &mut Vec<u8>,
    brackets: &[u8; 2],
    items: impl IntoIterator<Item = T>,
    put: impl Fn(&mut Vec<u8>, T),
) {
    for (position, item) in items.into_iter().enumerate() {
        into.push(if position == 0 { brackets[0] } else { b',' });
        put(into, item);
    }
    into.push(brackets[1]);
}

/// Appends the end of a body, after its payload.
pub fn put_body_end(into: &mut Vec<u8>) {
    into.push(b'}');
}

/// Appends an event record as clients receive it: the id, the seq and the stored body.
pub fn put_record(into: &mut Vec<u8>, id: Uuid, seq: u64, body: &[u8]) {
    into.extend_from_slice(b"{\"id\":");
    put_uuid(into, id);
    into.extend_from_slice(b",\"seq\":");
    put_u64(into, seq);
    into.push(b',');
    into.extend_from_slice(body.get(1..).unwrap_or_default());
}

/// Reads a stored body. Each method parses only the field that it returns.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    bytes: &'a [u8],
}

impl<'a> Body<'a> {
    /// A body as [`put_body_head`] and [`put_body_end`] wrote it. The bytes are not checked here.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The payload's JSON text.
    pub fn payload(&self) -> Option<&'a str> {
        let inside = self.bytes.strip_suffix(b"}")?;
        if let Some(payload) = self.after_topic().and_then(|rest| rest.strip_prefix(b",\"payload\":")) {
            return str_of(payload.strip_suffix(b"}")?);
        }
        let mut fields = self.fields();
        // The iterator ends at the payload, or where the bytes are not a body.
        while fields.next().is_some() {}
        str_of(inside.get(fields.payload_at?..)?)
    }

    /// The time of the event, in milliseconds since 1970.
    pub fn ts(&self) -> Option<i64> {
        self.field("ts")?.parse().ok()
    }

    /// The topic's name.
    pub fn topic(&self) -> Option<&'a str> {
        match text_of(self.field("topic")?)? {
            Cow::Borrowed(name) => Some(name),
            // A topic name contains no character that JSON escapes.
            Cow::Owned(_) => None,
        }
    }

    /// Whether the event is addressed to one group. This only compares the first bytes.
    #[inline]
    pub fn is_addressed(&self) -> bool {
        self.bytes.starts_with(ADDRESSED)
    }

    /// The only group that receives the event.
    pub fn addressee(&self) -> Option<Addressee> {
        if !self.is_addressed() {
            return None;
        }
        serde_json::from_str(self.field("addressee")?).ok()
    }

    /// The publisher's session.
    pub fn sid(&self) -> Option<Uuid> {
        Uuid::try_parse(&text_of(self.field("sid")?)?).ok()
    }

    /// The entity that the event is about.
    pub fn key(&self) -> Option<Cow<'a, str>> {
        text_of(self.field("key")?)
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut values = Strings::new(self.field("headers")?, b'{')?;
        while let Some(found) = values.next() {
            let value = values.value()?;
            if found == name {
                return Some(value);
            }
        }
        None
    }

    /// Whether the event has a tag.
    pub fn has_tag(&self, tag: &str) -> bool {
        let tags = self.field("tags").and_then(|text| Strings::new(text, b'['));
        tags.is_some_and(|mut tags| tags.any(|found| found == tag))
    }

    /// The whole event.
    ///
    /// # Errors
    /// If the bytes are not a body.
    pub fn record(&self, id: Uuid, seq: u64) -> Result<EventRecord, serde_json::Error> {
        let StoredEvent { ts, topic, sid, key, partition, headers, caused_by, tags, payload, addressee } =
            serde_json::from_slice(self.bytes)?;
        Ok(EventRecord {
            id,
            seq,
            sid,
            ts,
            topic,
            key,
            partition,
            headers,
            payload,
            caused_by,
            tags,
            addressee,
        })
    }

    /// The bytes after `{"ts":N,"topic":"…"`.
    fn after_topic(&self) -> Option<&'a [u8]> {
        let rest = self.bytes.strip_prefix(b"{\"ts\":")?;
        let digits = rest.iter().position(|&byte| byte == b',')?;
        let name = rest[digits..].strip_prefix(b",\"topic\":\"")?;
        name[plain_prefix(name)..].strip_prefix(b"\"")
    }

    fn field(&self, name: &str) -> Option<&'a str> {
        self.fields().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    fn fields(&self) -> HeadFields<'a> {
        HeadFields { bytes: self.bytes, scanner: Scanner::new(self.bytes), first: true, payload_at: None }
    }
}

#[derive(Deserialize)]
struct StoredEvent {
    ts: i64,
    topic: Topic,
    sid: Option<Uuid>,
    key: Option<String>,
    partition: Option<u32>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    caused_by: Vec<Uuid>,
    #[serde(default)]
    tags: Vec<String>,
    payload: Box<RawValue>,
    addressee: Option<Addressee>,
}

/// The fields before the payload, as name and JSON text. Ends at the payload, or where the bytes are not a body.
struct HeadFields<'a> {
    bytes: &'a [u8],
    scanner: Scanner<'a>,
    /// Whether no field was read yet, so that no comma comes before the next one.
    first: bool,
    /// Where the payload begins; `None` until it is reached.
    payload_at: Option<usize>,
}

impl<'a> Iterator for HeadFields<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let before = if std::mem::take(&mut self.first) { b'{' } else { b',' };
        self.scanner.expect(before, JsonFault::CommaOrBrace).ok()?;
        let name = quoted(&mut self.scanner, self.bytes)?;
        self.scanner.expect(b':', JsonFault::Colon).ok()?;
        let start = self.scanner.position();
        if name == "payload" {
            self.payload_at = Some(start);
            return None;
        }
        self.scanner.value().ok()?;
        Some((name, str_of(self.bytes.get(start..self.scanner.position())?)?))
    }
}

/// The content of the string at the scanner's position, without quotes.
fn quoted<'a>(scanner: &mut Scanner<'a>, bytes: &'a [u8]) -> Option<&'a str> {
    if scanner.peek() != Some(b'"') {
        return None;
    }
    let start = scanner.position() + 1;
    scanner.string().ok()?;
    str_of(bytes.get(start..scanner.position() - 1)?)
}

/// The strings of an array, or the names of an object; after a name, [`Strings::value`] returns its value.
struct Strings<'a> {
    bytes: &'a [u8],
    scanner: Scanner<'a>,
}

impl<'a> Strings<'a> {
    fn new(text: &'a str, open: u8) -> Option<Self> {
        let bytes = text.as_bytes();
        let scanner = Scanner::new(bytes);
        (scanner.peek() == Some(open)).then_some(Self { bytes, scanner })
    }

    fn value(&mut self) -> Option<Cow<'a, str>> {
        self.scanner.expect(b':', JsonFault::Colon).ok()?;
        unescaped(quoted(&mut self.scanner, self.bytes)?)
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = Cow<'a, str>;

    fn next(&mut self) -> Option<Self::Item> {
        // Skips the bracket or a comma.
        self.scanner.skip_byte();
        unescaped(quoted(&mut self.scanner, self.bytes)?)
    }
}

/// The text of a JSON string.
fn text_of(json: &str) -> Option<Cow<'_, str>> {
    unescaped(json.strip_prefix('"')?.strip_suffix('"')?)
}

/// Unescapes the content of a JSON string; `None` if it has a lone surrogate.
pub(crate) fn unescaped(inside: &str) -> Option<Cow<'_, str>> {
    if !inside.contains('\\') {
        return Some(Cow::Borrowed(inside));
    }
    serde_json::from_str::<String>(&format!("\"{inside}\"")).ok().map(Cow::Owned)
}

fn str_of(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_of(fields: &BodyFields<'_>, payload: &str) -> Vec<u8> {
        let mut body = Vec::new();
        put_body_head(&mut body, fields);
        body.extend_from_slice(payload.as_bytes());
        put_body_end(&mut body);
        body
    }

    /// Calls `check` with every combination of fields present and absent.
    fn for_all_combinations(mut check: impl FnMut(&BodyFields<'_>)) {
        let headers = BTreeMap::from([
            ("a".to_owned(), "1".to_owned()),
            ("payload".to_owned(), "}\",\"payload\":".to_owned()),
            ("x-\u{e9}\n".to_owned(), String::new()),
        ]);
        let tags = ["#duck".to_owned(), "\"payload\":".to_owned(), "two words".to_owned()];
        let ids = [Uuid::from_u128(1), Uuid::from_u128(u128::MAX)];
        let none = BTreeMap::new();
        let addressee = Addressee::new("heartbeat.*", "\"payload\":");
        for bits in 0_u32..128 {
            let has = |bit: u32| bits >> bit & 1 == 1;
            check(&BodyFields {
                ts: if has(0) { 1_741_964_400_000 } else { 0 },
                topic: "heartbeat.received",
                sid: has(0).then_some(ids[1]),
                key: has(1).then_some("key \"of\" \\ \u{e9}"),
                partition: has(2).then_some(u32::MAX),
                headers: if has(3) { &headers } else { &none },
                caused_by: if has(4) { &ids } else { &[] },
                tags: if has(5) { &tags } else { &[] },
                addressee: has(6).then_some(&addressee),
            });
        }
    }

    #[test]
    fn every_combination_of_fields_reads_back() {
        for_all_combinations(|fields| {
            for payload in ["null", "{}", "[1, {\"payload\":2}]", "\"}\"", "-1.5e3"] {
                let bytes = body_of(fields, payload);
                let body = Body::new(&bytes);
                assert_eq!(body.payload(), Some(payload));
                assert_eq!(body.ts(), Some(fields.ts));
                assert_eq!(body.topic(), Some(fields.topic));
                assert_eq!(body.sid(), fields.sid);
                assert_eq!(body.is_addressed(), fields.addressee.is_some());
                assert_eq!(body.addressee().as_ref(), fields.addressee);
                assert_eq!(body.key().as_deref(), fields.key);
                for (name, value) in fields.headers {
                    assert_eq!(body.header(name).as_deref(), Some(value.as_str()));
                }
                assert_eq!(body.header("none"), None);
                assert!(fields.tags.iter().all(|tag| body.has_tag(tag)) && !body.has_tag("duck"));

                let record = body.record(Uuid::from_u128(7), 9).unwrap();
                assert_eq!((record.id, record.seq, record.ts), (Uuid::from_u128(7), 9, fields.ts));
                assert_eq!((record.sid, record.partition), (fields.sid, fields.partition));
                assert_eq!((record.key.as_deref(), &record.headers), (fields.key, fields.headers));
                assert_eq!((&record.caused_by[..], &record.tags[..]), (fields.caused_by, fields.tags));
                assert_eq!((record.payload.get(), record.addressee.as_ref()), (payload, fields.addressee));

                let mut out = Vec::new();
                put_record(&mut out, record.id, record.seq, &bytes);
                let read: EventRecord = serde_json::from_slice(&out).unwrap();
                assert_eq!(serde_json::to_value(read).unwrap(), serde_json::to_value(record).unwrap());
            }
        });
    }

    #[test]
    fn bytes_that_are_not_a_body_never_panic() {
        let ask = |bytes: &[u8]| {
            let body = Body::new(bytes);
            let _ = (body.payload(), body.ts(), body.topic(), body.sid(), body.key(), body.header("a"));
            let _ = (body.has_tag("a"), body.addressee(), body.record(Uuid::nil(), 1));
            put_record(&mut Vec::new(), Uuid::nil(), 1, bytes);
        };
        for_all_combinations(|fields| {
            let bytes = body_of(fields, "[1]");
            for at in 0..bytes.len() {
                ask(&bytes[..at]);
                ask(&bytes[at..]);
                for byte in [b'"', b'\\', b'{', b'}', b',', b':', 0, 0xff] {
                    let mut changed = bytes.clone();
                    changed[at] = byte;
                    ask(&changed);
                }
            }
        });
        for bytes in
            [&b""[..], b"}", b"{}", b"{\"payload\":}", b"{\"payload\":", b"{\"ts\":,\"topic\":\"", b"null"]
        {
            ask(bytes);
        }
        assert_eq!(Body::new(b"{}").payload(), None);
        assert_eq!(Body::new(b"{\"ts\":1,\"topic\":\"a\",\"payload\":").payload(), None);
    }
}
