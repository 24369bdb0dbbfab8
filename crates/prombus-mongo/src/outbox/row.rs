//! Converts rows to events. A row may contain anything, because other programs write rows too.

use crate::json::{json_of, name_of};
use mongodb::bson::{Bson, Document};
use prombus::RawValue;
use prombus::outbox::OutboxRecord;
use prombus_protocol::id_of_key;
use std::collections::BTreeMap;

/// The longest id that is allowed as an idempotency key.
const ID_BYTES_MAX: usize = 255;

/// The name of a row, by which a drainer refers to it.
pub(super) fn row_name(id: &Bson) -> String {
    name_of(id)
}

/// The event of a row, or what is wrong with it.
pub(super) fn parse_row(row: &Document) -> Result<OutboxRecord, String> {
    let id = match row.get("id").or_else(|| row.get("_id")) {
        Some(Bson::String(id)) if !id.is_empty() && id.len() <= ID_BYTES_MAX => id.clone(),
        Some(Bson::ObjectId(id)) => id.to_hex(),
        Some(other) => return Err(format!("the id must be a text of 1 to 255 bytes: {}", json_of(other))),
        None => return Err("the row has no id".to_owned()),
    };
    let topic = row.get_str("topic").map_err(|_| "the topic is missing or not a text")?.to_owned();
    let json = match (row.get("payload_json"), row.get("payload")) {
        (Some(Bson::String(json)), _) => json.clone(),
        (Some(_), _) => return Err("payload_json is not a text".to_owned()),
        (None, Some(payload)) => json_of(payload),
        (None, None) => return Err("the row has no payload".to_owned()),
    };
    let payload = RawValue::from_string(json).map_err(|error| format!("the payload is not JSON: {error}"))?;
    let ts = match row.get("ts") {
        None | Some(Bson::Null) => None,
        Some(Bson::Int32(ts)) => Some(i64::from(*ts)),
        Some(Bson::Int64(ts)) => Some(*ts),
        Some(Bson::Double(ts)) if ts.fract() == 0.0 && ts.abs() < 1e15 => Some(*ts as i64),
        Some(Bson::DateTime(at)) => Some(at.timestamp_millis()),
        Some(_) => return Err("the ts is not a whole number".to_owned()),
    };
    let key = match row.get("key") {
        None | Some(Bson::Null) => None,
        Some(Bson::String(key)) => Some(key.clone()),
        Some(_) => return Err("the key is not a text".to_owned()),
    };
    Ok(OutboxRecord { id: id_of_key(&id), topic, payload, headers: headers(row)?, key, ts })
}

fn headers(row: &Document) -> Result<BTreeMap<String, String>, String> {
    let no_texts = || "the headers are not an object of texts".to_owned();
    match row.get("headers") {
        None | Some(Bson::Null) => Ok(BTreeMap::new()),
        Some(Bson::Document(headers)) => headers
            .iter()
            .map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect::<Option<_>>()
            .ok_or_else(no_texts),
        Some(_) => Err(no_texts()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::doc;

    #[test]
    fn rows_of_other_programs_are_read_or_refused_with_a_reason() {
        let row = doc! { "_id": 1, "id": "order-17", "topic": "orders", "payload": { "n": 7.0 }, "ts": 5.0 };
        let record = parse_row(&row).expect("it is a row");
        assert_eq!((record.id, record.topic.as_str()), (id_of_key("order-17"), "orders"));
        assert_eq!((record.payload.get(), record.ts), ("{\"n\":7}", Some(5)));
        let exact = doc! { "_id": "a", "topic": "t", "payload": 1, "payload_json": "1.00" };
        assert_eq!(parse_row(&exact).expect("it is a row").payload.get(), "1.00");
        for (row, why) in [
            (doc! { "_id": "a", "payload": 1 }, "topic"),
            (doc! { "_id": "a", "topic": "t" }, "payload"),
            (doc! { "_id": "a", "topic": "t", "payload_json": "{" }, "not JSON"),
            (doc! { "_id": 5, "topic": "t", "payload": 1 }, "id"),
            (doc! { "_id": "a", "topic": "t", "payload": 1, "headers": { "a": 1 } }, "headers"),
            (doc! { "_id": "a", "topic": "t", "payload": 1, "ts": "now" }, "ts"),
            (doc! { "_id": "a", "topic": "t", "payload": 1, "key": 7 }, "key"),
        ] {
            let refused = parse_row(&row).expect_err("it is not a row");
            assert!(refused.contains(why), "{refused}");
        }
    }
}
