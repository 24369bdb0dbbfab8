//! Tests of the routes without a socket, over a bus in memory. As on a connection, a request passes first
//! [`admit`](super::admit), then the router.

mod access;
mod bodies;
mod dead_letters;
mod group_admin;
mod groups;
mod list;
mod metrics;
mod openapi;
mod ops;
mod patterns;
mod publish;
mod read;
mod reload;
mod state;
mod subscribe;
mod tickets;

use super::{admit, router};
use crate::auth::{TokenHash, TokenOptions};
use crate::gateway::Gateway;
use crate::live::LiveOptions;
use crate::options::ServerOptions;
use crate::peer::Peer;
use crate::shutdown::{StopSender, Stopping};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Builder;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use prombus::Bus;
use serde_json::Value;
use std::sync::Arc;
use tower::ServiceExt as _;

/// A server without sockets.
pub(super) struct Rig {
    pub(super) gateway: Arc<Gateway>,
    pub(super) bus: Bus,
    pub(super) stop: StopSender,
    peer: Arc<Peer>,
    router: Router,
}

/// A complete response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Rig {
    /// Creates a server without auth.
    pub(super) fn open() -> Self {
        Self::with(ServerOptions::default())
    }

    /// Creates a server with tokens. The name of a token is also its secret.
    pub(super) fn with_tokens(tokens: &[(&str, &[&str])]) -> Self {
        Self::with(token_options(tokens))
    }

    pub(super) fn with(options: ServerOptions) -> Self {
        let bus = Bus::builder().max_payload_bytes(options.max_payload_bytes).memory().expect("a bus");
        Self::over(bus, options)
    }

    /// Creates a server over an existing bus.
    pub(super) fn over(bus: Bus, options: ServerOptions) -> Self {
        let (stop, stopping) = Stopping::new();
        let live = LiveOptions::new(&options, None).expect("auth");
        let gateway = Arc::new(Gateway::new(Arc::clone(bus.backend()), live, options, stopping));
        let peer = Peer::local(gateway.rates.connection(), &gateway.metrics.connections);
        let router = router(Arc::clone(&gateway));
        Self { gateway, bus, stop, peer, router }
    }

    /// Sends a request and returns the response before its body is complete.
    pub(super) async fn start(&self, request: Request) -> Response {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(Arc::clone(&self.peer));
        if let Err(refused) = admit(&self.gateway.live.current().guard, self.peer.ends, &parts) {
            return refused;
        }
        let answered = self.router.clone().oneshot(Request::from_parts(parts, body)).await;
        answered.expect("a router never fails")
    }

    pub(super) async fn send(&self, request: Request) -> Answer {
        let (parts, body) = self.start(request).await.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send(get(path)).await
    }

    pub(super) async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.send(request("POST", path).body(body.into()).expect("a request")).await
    }

    /// Publishes numbers. Each is the payload and the ts of an event.
    pub(super) async fn fill(&self, topic: &str, numbers: std::ops::Range<i64>) {
        let mut batch = self.bus.batch();
        for number in numbers {
            let options = prombus::PublishOptions { ts: Some(number), ..Default::default() };
            batch.push(topic, &number, &options).expect("an event");
        }
        self.bus.publish_batch(batch).await.expect("published");
    }
}

impl Answer {
    #[track_caller]
    pub(super) fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json", "{self:?}");
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// The JSON of a successful response.
    #[track_caller]
    pub(super) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// Checks status and code, and returns the message.
    #[track_caller]
    pub(super) fn error(&self, status: u16, code: &str) -> String {
        let json = self.json();
        assert_eq!((self.status.as_u16(), json["code"].as_str()), (status, Some(code)), "{json}");
        assert_eq!(self.headers["x-content-type-options"], "nosniff");
        json["error"].as_str().expect("a message").to_owned()
    }

    pub(super) fn lines(&self) -> Vec<Value> {
        let lines = self.body.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("JSON")).collect()
    }
}

/// Options with tokens. The name of a token is also its secret.
pub(super) fn token_options(tokens: &[(&str, &[&str])]) -> ServerOptions {
    let mut options = ServerOptions::default();
    for (name, scopes) in tokens {
        options.auth.tokens.push(TokenOptions {
            name: (*name).to_owned(),
            secret: TokenHash::of(name),
            scopes: scopes.iter().map(|scope| scope.parse().expect("a scope")).collect(),
        });
    }
    options
}

/// A request as a browser or curl on this machine sends it.
pub(super) fn request(method: &str, path: &str) -> Builder {
    Request::builder().method(method).uri(path).header("host", "localhost:8090")
}

pub(super) fn get(path: &str) -> Request {
    request("GET", path).body(Body::empty()).expect("a request")
}
