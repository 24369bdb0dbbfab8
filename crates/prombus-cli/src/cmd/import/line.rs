//! Parses a line of an import: an event, or only a payload.

use prombus_client::{PublishOptions, RawValue, Record};
use prombus_protocol::{Json, check_topic};
use serde::Deserialize;
use std::borrow::Cow;

/// An event whose fields are not parsed yet. `seq` and unknown fields are ignored.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(borrow, default)]
    topic: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    ts: Option<&'a RawValue>,
    #[serde(borrow, default)]
    key: Option<&'a RawValue>,
    #[serde(borrow, default)]
    headers: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tags: Option<&'a RawValue>,
    #[serde(borrow, default)]
    caused_by: Option<&'a RawValue>,
    #[serde(borrow, default)]
    sid: Option<&'a RawValue>,
    #[serde(borrow, default)]
    addressee: Option<&'a RawValue>,
}

/// The record of a line. `topic` replaces the topic in the line.
pub fn record(line: &[u8], topic: Option<&str>, is_payload: bool) -> Result<Record, String> {
    let text =
        std::str::from_utf8(line).map_err(|error| format!("not UTF-8 at byte {}", error.valid_up_to()))?;
    if is_payload {
        Json::new(text.as_bytes()).map_err(|error| error.to_string())?;
        let payload = RawValue::from_string(text.trim().to_owned()).map_err(|error| error.to_string())?;
        let topic = topic.unwrap_or_default().to_owned();
        return Ok(Record { topic, payload, options: PublishOptions::default() });
    }
    // serde would accept a JSON list as the values of the fields, in order.
    if text.trim_start().starts_with('[') {
        return Err("not an event {\"payload\": …}, but a list".to_owned());
    }
    let envelope: Envelope<'_> = serde_json::from_str(text)
        .map_err(|error| format!("not an event {{\"payload\": …}}: {}", place(&error)))?;
    Json::new(envelope.payload.get().as_bytes()).map_err(|error| format!("the payload is {error}"))?;
    let topic = match topic.or(envelope.topic.as_deref()) {
        Some(topic) => topic.to_owned(),
        None => return Err("the line has no topic; name one: prombus import TOPIC FILE".to_owned()),
    };
    check_topic(&topic).map_err(|error| error.to_string())?;
    let parts = [
        ("id", envelope.id),
        ("ts", envelope.ts),
        ("key", envelope.key),
        ("headers", envelope.headers),
        ("tags", envelope.tags),
        ("caused_by", envelope.caused_by),
        ("sid", envelope.sid),
        ("addressee", envelope.addressee),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| format!("\"{name}\":{}", value.get())))
        .collect();
    let options =
        PublishOptions::from_json(&format!("{{{}}}", parts.join(","))).map_err(|error| error.to_string())?;
    Ok(Record { topic, payload: envelope.payload.to_owned(), options })
}

/// The error with its column. The line number of the JSON parser is left out: it is always 1.
fn place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.split_once(" at line ") {
        Some((what, _)) => format!("{what} at column {}", error.column()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_keeps_its_fields() {
        let line = br#"{"id":"0196f1d0-0000-7000-8000-000000000001","seq":7,"ts":5,"topic":"a","key":"k","tags":["t"],
            "headers":{"h":"v"},"addressee":{"subscription":"a.*","group":"g"},"payload":null}"#;
        let record = record(line, None, false).unwrap();
        assert_eq!((record.topic.as_str(), record.payload.get()), ("a", "null"));
        assert_eq!((record.options.ts, record.options.key.as_deref()), (Some(5), Some("k")));
        assert_eq!(record.options.addressee.expect("it is kept").subscription, "a.*");
        assert!(record.options.id.is_some() && record.options.tags == ["t"]);
    }

    #[test]
    fn a_line_that_is_not_an_event_is_refused_with_a_reason() {
        let cases: [(&[u8], &str); 7] = [
            (b"hello", "column 1"),
            (b"{\"payload\":1", "column"),
            (b"[1]", "a list"),
            (b"{\"topic\":\"a\"}", "payload"),
            (b"{\"payload\":1}", "no topic"),
            (b"{\"payload\":1,\"topic\":\"a b\"}", "topic name"),
            (b"{\"payload\":1,\"topic\":\"a\",\"id\":\"x\"}", "id"),
        ];
        for (line, why) in cases {
            let error = record(line, None, false).unwrap_err();
            assert!(error.contains(why), "{}: {error}", String::from_utf8_lossy(line));
        }
        assert!(record(b"\xff", None, false).unwrap_err().contains("UTF-8"));
        assert!(record(b"{", Some("a"), true).is_err());
    }

    #[test]
    fn any_json_value_is_a_payload() {
        let record = record(b" {\"payload\": [1, 2]} ", Some("a"), true).unwrap();
        assert_eq!(record.payload.get(), "{\"payload\": [1, 2]}");
    }
}
