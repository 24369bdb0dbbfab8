//! Converts BSON values to JSON text, for documents that other programs or people wrote.

use base64::Engine as _;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document};
use std::fmt::Write as _;

/// Whole numbers up to this one are exact as doubles.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// A value as JSON. Types that JSON lacks become strings: dates in ISO 8601, ObjectIds in hex, UUIDs in their usual form, other bytes in
/// base64, and decimals as digits. Infinite numbers and NaN become `null`.
pub(crate) fn json_of(value: &Bson) -> String {
    let mut text = String::new();
    put(&mut text, value);
    text
}

/// A document as JSON.
pub(crate) fn json_of_document(document: &Document) -> String {
    let mut text = String::new();
    put_document(&mut text, document);
    text
}

/// A value as a key: text unchanged, an ObjectId as hex, everything else as JSON.
pub(crate) fn name_of(value: &Bson) -> String {
    match value {
        Bson::String(text) => text.clone(),
        Bson::ObjectId(id) => id.to_hex(),
        other => json_of(other),
    }
}

fn put(into: &mut String, value: &Bson) {
    match value {
        Bson::Document(document) => put_document(into, document),
        Bson::Array(values) => {
            into.push('[');
            for (at, value) in values.iter().enumerate() {
                if at > 0 {
                    into.push(',');
                }
                put(into, value);
            }
            into.push(']');
        }
        Bson::String(text) | Bson::Symbol(text) => put_text(into, text),
        Bson::Boolean(is_true) => into.push_str(if *is_true { "true" } else { "false" }),
        Bson::Int32(number) => drop(write!(into, "{number}")),
        Bson::Int64(number) => drop(write!(into, "{number}")),
        Bson::Double(number) => put_double(into, *number),
        Bson::Null | Bson::Undefined => into.push_str("null"),
        Bson::DateTime(at) => match at.try_to_rfc3339_string() {
            Ok(text) => put_text(into, &text),
            Err(_) => drop(write!(into, "{}", at.timestamp_millis())),
        },
        Bson::ObjectId(id) => put_text(into, &id.to_hex()),
        Bson::Decimal128(number) => put_text(into, &number.to_string()),
        Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes }) if bytes.len() == 16 => {
            let id = prombus::Uuid::from_slice(bytes).unwrap_or_default();
            put_text(into, &id.to_string());
        }
        Bson::Binary(Binary { bytes, .. }) => {
            put_text(into, &base64::engine::general_purpose::STANDARD.encode(bytes));
        }
        // Types that only MongoDB has: code, regular expressions, timestamps.
        other => put_text(into, &other.to_string()),
    }
}

fn put_document(into: &mut String, document: &Document) {
    into.push('{');
    for (at, (name, value)) in document.iter().enumerate() {
        if at > 0 {
            into.push(',');
        }
        put_text(into, name);
        into.push(':');
        put(into, value);
    }
    into.push('}');
}

/// A double that is a whole number is written without a fraction, because JavaScript programs store whole numbers as doubles.
fn put_double(into: &mut String, number: f64) {
    if !number.is_finite() {
        into.push_str("null");
    } else if number.fract() == 0.0 && number.abs() <= WHOLE_MAX {
        let _ = write!(into, "{}", number as i64);
    } else {
        into.push_str(&serde_json::Value::from(number).to_string());
    }
}

fn put_text(into: &mut String, text: &str) {
    into.push_str(&serde_json::Value::from(text).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::oid::ObjectId;
    use mongodb::bson::{DateTime, doc};

    #[test]
    fn values_become_json_in_the_order_of_their_fields() {
        let id = ObjectId::parse_str("507f1f77bcf86cd799439011").expect("an ObjectId");
        let bytes = Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2, 255] };
        let document = doc! {
            "z": 1_i32, "a": 2_i64, "whole": 3.0, "half": 0.5, "nan": f64::NAN, "text": "a\"é\n", "none": null,
            "list": [true, { "deep": [] }], "at": DateTime::from_millis(0), "_id": id, "bytes": bytes,
        };
        assert_eq!(
            json_of_document(&document),
            "{\"z\":1,\"a\":2,\"whole\":3,\"half\":0.5,\"nan\":null,\"text\":\"a\\\"é\\n\",\"none\":null,\
             \"list\":[true,{\"deep\":[]}],\"at\":\"1970-01-01T00:00:00Z\",\"_id\":\"507f1f77bcf86cd799439011\",\
             \"bytes\":\"AQL/\"}"
        );
        assert_eq!(name_of(&Bson::ObjectId(id)), "507f1f77bcf86cd799439011");
        assert_eq!(name_of(&Bson::String("as it is".to_owned())), "as it is");
        assert_eq!(name_of(&Bson::Int32(7)), "7");
    }
}
