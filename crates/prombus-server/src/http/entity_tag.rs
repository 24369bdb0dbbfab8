//! Entity tags. A tag is strong, so the compressed forms of an answer have tags of their own: `"x"`, `"x-gzip"`, `"x-zstd"`. A
//! client that has any of them has the answer.

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;

/// Encodings that the routes compress with.
const ENCODINGS: [&str; 2] = ["gzip", "zstd"];

/// The tag in `If-None-Match`, as the client wrote it, that identifies the same answer as `tag`.
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

/// Puts the tag of an answer, as long as it is not compressed.
pub(super) fn put(headers: &mut HeaderMap, tag: &str) {
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    // It may be kept, but must be asked for.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
}

/// Changes the tag of an answer that was compressed.
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
