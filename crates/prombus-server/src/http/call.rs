//! An authenticated request, as handlers get it.

use super::ApiError;
use super::access::{self, Access, Requested};
use super::fields::IgnoredNames;
use super::parameters::{Parameter, ParameterIn};
use super::query::Query;
use crate::auth::Principal;
use crate::gateway::Gateway;
use crate::live::Standing;
use crate::peer::Peer;
use axum::body::Body;
use axum::extract::{FromRequestParts as _, RawPathParams, Request};
use axum::http::HeaderMap;
use prombus_protocol::{ErrorCode, GroupName, Pattern, Topic};
use std::sync::Arc;

/// What a handler gets.
pub(super) struct Call {
    pub(super) gateway: Arc<Gateway>,
    pub(super) principal: Arc<Principal>,
    pub(super) peer: Arc<Peer>,
    pub(super) headers: HeaderMap,
    pub(super) query: Query,
    /// Unknown names in the query; a handler adds the unknown names in the body.
    pub(super) ignored: IgnoredNames,
    pub(super) body: Body,
    /// Whether the caller still has its permissions.
    pub(super) standing: Standing,
    /// Decoded parameters of the path.
    path: Vec<(String, String)>,
}

impl Call {
    /// Authenticates the caller, and checks that it may use the route.
    pub(super) async fn new(
        access: Access,
        parameters: &[Parameter],
        gateway: Arc<Gateway>,
        request: Request,
    ) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let peer = parts.extensions.get::<Arc<Peer>>().cloned();
        let peer = peer.ok_or_else(|| ApiError::internal("the request has no peer"))?;
        let path = RawPathParams::from_request_parts(&mut parts, &()).await.map_err(|error| {
            // The parameters of a path are topics, groups and keys.
            ApiError::new(ErrorCode::BadTopic, error)
        })?;
        let path: Vec<(String, String)> =
            path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let topic = path.iter().find(|(name, _)| name == "topic").map_or("", |(_, value)| value);
        let version = gateway.live.version();
        let authenticate = |query: &Query| {
            let requested = Requested { topic, headers: &parts.headers, query };
            access::authenticate(&gateway, access, &requested)
        };
        let (query, ignored) = match named(parameters, parts.uri.query().unwrap_or_default()) {
            Ok(named) => named,
            // Callers without a valid token do not learn what is wrong with the query.
            Err((error, query)) => {
                authenticate(&query)?;
                return Err(error);
            }
        };
        let principal = authenticate(&query)?;
        let standing = Standing::new(&gateway.live, &principal, version);
        let headers = parts.headers;
        Ok(Self { gateway, principal, peer, headers, query, ignored, body, standing, path })
    }

    fn path(&self, name: &str) -> &str {
        self.path.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    /// The topic in the path.
    pub(super) fn topic(&self) -> Result<Topic, ApiError> {
        Ok(Topic::new(self.path("topic"))?)
    }

    /// The key in the path.
    pub(super) fn key(&self) -> &str {
        self.path("key")
    }

    /// The subscription and the group in the path.
    pub(super) fn group(&self) -> Result<(Pattern, GroupName), ApiError> {
        Ok((Pattern::new(self.path("topic"))?, GroupName::new(self.path("group"))?))
    }

    /// The topic or pattern in the path.
    pub(super) fn pattern(&self) -> Result<Pattern, ApiError> {
        Ok(Pattern::new(self.path("topic"))?)
    }

    /// Checks that the caller may read a topic or pattern without a group.
    pub(super) fn check_may_read(&self, topic: &str) -> Result<(), ApiError> {
        if self.principal.may_subscribe(topic, None) {
            return Ok(());
        }
        Err(ApiError::forbidden(self.principal.subscribe_refusal(topic, None)))
    }
}

/// The query with the parameters that the route knows, and the unknown names. An error comes with the query as it was sent, or an
/// empty one if it cannot be parsed.
fn named(parameters: &[Parameter], text: &str) -> Result<(Query, IgnoredNames), (ApiError, Query)> {
    let sent = Query::parse(text).map_err(|error| (error, Query::default()))?;
    let names = parameters.iter().filter(|it| it.place == ParameterIn::Query).map(|it| it.name);
    sent.with_names(&names.collect::<Vec<_>>()).map_err(|error| (error, sent))
}
