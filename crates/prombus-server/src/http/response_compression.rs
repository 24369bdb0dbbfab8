//! Compresses responses for clients that accept it.

use super::entity_tag;
use axum::http::{Extensions, HeaderMap, StatusCode, Version, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::MethodRouter;
use tower_http::CompressionLevel;
use tower_http::compression::predicate::Predicate as _;
use tower_http::compression::{CompressionLayer, DefaultPredicate};

/// Marks a response that is not compressed although its route compresses others. Contains the original status.
#[derive(Clone, Copy)]
struct Plain(StatusCode);

/// Exempts a response from compression.
pub(super) fn plain(mut response: Response) -> Response {
    let status = response.status();
    response.extensions_mut().insert(Plain(status));
    response
}

/// Compresses the responses of these methods.
pub(super) fn compressed<S: Clone + Send + Sync + 'static>(methods: MethodRouter<S>) -> MethodRouter<S> {
    let is_not_plain = |_: StatusCode, _: Version, _: &HeaderMap, extensions: &Extensions| {
        extensions.get::<Plain>().is_none()
    };
    // The fastest level: large exports must not take CPU time from publishers.
    let layer = CompressionLayer::new().quality(CompressionLevel::Fastest);
    let layer = layer.compress_when(DefaultPredicate::new().and(is_not_plain));
    methods.layer(layer).layer(map_response(after))
}

async fn after(mut response: Response) -> Response {
    match response.extensions().get::<Plain>().copied() {
        // If Accept-Encoding excludes every encoding, the layer sets 406 and Vary on this response too: undo that.
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
