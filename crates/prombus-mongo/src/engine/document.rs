//! Writes and reads events as documents. A document contains the fields of the event, which people can query as in any collection, and the
//! fields that the engine needs to find events.
//!
//! `payload_json` contains the payload as JSON text, which consumers get. `payload` contains the payload as BSON, only for queries by
//! people.

use crate::bson_writer::BsonWriter;
use crate::engine::keys::{key, parse_key};
use crate::payload_bson::put_payload;
use mongodb::bson::{RawBsonRef, RawDocument};
use prombus::Uuid;
use prombus::engine::network::EventDocument;
use prombus::engine::{EventHead, EventId, TopicId};
use prombus_protocol::{Addressee, Body, BodyFields, put_body_end, put_body_head};
use std::collections::BTreeMap;

/// The largest size of a document's fields other than key and body: names, numbers, ids.
pub(crate) const DOCUMENT_OVERHEAD: usize = 512;

/// The position of an event, and the totals of its topic up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventPlace {
    pub(crate) seq: u64,
    /// The number of its commit's fence.
    pub(crate) fence: u64,
    /// The highest `ts` of the topic's events up to this one. It never decreases with the seq, so times are found by binary search.
    pub(crate) max_ts: i64,
    /// The bytes of all events of the topic up to this one, including removed events.
    pub(crate) topic_bytes: u64,
}

/// Encodes the fields of an event that are known before its commit. `is_readable` adds the field `payload`.
pub(crate) fn prepared_fields(ts: i64, body: &[u8], is_readable: bool) -> Box<[u8]> {
    let mut writer = BsonWriter::with_capacity(2 * body.len());
    let payload = put_fields(&mut writer, ts, body);
    if is_readable {
        put_payload(&mut writer, payload);
    }
    writer.into_bytes().into_boxed_slice()
}

/// Writes an event as a document with the field name `name`. `topic` is the name of its topic.
pub(crate) fn put_event(
    writer: &mut BsonWriter,
    name: &str,
    event: &EventDocument,
    place: &EventPlace,
    topic: &str,
    prepared: &[u8],
) {
    let document = writer.begin_document(name);
    writer.binary("_id", &key(event.topic, place.seq));
    writer.string("id", &event.id.to_string());
    writer.i64("ts", event.ts);
    writer.string("topic", topic);
    writer.i64("seq", place.seq as i64);
    writer.i32("topic_no", event.topic.number() as i32);
    writer.i64("commit", place.fence as i64);
    writer.i64("max_ts", place.max_ts);
    writer.i64("topic_bytes", place.topic_bytes as i64);
    writer.i32("bytes", event.bytes() as i32);
    writer.date("committed_at", event.commit_ms);
    if event.is_client_id {
        writer.uuid("client_id", event.id.to_bytes());
    }
    if event.is_tombstone {
        writer.boolean("tombstone", true);
    }
    writer.fields(prepared);
    writer.end(document);
}

/// Writes the fields of a body. Returns the payload.
fn put_fields<'a>(writer: &mut BsonWriter, ts: i64, bytes: &'a [u8]) -> &'a str {
    let body = Body::new(bytes);
    let payload = body.payload().unwrap_or("null");
    if is_plain(ts, bytes) {
        writer.string("payload_json", payload);
        return payload;
    }
    let Ok(record) = body.record(Uuid::nil(), 0) else {
        // The body does not have the form of this version, so it is stored unchanged.
        writer.binary("body", bytes);
        return payload;
    };
    // BSON names end at NUL. So a body with NUL in the name of a header is stored unchanged, and `payload_json` is left out, because both
    // might not fit in one document.
    let has_nul = record.headers.keys().any(|name| name.contains('\0'));
    if has_nul {
        writer.binary("body", bytes);
    } else {
        writer.string("payload_json", payload);
    }
    if let Some(key) = &record.key {
        writer.string("key", key);
    }
    if let Some(sid) = record.sid {
        writer.string("sid", &sid.to_string());
    }
    if let Some(partition) = record.partition {
        writer.i64("partition", i64::from(partition));
    }
    if !record.headers.is_empty() && !has_nul {
        let headers = writer.begin_document("headers");
        record.headers.iter().for_each(|(name, value)| writer.string(name, value));
        writer.end(headers);
    }
    put_list(writer, "caused_by", record.caused_by.iter().map(ToString::to_string));
    put_list(writer, "tags", record.tags.iter().cloned());
    if let Some(Addressee { subscription, group }) = &record.addressee {
        let addressee = writer.begin_document("addressee");
        writer.string("subscription", subscription);
        writer.string("group", group);
        writer.end(addressee);
    }
    payload
}

