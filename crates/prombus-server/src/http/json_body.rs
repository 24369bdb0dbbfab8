//! Small JSON bodies: read completely, validated, and with their names matched against those that the route knows.

use super::ApiError;
use super::call::Call;
use super::fields::{self, IgnoredNames, Shape, object};
use super::request_body::{BodyReader, HeldBytes};
use bytes::Bytes;
use prombus_protocol::{ErrorCode, Json, JsonError};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Maximum size of such a body.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// The whole body of a request.
pub(super) async fn body_of(call: &mut Call) -> Result<Bytes, ApiError> {
    let body = std::mem::take(&mut call.body);
    let incoming =
        BodyReader::new(&call.gateway, &call.headers, body, BODY_BYTES_MAX, call.standing.clone())?;
    let body = incoming.whole(&mut HeldBytes::new(&call.gateway)).await?;
    // The last piece may have arrived together with the reload.
    call.standing.check()?;
    Ok(body)
}

/// Checks that the body is valid JSON with bounded nesting, so that parsing it is cheap.
fn checked(body: &[u8]) -> Result<&str, ApiError> {
    Json::new(body).map(|json| json.get()).map_err(|error| {
        let code = match error {
            JsonError::TooDeep { .. } => ErrorCode::BadRequest,
            _ => ErrorCode::BadJson,
        };
        ApiError::new(code, error).at("the body")
    })
}

/// The options in a body, which must be an object. Names that are not in the shape are added to `ignored`.
pub(super) fn options_of<T: DeserializeOwned>(
    body: &[u8],
    shape: &Shape,
    ignored: &mut IgnoredNames,
) -> Result<T, ApiError> {
    let json = object(&fields_of(body, shape, ignored)?);
    let refused = |error: serde_json::Error| {
        ApiError::bad_request(format!("the body: {}", in_words(&error.to_string())))
    };
    let mut options: Value = serde_json::from_str(&json).map_err(refused)?;
    options.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(make_whole);
    serde_json::from_value(options).map_err(refused)
}

/// The message of the JSON parser, with the types in words instead of the names that Rust has for them.
fn in_words(message: &str) -> String {
    let Some((start, name)) = message.rsplit_once("expected ") else { return message.to_owned() };
    let words = match name.split(' ').next().unwrap_or_default() {
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        _ => return message.to_owned(),
    };
    let rest = name.split_once(' ').map(|(_, rest)| format!(" {rest}")).unwrap_or_default();
    format!("{start}expected {words}{rest}")
}

/// Turns a number such as `318.0` into the integer 318, as JSON Schema does.
fn make_whole(value: &mut Value) {
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() <= WHOLE_MAX;
    if value.is_f64()
        && let Some(number) = value.as_f64().filter(is_whole)
    {
        *value = Value::from(number as i64);
    }
}

/// The fields of a body, which must be an object. Names that are not in the shape are added to `ignored`.
pub(super) fn fields_of(
    body: &[u8],
    shape: &Shape,
    ignored: &mut IgnoredNames,
) -> Result<Vec<(&'static str, String)>, ApiError> {
    let fields = fields::canonical(checked(body)?, shape, ignored)?;
    fields.ok_or_else(|| ApiError::bad_request("the body must be a JSON object"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_type_is_described_in_words() {
        const SHAPE: Shape = Shape::flat(&["retention_days", "retention_ms", "compaction"]);
        let error = |body: &str| {
            let parsed =
                options_of::<prombus::TopicOptions>(body.as_bytes(), &SHAPE, &mut IgnoredNames::default());
            parsed.expect_err("a wrong type").message
        };
        let days = error(r#"{"retention_days":"soon"}"#);
        assert!(days.ends_with("string \"soon\", expected a number"), "{days}");
        let ms = error(r#"{"retention_ms":-1}"#);
        assert!(ms.ends_with("expected a whole number that is not negative"), "{ms}");
        let compaction = error(r#"{"compaction":"yes"}"#);
        assert!(compaction.ends_with("expected a boolean"), "{compaction}");
    }
}
