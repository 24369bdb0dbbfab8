//! Entity tags. A tag is strong, so each compressed form of a response has its own tag: `"x"`, `"x-gzip"`, `"x-zstd"`. A client
//! that sends any of these tags in `If-None-Match` already has the response.

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;

/// Encodings of compressed responses.
const ENCODINGS: [&str; 2] = ["gzip", "zstd"];

/// The tag in `If-None-Match` that identifies the same response as `tag`, possibly in a compressed form; `None` if there is no
/// such tag.
pub(super) fn known_as(headers: &HeaderMap, tag: &str) -> Option<String> {
    let values = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    for known in values.flat_map(|value| value.split(',')).map(str::trim) {
        if known == "*" {
            return Some(tag.to_owned());
        }
        let known = known.strip_prefix("W/").unwrap_or(known);
        if known == tag || ENCODINGS.iter().any(|encoding| known == with_encoding(tag, encoding)) {
            return Some(known.to_owned());
        }
    }
    None
}

/// Sets the tag of a response that is not compressed yet.
pub(super) fn put(headers: &mut HeaderMap, tag: &str) {
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    // Caches may keep the response, but must revalidate it.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
}

/// Adds the encoding to the tag of a compressed response.
pub(super) fn name_encoding(response: &mut Response) {
    let headers = response.headers_mut();
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if let (Some(tag), Some(encoding)) = (text(header::ETAG), text(header::CONTENT_ENCODING))
        && let Ok(tag) = HeaderValue::from_str(&with_encoding(tag, encoding))
    {
        headers.insert(header::ETAG, tag);
    }
}

fn with_encoding(tag: &str, encoding: &str) -> String {
    format!("{}-{encoding}\"", tag.trim_end_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_compared_one_by_one() {
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("\"a\", W/\"b\" , \"d-zstd\""));
        assert_eq!(known_as(&headers, "\"a\"").as_deref(), Some("\"a\""));
        assert_eq!(known_as(&headers, "\"b\"").as_deref(), Some("\"b\""));
        assert_eq!(known_as(&headers, "\"c\""), None);
        assert_eq!(known_as(&headers, "\"d\"").as_deref(), Some("\"d-zstd\""));
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        assert_eq!(known_as(&headers, "\"c\"").as_deref(), Some("\"c\""));
    }
}
