//! Which headers of a request become headers of the event: those that begin with `x-`, but none that credentials or proxies use.

use super::ApiError;
use super::fields::shown;
use axum::http::{HeaderMap, HeaderName};
use prombus_protocol::{MAX_HEADER_NAME_BYTES, MAX_HEADER_VALUE_BYTES};
use std::collections::BTreeMap;

/// Prefixes of names that are left out, also without a dash after them: `X-CSRFToken` is one too.
const KEPT_BACK: [&str; 10] = [
    "x-forwarded",
    "x-real-ip",
    "x-api-key",
    "x-apikey",
    "x-api-token",
    "x-auth",
    "x-csrf",
    "x-xsrf",
    "x-amz",
    "x-access-token",
];

/// The event's headers, names in lower case.
pub(super) fn event_headers(headers: &HeaderMap) -> Result<BTreeMap<String, String>, ApiError> {
    let mut kept = BTreeMap::new();
    for name in headers.keys().filter(|name| is_kept(name)) {
        let name = name.as_str();
        if name.len() > MAX_HEADER_NAME_BYTES {
            let allowed = format!("at most {MAX_HEADER_NAME_BYTES} bytes of a name are allowed");
            return Err(ApiError::bad_request(format!("header {:?}: {allowed}", shown(name))));
        }
        let mut text = String::new();
        for value in headers.get_all(name) {
            let value = std::str::from_utf8(value.as_bytes())
                .map_err(|_| ApiError::bad_request(format!("header {name:?}: its value is not UTF-8")))?;
            // One name with many values is one list, as everywhere in HTTP.
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(value);
        }
        if text.len() > MAX_HEADER_VALUE_BYTES {
            let allowed = format!("at most {MAX_HEADER_VALUE_BYTES} bytes of a value are allowed");
            return Err(ApiError::bad_request(format!("header {name:?}: {allowed}")));
        }
        kept.insert(name.to_owned(), text);
    }
    Ok(kept)
}

fn is_kept(name: &HeaderName) -> bool {
    let name = name.as_str();
    // The author of an event is no credential.
    let is_author = name == "x-author" || name.starts_with("x-author-");
    name.starts_with("x-") && (is_author || !KEPT_BACK.iter().any(|prefix| name.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_x_headers_are_taken_and_no_credentials() {
        let mut headers = HeaderMap::new();
        let names = [
            "x-trace",
            "x-author",
            "x-author-id",
            "authorization",
            "cookie",
            "content-type",
            "idempotency-key",
            "x-forwarded-for",
            "x-forwarded",
            "x-real-ip",
            "x-api-key",
            "x-apikey",
            "x-auth",
            "x-auth-token",
            "x-authorization",
            "x-csrf",
            "x-csrftoken",
            "x-csrf-token",
            "x-xsrf-token",
            "x-amz-date",
            "x-amzn-trace-id",
            "x-access-token",
        ];
        for name in names {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        let kept = event_headers(&headers).expect("headers");
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["x-author", "x-author-id", "x-trace"]);
    }

    #[test]
    fn bad_values_are_named() {
        let long = "a".repeat(MAX_HEADER_VALUE_BYTES + 1);
        for value in [b"\xff".as_slice(), long.as_bytes()] {
            let mut headers = HeaderMap::new();
            headers.insert("x-odd", HeaderValue::from_bytes(value).expect("a value"));
            let error = event_headers(&headers).expect_err("a bad value");
            assert!(error.status == 400 && error.message.contains("x-odd"), "{error:?}");
        }
        let mut headers = HeaderMap::new();
        headers.append("x-list", HeaderValue::from_static("a"));
        headers.append("x-list", HeaderValue::from_bytes("é".as_bytes()).expect("a value"));
        assert_eq!(event_headers(&headers).expect("headers")["x-list"], "a, é");
    }
}
