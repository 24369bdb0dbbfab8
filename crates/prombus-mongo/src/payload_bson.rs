//! Converts payloads to BSON, for queries by people. The engine never reads the BSON: it reads `payload_json`.

use crate::bson_writer::BsonWriter;
use mongodb::bson::{Bson, Document, RawDocumentBuf};
use serde_json::Value;

/// Deeper payloads are not stored as BSON, because MongoDB refuses documents that are nested deeper than about 180 levels.
const DEPTH_MAX: usize = 100;
/// Larger payloads are not stored as BSON.
const BYTES_MAX: usize = 4 << 20;
/// The limit on JSON and BSON of a payload together: the document must stay below 16 MB, and BSON can be seven times as large as JSON.
const BOTH_BYTES_MAX: usize = 14 << 20;

/// Writes the payload as the field `payload` if BSON can hold it. Otherwise writes nothing.
pub(crate) fn put_payload(writer: &mut BsonWriter, json: &str) {
    if json.len() > BYTES_MAX {
        return;
    }
    let start = writer.len();
    let mut deserializer = serde_json::Deserializer::from_str(json);
    // The recursion limit is not needed, because the depth is checked below.
    deserializer.disable_recursion_limit();
    if depth(json) > DEPTH_MAX {
        return;
    }
    let Ok(value) = <Value as serde::Deserialize>::deserialize(&mut deserializer) else { return };
    let is_put = put(writer, "payload", &value).is_some();
    if !is_put || writer.len() - start + json.len() > BOTH_BYTES_MAX {
        writer.truncate(start);
    }
}

/// A JSON text as a BSON value; `None` if BSON cannot hold it.
pub(crate) fn bson_of_json(json: &str) -> Option<Bson> {
    let mut writer = BsonWriter::default();
    let outer = writer.begin();
    let start = writer.len();
    put_payload(&mut writer, json);
    if writer.len() == start {
        return None;
    }
    writer.end(outer);
    let raw = RawDocumentBuf::from_bytes(writer.into_bytes()).ok()?;
    Document::try_from(raw.as_ref()).ok()?.remove("payload")
}

/// The nesting depth of brackets outside strings.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Writes a value as a field. Returns `None` if BSON cannot hold it.
fn put(writer: &mut BsonWriter, name: &str, value: &Value) -> Option<()> {
    match value {
        Value::Null => writer.null(name),
        Value::Bool(value) => writer.boolean(name, *value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(value), _) => match i32::try_from(value) {
                Ok(value) => writer.i32(name, value),
                Err(_) => writer.i64(name, value),
            },
            (None, Some(value)) => writer.double(name, value),
            (None, None) => return None,
        },
        Value::String(text) => writer.string(name, text),
        Value::Array(values) => {
            let array = writer.begin_array(name);
            for (at, value) in values.iter().enumerate() {
                put(writer, &at.to_string(), value)?;
            }
            writer.end(array);
        }
        Value::Object(fields) => {
            let document = writer.begin_document(name);
            for (name, value) in fields {
                // A name in BSON ends at NUL.
                if name.contains('\0') {
                    return None;
                }
                put(writer, name, value)?;
            }
            writer.end(document);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::doc;

    fn written(json: &str) -> Document {
        let mut writer = BsonWriter::default();
        let document = writer.begin();
        put_payload(&mut writer, json);
        writer.end(document);
        let raw = RawDocumentBuf::from_bytes(writer.into_bytes()).expect("it is a document");
        Document::try_from(raw.as_ref()).expect("it can be read")
    }

    #[test]
    fn payloads_can_be_queried_by_field_and_type() {
        let json = r#"{"pid":12345,"big":9007199254740993,"cpu":12.5,"up":true,"none":null,"tags":["a",{"b":[]}],"$x.y":"é"}"#;
        let expected = doc! { "payload": {
            "pid": 12345_i32, "big": 9_007_199_254_740_993_i64, "cpu": 12.5, "up": true, "none": null,
            "tags": ["a", { "b": [] }], "$x.y": "é",
        } };
        assert_eq!(written(json), expected);
        assert_eq!(written("7"), doc! { "payload": 7_i32 });
        assert_eq!(written("18446744073709551615"), doc! { "payload": 18_446_744_073_709_551_615_f64 });
    }

    #[test]
    fn payloads_that_bson_cannot_hold_are_not_written() {
        let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
        let large = format!("\"{}\"", "x".repeat(BYTES_MAX));
        let long = format!("[1{}]", ",1".repeat(1_500_000));
        for json in [r#"{"a\u0000b":1}"#, &deep, &large, &long, "{"] {
            assert_eq!(written(json), doc! {}, "{}", &json[..json.len().min(50)]);
        }
        let brackets = format!("\"{}\"", "[\\\"".repeat(200));
        assert_eq!(written(&brackets).len(), 1);
    }
}
