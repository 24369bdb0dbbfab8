//! The `Idempotency-Key` header: a request with the same key stores its events once, however often it is sent.

use super::ApiError;
use axum::http::HeaderMap;
use prombus_protocol::{Uuid, id_of_key};

/// The key of a request, as a UUID.
pub(super) fn key_of(headers: &HeaderMap) -> Result<Option<Uuid>, ApiError> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let refused = |why: &str| ApiError::bad_request(format!("header \"idempotency-key\": {why}"));
    if values.next().is_some() {
        return Err(refused("given more than once"));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| refused("its value is not UTF-8"))?.trim();
    // Some clients send it as a quoted string.
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    if text.is_empty() {
        return Err(refused("it is empty"));
    }
    Ok(Some(id_of_key(text)))
}

/// The id of the event at `position` in a request with several events, which share a key.
pub(super) fn id_of(key: Uuid, position: usize) -> Uuid {
    Uuid::new_v5(&key, position.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn key(text: &str) -> Result<Option<Uuid>, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", HeaderValue::from_bytes(text.as_bytes()).expect("a value"));
        key_of(&headers)
    }

    #[test]
    fn a_uuid_is_used_unchanged_and_anything_else_is_hashed() {
        let id = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
        assert_eq!(key(id).expect("a key").map(|id| id.to_string()).as_deref(), Some(id));
        let hashed = key("order 17").expect("a key").expect("one");
        assert_eq!(hashed.get_version_num(), 5);
        assert_eq!(key("\"order 17\"").expect("a key"), Some(hashed));
        // The hash must not change in later versions: clients rely on it.
        assert_eq!(hashed.to_string(), "4769d724-0b0d-510e-bc9b-5cca29704ade");
        assert_ne!(id_of(hashed, 0), id_of(hashed, 1));
        assert!(key("").is_err());
        assert!(key(" ").is_err());
    }
}