/// Whether a body has only time, topic and payload.
fn is_plain(ts: i64, bytes: &[u8]) -> bool {
    let rest = bytes.strip_prefix(b"{\"ts\":").and_then(|rest| {
        let digits = rest.iter().position(|&byte| byte == b',')?;
        let number = std::str::from_utf8(&rest[..digits]).ok()?.parse::<i64>().ok()?;
        (number == ts).then(|| &rest[digits..])
    });
    let name = rest.and_then(|rest| rest.strip_prefix(b",\"topic\":\""));
    // Topic names need no escapes.
    name.is_some_and(|name| {
        let end = name.iter().position(|&byte| byte == b'"').unwrap_or(name.len());
        name[end..].starts_with(b"\",\"payload\":")
    })
}

fn put_list(writer: &mut BsonWriter, name: &str, values: impl ExactSizeIterator<Item = String>) {
    if values.len() == 0 {
        return;
    }
    let list = writer.begin_array(name);
    for (at, value) in values.enumerate() {
        writer.string(&at.to_string(), &value);
    }
    writer.end(list);
}

/// The fields of a stored document that readers need.
#[derive(Default)]
struct Fields<'a> {
    /// Topic and seq, from `_id`.
    key: Option<(TopicId, u64)>,
    id: Option<Uuid>,
    ts: Option<i64>,
    topic: Option<&'a str>,
    commit_ms: Option<i64>,
    /// Whether the publisher chose the id.
    is_client_id: bool,
    is_tombstone: bool,
    /// The JSON text, from `payload_json`.
    payload: Option<&'a str>,
    /// The key of the event.
    event_key: Option<&'a str>,
    sid: Option<Uuid>,
    partition: Option<u32>,
    headers: BTreeMap<String, String>,
    caused_by: Vec<Uuid>,
    tags: Vec<String>,
    addressee: Option<Addressee>,
    /// The whole body, if it could not be stored as fields.
    body: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    fn read(document: &'a RawDocument) -> Option<Self> {
        let mut it = Self::default();
        for field in document.iter() {
            let (name, value) = field.ok()?;
            it.take(name.as_str(), value)?;
        }
        Some(it)
    }

    fn take(&mut self, name: &str, value: RawBsonRef<'a>) -> Option<()> {
        match name {
            "_id" => self.key = Some(parse_key(value.as_binary()?.bytes)?),
            "id" => self.id = Some(Uuid::try_parse(value.as_str()?).ok()?),
            "ts" => self.ts = Some(value.as_i64()?),
            "topic" => self.topic = Some(value.as_str()?),
            "committed_at" => self.commit_ms = Some(value.as_datetime()?.timestamp_millis()),
            "client_id" => self.is_client_id = true,
            "tombstone" => self.is_tombstone = value.as_bool()?,
            "payload_json" => self.payload = Some(value.as_str()?),
            "key" => self.event_key = Some(value.as_str()?),
            "sid" => self.sid = Some(Uuid::try_parse(value.as_str()?).ok()?),
            "partition" => self.partition = Some(u32::try_from(value.as_i64()?).ok()?),
            "body" => self.body = Some(value.as_binary()?.bytes),
            "headers" => {
                for header in value.as_document()?.iter() {
                    let (name, value) = header.ok()?;
                    self.headers.insert(name.as_str().to_owned(), value.as_str()?.to_owned());
                }
            }
            "caused_by" => {
                for id in value.as_array()? {
                    self.caused_by.push(Uuid::try_parse(id.ok()?.as_str()?).ok()?);
                }
            }
            "tags" => {
                for tag in value.as_array()? {
                    self.tags.push(tag.ok()?.as_str()?.to_owned());
                }
            }
            "addressee" => {
                let fields = value.as_document()?;
                let text = |name| fields.get_str(name).ok();
                self.addressee = Some(Addressee::new(text("subscription")?, text("group")?));
            }
            _ => {}
        }
        Some(())
    }

    fn put_body(&self, into: &mut Vec<u8>) -> Option<()> {
        let fields = BodyFields {
            ts: self.ts?,
            topic: self.topic?,
            sid: self.sid,
            key: self.event_key,
            partition: self.partition,
            headers: &self.headers,
            caused_by: &self.caused_by,
            tags: &self.tags,
            addressee: self.addressee.as_ref(),
        };
        put_body_head(into, &fields);
        into.extend_from_slice(self.payload?.as_bytes());
        put_body_end(into);
        Some(())
    }
}

/// The seq of a document.
pub(crate) fn seq_of(document: &RawDocument) -> Option<u64> {
    parse_key(document.get_binary("_id").ok()?.bytes).map(|(_, seq)| seq)
}

/// Reads an event. `None` if the document is not one that an engine wrote.
pub(crate) fn parse_event(document: &RawDocument) -> Option<(u64, EventDocument)> {
    let fields = Fields::read(document)?;
    let (topic, seq) = fields.key?;
    let body = match fields.body {
        Some(body) => body.to_vec(),
        None => {
            let mut body = Vec::with_capacity(fields.payload?.len() + 64);
            fields.put_body(&mut body)?;
            body
        }
    };
    let event = EventDocument {
        topic,
        id: EventId::from_u128(fields.id?.as_u128()),
        ts: fields.ts?,
        commit_ms: fields.commit_ms?,
        key: fields.event_key.map(|key| key.as_bytes().into()),
        body: body.into(),
        is_tombstone: fields.is_tombstone,
        is_client_id: fields.is_client_id,
    };
    Some((seq, event))
}

