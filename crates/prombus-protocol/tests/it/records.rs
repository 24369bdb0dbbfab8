use crate::fixture;
use prombus_protocol::{
    Ack, Body, CursorPosition, DeadLetter, DeliveryContext, EventRecord, Uuid, put_record,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// A stored body and the record that clients receive, both as text.
#[derive(Deserialize)]
struct Event {
    name: String,
    id: Uuid,
    seq: u64,
    body: String,
    payload: String,
    record: String,
}

#[test]
fn a_record_is_its_body_after_id_and_seq() {
    for event in fixture::<Vec<Event>>("events") {
        let mut record = Vec::new();
        put_record(&mut record, event.id, event.seq, event.body.as_bytes());
        assert_eq!(String::from_utf8_lossy(&record), event.record, "{}", event.name);

        let body = Body::new(event.body.as_bytes());
        assert_eq!(body.payload(), Some(event.payload.as_str()), "{}", event.name);
        let read = body.record(event.id, event.seq).unwrap();
        let parsed: EventRecord = serde_json::from_str(&event.record).unwrap();
        let value: Value = serde_json::from_str(&event.record).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), value, "{}", event.name);
        assert_eq!(serde_json::to_value(parsed).unwrap(), value, "{}", event.name);
    }
}

#[test]
fn delivery_types_use_the_json_names_of_the_protocol() {
    let id = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
    fn same<T: serde::Serialize + serde::de::DeserializeOwned>(value: &Value) {
        let read: T = serde_json::from_str(&value.to_string()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), *value);
    }
    same::<CursorPosition>(&json!({"topic": "a.*"}));
    same::<CursorPosition>(&json!({"topic": "a", "lastId": id, "lastTs": 5}));
    same::<DeliveryContext>(&json!({
        "attempt": 2, "maxAttempts": 5, "cursor": {"topic": "a"}, "reason": "nacked", "ack_deadline_ms": 30000,
    }));
    same::<Ack>(&json!({"id": id, "ok": true}));
    same::<Ack>(&json!({"id": id, "ok": false, "err": "x", "stale": true}));
    same::<DeadLetter>(&json!({
        "topic": "a", "group": "g", "err": "boom", "attempts": 5, "ts": 7,
        "original": {"id": id, "seq": 3, "ts": 5, "topic": "a", "key": "k", "payload": {"x": [1]}},
    }));
}
