//! Compression of answers, for those who ask for it.

use super::entity_tag;
use axum::http::{Extensions, HeaderMap, StatusCode, Version, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::MethodRouter;
use tower_http::CompressionLevel;
use tower_http::compression::predicate::Predicate as _;
use tower_http::compression::{CompressionLayer, DefaultPredicate};

/// Marks an answer that is never compressed, whatever its route does with others; with its status.
#[derive(Clone, Copy)]
struct Plain(StatusCode);

/// An answer that is never compressed.
pub(super) fn plain(mut response: Response) -> Response {
    let status = response.status();
    response.extensions_mut().insert(Plain(status));
    response
}

/// Compresses what these methods answer.
pub(super) fn compressed<S: Clone + Send + Sync + 'static>(methods: MethodRouter<S>) -> MethodRouter<S> {
    let is_not_plain = |_: StatusCode, _: Version, _: &HeaderMap, extensions: &Extensions| {
        extensions.get::<Plain>().is_none()
    };
    // Fast: large exports must not take the cores from publishers.
    let layer = CompressionLayer::new().quality(CompressionLevel::Fastest);
    let layer = layer.compress_when(DefaultPredicate::new().and(is_not_plain));
    methods.layer(layer).layer(map_response(after))
}

async fn after(mut response: Response) -> Response {
    match response.extensions().get::<Plain>().copied() {
        // Where Accept-Encoding allows nothing, the layer has put 406 and a Vary also here.
        Some(Plain(status)) => {
            if response.status() != status {
                *response.status_mut() = status;
                response.headers_mut().remove(header::VARY);
            }
        }
        None => entity_tag::name_encoding(&mut response),
    }
    response
}