/// Reads an event without its content.
pub(crate) fn parse_head(document: &RawDocument) -> Option<EventHead> {
    let fields = Fields::read(document)?;
    Some(EventHead {
        seq: fields.key?.1,
        id: EventId::from_u128(fields.id?.as_u128()),
        ts: fields.ts?,
        commit_ms: fields.commit_ms?,
        is_client_id: fields.is_client_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::RawDocumentBuf;
    use prombus::{PublishBatch, PublishOptions, Topic};

    fn round_trip(options: &PublishOptions, payload: &str, is_readable: bool) -> RawDocumentBuf {
        let topic = Topic::new("orders.eu").expect("a topic");
        let mut batch = PublishBatch::new(1_700_000_000_000, 1 << 20);
        batch.push_json(topic, payload.as_bytes(), options).expect("it can be published");
        let number = TopicId::from_number(7);
        let new = batch.event(0, number);
        let event = EventDocument {
            topic: number,
            id: new.id.unwrap_or(EventId::from_u128(0x0123 << 80 | 7 << 76)),
            ts: new.ts,
            commit_ms: 1_700_000_000_005,
            key: new.key.map(Box::from),
            body: new.body.into(),
            is_tombstone: new.tombstone,
            is_client_id: new.id.is_some(),
        };
        let place = EventPlace { seq: 9, fence: 4, max_ts: new.ts + 1, topic_bytes: 500 };
        let mut writer = BsonWriter::default();
        let outer = writer.begin();
        let prepared = prepared_fields(event.ts, &event.body, is_readable);
        put_event(&mut writer, "0", &event, &place, "orders.eu", &prepared);
        writer.end(outer);
        let outer = RawDocumentBuf::from_bytes(writer.into_bytes()).expect("it is a document");
        let document = outer.get_document("0").expect("it has the event").to_owned();
        let (seq, read) = parse_event(&document).expect("it can be read");
        assert_eq!(seq, 9);
        assert_eq!(format!("{read:?}"), format!("{event:?}"));
        let head = parse_head(&document).expect("it has a head");
        assert_eq!((head.seq, head.id, head.is_client_id), (9, event.id, event.is_client_id));
        document
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let plain = PublishOptions::default();
        for payload in ["null", "{\"a\": 1.0e5,  \"b\":[ ]}", "\"\\u0000é\""] {
            round_trip(&plain, payload, true);
            round_trip(&plain, payload, false);
        }
        let mut full = PublishOptions {
            id: Some(Uuid::from_u128(77)),
            ts: Some(5),
            key: Some("k\0\"é".to_owned()),
            sid: Some(Uuid::from_u128(1)),
            tags: vec!["#duck".to_owned(), "two words".to_owned()],
            caused_by: vec![Uuid::from_u128(3)],
            ..PublishOptions::default()
        };
        let addressee = Addressee::new("orders.*", "billing");
        let addressed = PublishOptions { addressee: Some(addressee), ..full.clone() };
        let document = round_trip(&addressed, "null", true);
        assert_eq!(
            document.get_document("addressee").expect("it has one").get_str("group").ok(),
            Some("billing")
        );
        full.headers.insert("a.b$".to_owned(), "v".to_owned());
        let document = round_trip(&full, "null", true);
        assert!(document.get_bool("tombstone").expect("null deletes the key"));
        full.headers.insert("x\0y".to_owned(), "v".to_owned());
        round_trip(&full, "{}", true);
    }

    #[test]
    fn documents_have_the_documented_fields() {
        let document = round_trip(&PublishOptions::default(), "{\"pid\":5}", true);
        assert_eq!(document.get_str("topic").ok(), Some("orders.eu"));
        assert_eq!(document.get_i64("ts").ok(), Some(1_700_000_000_000));
        assert_eq!(document.get_str("id").expect("an id").len(), 36);
        assert_eq!(document.get_str("payload_json").ok(), Some("{\"pid\":5}"));
        assert_eq!(document.get_document("payload").expect("BSON").get_i32("pid").ok(), Some(5));
        assert!(document.get("client_id").expect("a document").is_none());
        let bare = round_trip(&PublishOptions::default(), "{\"pid\":5}", false);
        assert!(bare.get("payload").expect("a document").is_none());
    }

    #[test]
    fn a_strange_document_is_not_an_event() {
        let strange = mongodb::bson::rawdoc! { "_id": 5, "payload_json": "1" };
        assert!(parse_event(&strange).is_none());
        assert!(parse_head(&strange).is_none());
    }
}
