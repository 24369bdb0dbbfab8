//! The response of `/metrics`: chooses the format by `Accept` and the encoding by `Accept-Encoding`. A leader and a follower use
//! it, and the router's compression only exists on a leader, so gzip is done here.

use super::answer;
use crate::metrics::Format;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write as _};

/// The response with the metrics that `render` writes in the accepted format. A client that accepts neither format gets the text
/// format, as scrapers of Prometheus expect.
pub(super) fn answer(headers: &HeaderMap, render: impl FnOnce(Format) -> String) -> Response {
    let format = format(headers);
    let text = render(format).into_bytes();
    let zipped = if accepts_gzip(headers) { gzip(&text).ok() } else { None };
    let is_zipped = zipped.is_some();
    let mut response = answer::typed(format.content_type(), Body::from(zipped.unwrap_or(text)));
    let vary = HeaderValue::from_static("accept, accept-encoding");
    response.headers_mut().insert(header::VARY, vary);
    if is_zipped {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn gzip(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    encoder.write_all(text)?;
    encoder.finish()
}

/// OpenMetrics if the client prefers it to the text format, or likes both equally well and names OpenMetrics.
fn format(headers: &HeaderMap) -> Format {
    let (mut open, mut text) = (0, 0);
    for element in elements(headers, &header::ACCEPT) {
        match element.name.as_str() {
            "application/openmetrics-text" if matches!(element.version(), None | Some("1.0.0")) => {
                open = open.max(element.quality);
            }
            "text/plain" if matches!(element.version(), None | Some("0.0.4")) => {
                text = text.max(element.quality);
            }
            _ => {}
        }
    }
    if open > 0 && open >= text { Format::OpenMetrics } else { Format::Text }
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let quality_of = |names: &[&str]| {
        let named =
            elements(headers, &header::ACCEPT_ENCODING).filter(|it| names.contains(&it.name.as_str()));
        named.map(|it| it.quality).max()
    };
    quality_of(&["gzip", "x-gzip"]).or_else(|| quality_of(&["*"])).is_some_and(|quality| quality > 0)
}

/// An element of a header such as `Accept`: a name with parameters.
struct Element<'a> {
    /// In lower case.
    name: String,
    parameters: Vec<(&'a str, &'a str)>,
    /// The quality in thousandths.
    quality: u32,
}

impl Element<'_> {
    fn version(&self) -> Option<&str> {
        self.parameter("version")
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|&(_, value)| value)
    }
}

/// The elements of all headers with this name. An element with an invalid quality counts as refused.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = Element<'a>> {
    let texts = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).map(|element| {
        let mut pieces = element.split(';').map(str::trim);
        let name = pieces.next().unwrap_or_default().to_ascii_lowercase();
        let parameters = pieces.filter_map(|piece| {
            let (name, value) = piece.split_once('=')?;
            Some((name.trim(), value.trim().trim_matches('"')))
        });
        let mut element = Element { name, parameters: parameters.collect(), quality: 0 };
        let quality = element.parameter("q").map_or(Some(1.0), |q| q.parse::<f32>().ok());
        element.quality = quality.map_or(0, |quality| (quality.clamp(0.0, 1.0) * 1000.0) as u32);
        element
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).expect("a header"))])
    }

    #[test]
    fn the_format_is_the_one_that_the_client_prefers() {
        // What Prometheus 2.42 and 3 send.
        let old = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                   text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let new = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                   application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                   text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, expected) in [
            (old, Format::OpenMetrics),
            (new, Format::OpenMetrics),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8", Format::OpenMetrics),
            ("application/openmetrics-text, text/plain", Format::OpenMetrics),
            ("application/openmetrics-text;q=0.4, text/plain;q=0.5", Format::Text),
            ("application/openmetrics-text;version=0.0.1", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=high", Format::Text),
            ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily", Format::Text),
            ("*/*", Format::Text),
            ("text/html, ;;q, ,=;q=1", Format::Text),
        ] {
            assert_eq!(format(&with(header::ACCEPT, accept)), expected, "{accept}");
        }
        assert_eq!(format(&HeaderMap::new()), Format::Text);
    }

    #[test]
    fn gzip_is_used_if_it_is_accepted() {
        for (accept, expected) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("*", true),
            ("*;q=0.5, gzip;q=0", false),
            ("gzip;q=0.0", false),
            ("identity", false),
            ("", false),
        ] {
            assert_eq!(accepts_gzip(&with(header::ACCEPT_ENCODING, accept)), expected, "{accept}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
