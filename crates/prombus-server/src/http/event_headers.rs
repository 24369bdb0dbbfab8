//! Selects the request headers that become headers of the event: those that begin with `x-`, except those used for credentials
//! and by proxies.

use super::ApiError;
use super::fields::shown;
use axum::http::{HeaderMap, HeaderName};
use prombus_protocol::{MAX_HEADER_NAME_BYTES, MAX_HEADER_VALUE_BYTES};
use std::collections::BTreeMap;

/// Prefixes of excluded names. They match without a dash too: `X-CSRFToken` is excluded.
const EXCLUDED: [&str; 11] = [
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
    "x-session",
];

/// The event's headers, names in lower case.
pub(super) fn event_headers(headers: &HeaderMap) -> Result<BTreeMap<String, String>, ApiError> {
    let mut kept = BTreeMap::new();
    for name in headers.keys().filter(|name| is_kept(name)) {
        let name = name.as_str();
        if name.len() > MAX_HEADER_NAME_BYTES {
            let problem = format!("its name is longer than {MAX_HEADER_NAME_BYTES} bytes");
            return Err(ApiError::bad_request(format!("header {:?}: {problem}", shown(name))));
        }
        let mut text = String::new();
        for value in headers.get_all(name) {
            let value = std::str::from_utf8(value.as_bytes())
                .map_err(|_| ApiError::bad_request(format!("header {name:?}: its value is not UTF-8")))?;
            // HTTP joins the values of a repeated header with commas.
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(value);
        }
        if text.len() > MAX_HEADER_VALUE_BYTES {
            let problem = format!("its value is longer than {MAX_HEADER_VALUE_BYTES} bytes");
            return Err(ApiError::bad_request(format!("header {name:?}: {problem}")));
        }
        kept.insert(name.to_owned(), text);
    }
    Ok(kept)
}

fn is_kept(name: &HeaderName) -> bool {
    let name = name.as_str();
    // `x-author` begins with `x-auth`, but is not a credential.
    let is_author = name == "x-author" || name.starts_with("x-author-");
    name.starts_with("x-") && (is_author || !EXCLUDED.iter().any(|prefix| name.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_x_headers_without_credentials_are_selected() {
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
            "x-session-token",
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
