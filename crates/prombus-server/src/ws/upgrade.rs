//! The WebSocket handshake: checks the HTTP upgrade request and makes the headers of the response.

use super::permessage_deflate::Deflate;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Version, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The GUID that RFC 6455 appends to the key.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The subprotocol, for clients that offer one.
const SUBPROTOCOL: &str = "prombus";

/// A request that cannot become a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a WebSocket upgrade: {what}")]
pub(crate) struct BadUpgrade {
    pub(crate) status: StatusCode,
    /// The problem.
    what: &'static str,
}

/// An accepted upgrade: the headers of the response.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) headers: [Option<(HeaderName, HeaderValue)>; 5],
    /// How messages are compressed; `None` if they are not.
    pub(crate) deflate: Option<Deflate>,
}

/// Whether the request asks for a WebSocket, on a path that has one.
pub(crate) fn is_wanted<B>(request: &Request<B>) -> bool {
    matches!(request.uri().path(), "/" | "/ws") && has_token(request.headers(), &header::UPGRADE, "websocket")
}

/// Whether a list header contains this token.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|it| it.trim().eq_ignore_ascii_case(token))
}

/// Checks the upgrade request. `may_deflate`: whether compression is accepted if the client offers it.
pub(crate) fn accept(parts: &Parts, may_deflate: bool) -> Result<Accepted, BadUpgrade> {
    let bad = |what| Err(BadUpgrade { status: StatusCode::BAD_REQUEST, what });
    if parts.version < Version::HTTP_11 {
        return bad("the version must be HTTP/1.1");
    }
    if parts.method != Method::GET {
        return bad("the method must be GET");
    }
    if !has_token(&parts.headers, &header::CONNECTION, "upgrade") {
        return bad("the Connection header must contain Upgrade");
    }
    if parts.headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        let status = StatusCode::UPGRADE_REQUIRED;
        return Err(BadUpgrade { status, what: "Sec-WebSocket-Version must be 13" });
    }
    let key = parts.headers.get(header::SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
    let is_key = |key: &&[u8]| STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16);
    let Some(key) = key.filter(is_key) else { return bad("Sec-WebSocket-Key must be 16 bytes in base64") };
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, KEY_SUFFIX].concat());
    let Ok(accept) = HeaderValue::from_str(&STANDARD.encode(hash)) else { return bad("the key is unusable") };
    let offered = parts.headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    let offered = offered.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    // Case-sensitive: a client compares the response with its offer.
    let names_us = offered.map(str::trim).any(|offer| offer == SUBPROTOCOL);
    let protocol = names_us.then(|| (header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL)));
    let deflate = may_deflate.then(|| Deflate::negotiate(&parts.headers)).flatten();
    let extensions = deflate.map(|deflate| (header::SEC_WEBSOCKET_EXTENSIONS, deflate.answer()));
    Ok(Accepted {
        deflate,
        headers: [
            Some((header::CONNECTION, HeaderValue::from_static("Upgrade"))),
            Some((header::UPGRADE, HeaderValue::from_static("websocket"))),
            Some((header::SEC_WEBSOCKET_ACCEPT, accept)),
            protocol,
            extensions,
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::get("/ws");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request")
    }

    fn parts(headers: &[(&str, &str)]) -> Parts {
        request(headers).into_parts().0
    }

    const GOOD: [(&str, &str); 4] = [
        ("upgrade", "WebSocket"),
        ("connection", "keep-alive, Upgrade"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    #[test]
    fn the_accept_header_is_that_of_the_rfc_example() {
        let parts = parts(&GOOD);
        assert!(is_wanted(&request(&GOOD)));
        let accepted = accept(&parts, true).expect("a good upgrade");
        let value = accepted.headers.iter().flatten().find(|(name, _)| name == header::SEC_WEBSOCKET_ACCEPT);
        assert_eq!(value.expect("an answer").1, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(accepted.headers[3].is_none() && accepted.headers[4].is_none());
    }

    #[test]
    fn incomplete_upgrades_are_refused() {
        for left_out in &GOOD[1..] {
            let headers: Vec<_> = GOOD.iter().filter(|header| *header != left_out).copied().collect();
            assert!(accept(&parts(&headers), true).is_err(), "without {}", left_out.0);
        }
        let mut headers = GOOD.to_vec();
        headers[3].1 = "short";
        assert!(accept(&parts(&headers), true).is_err());
        headers[3].1 = GOOD[3].1;
        headers[2].1 = "8";
        assert_eq!(
            accept(&parts(&headers), true).expect_err("an old version").status,
            StatusCode::UPGRADE_REQUIRED
        );
    }
}
