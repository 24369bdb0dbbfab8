//! Access checks of requests: the host and origin guard for servers without auth, and tokens and tickets.
//!
//! A token is accepted only in the `Authorization` header, because URLs end up in logs. A client that cannot send the header
//! passes a ticket in the query.

use super::ApiError;
use super::last_event_id;
use super::query::Query;
use crate::auth::{
    AuthRefused, Authenticator, Guard, NEEDS_ADMIN, Principal, SseTickets, TicketRefused, TicketScope,
};
use crate::clock::now_ms;
use crate::gateway::Gateway;
use crate::peer::Ends;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use axum::response::{IntoResponse as _, Response};
use prombus_protocol::ErrorCode;
use std::sync::Arc;

/// What a caller needs to use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Nothing.
    Open,
    /// Any valid token; the handler checks the topic.
    Token,
    /// Like `Token`; a ticket in the query is accepted too.
    Ticket,
    /// A token with the scope `admin`.
    Admin,
}

/// Checks the framing, host and origin of a request. Runs before everything else, also for upgrades.
#[allow(clippy::result_large_err, reason = "the error is the response to send")]
pub(crate) fn admit(guard: &Guard, ends: Ends, parts: &Parts) -> Result<(), Response> {
    check_framing(parts).map_err(|refused| {
        let mut response = refused.into_response();
        // It is not certain where this request ends, so the connection is closed after the response.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    })?;
    check_guard(guard, ends, parts).map_err(ApiError::into_response)
}

/// Refuses requests that a proxy and this server could interpret differently (request smuggling).
fn check_framing(parts: &Parts) -> Result<(), ApiError> {
    let mut codings = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        let is_chunked = coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
        if !is_chunked || codings.next().is_some() {
            let error = ApiError::bad_request("unsupported Transfer-Encoding; supported: chunked");
            return Err(error.with_status(StatusCode::NOT_IMPLEMENTED));
        }
    }
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if parts.version == Version::HTTP_11 => {
            Err(ApiError::bad_request("the request has no Host header"))
        }
        (_, Some(_)) => Err(ApiError::bad_request("the request has several Host headers")),
        _ => Ok(()),
    }
}

fn check_guard(guard: &Guard, ends: Ends, parts: &Parts) -> Result<(), ApiError> {
    let host = only(&parts.headers, &header::HOST)?;
    let origin = only(&parts.headers, &header::ORIGIN)?;
    let check = |host| guard.check(host, origin, ends.local.ip(), ends.is_tls).map_err(ApiError::from);
    check(host)?;
    // An absolute request URI names a host too.
    parts.uri.authority().map_or(Ok(()), |authority| check(Some(authority.as_str())))
}

/// The value of a header that must not be repeated: a proxy and this server could each use a different value.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(ApiError::forbidden(format!("the request has several {name} headers")));
    }
    let text = value.to_str();
    text.map(Some).map_err(|_| ApiError::forbidden(format!("the {name} header cannot be read")))
}

/// The token of the `Authorization` header. A header with a scheme other than `Bearer` counts as absent.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(ApiError::bad_request("the request has several Authorization headers"));
    }
    let text = value.to_str().map_err(|_| ApiError::from(AuthRefused::Bad))?;
    let Some((scheme, token)) = text.trim().split_once(' ') else { return Ok(None) };
    Ok(scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start()))
}

/// The parts of a request that identify the caller, and that a ticket is checked against.
#[derive(Clone, Copy)]
pub(super) struct Requested<'a> {
    /// The topic in the path; empty where the route has none.
    pub(super) topic: &'a str,
    pub(super) headers: &'a HeaderMap,
    pub(super) query: &'a Query,
}

/// The caller, if it may use the route.
pub(super) fn authenticate(
    gateway: &Gateway,
    access: Access,
    requested: &Requested<'_>,
) -> Result<Arc<Principal>, ApiError> {
    if access == Access::Open {
        return Ok(Principal::anyone());
    }
    let auth = &gateway.live.current().auth;
    if !auth.is_configured() {
        return Ok(Principal::anyone());
    }
    let token = bearer(requested.headers)?;
    let ticket = if access == Access::Ticket { requested.query.one("ticket")? } else { None };
    let principal = match (token, ticket) {
        (None, Some(ticket)) if SseTickets::is_one(ticket) => redeem_sse(gateway, auth, ticket, requested)
            .map_err(|refused| ApiError::new(ErrorCode::BadToken, refused))?,
        (None, Some(ticket)) => redeem_once(gateway, auth, ticket)?,
        _ => auth.authenticate(token, now_ms())?,
    };
    if access == Access::Admin {
        check_is_admin(&principal)?;
    }
    Ok(principal)
}

/// Checks that the token of a request has the scope `admin`, for routes that a follower serves itself.
pub(super) fn check_admin_token(auth: &Authenticator, headers: &HeaderMap) -> Result<(), ApiError> {
    check_is_admin(&*auth.authenticate(bearer(headers)?, now_ms())?)
}

fn check_is_admin(principal: &Principal) -> Result<(), ApiError> {
    if principal.is_admin() {
        return Ok(());
    }
    Err(ApiError::forbidden(NEEDS_ADMIN))
}

/// The principal of a ticket that works once.
fn redeem_once(gateway: &Gateway, auth: &Authenticator, ticket: &str) -> Result<Arc<Principal>, ApiError> {
    let now_ms = now_ms();
    let principal = gateway.tickets.redeem(ticket, now_ms);
    // A reload may have revoked or changed the token since the ticket was issued.
    let is_valid =
        |principal: &Arc<Principal>| !principal.is_expired(now_ms) && auth.validity(principal).is_same();
    principal.filter(is_valid).ok_or_else(|| {
        ApiError::new(ErrorCode::BadToken, "the ticket is not valid: it works once, within 30 s")
    })
}

/// The principal of a ticket for one subscription.
fn redeem_sse(
    gateway: &Gateway,
    auth: &Authenticator,
    ticket: &str,
    requested: &Requested<'_>,
) -> Result<Arc<Principal>, TicketRefused> {
    // Without a key no ticket was ever issued.
    let key = gateway.backend.kept(SseTickets::KEY_NAME).ok_or(TicketRefused::Bad)?;
    let scope = TicketScope::new(requested.topic, requested.query.pairs());
    let is_reconnect = last_event_id::is_sent(requested.headers);
    gateway.sse_tickets.redeem(&key, ticket, scope, is_reconnect, auth, now_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(values: &[&'static str]) -> HeaderMap {
        let value = |text: &&'static str| (header::AUTHORIZATION, text.parse().expect("a header"));
        values.iter().map(value).collect()
    }

    #[test]
    fn the_scheme_is_bearer_in_any_case() {
        for text in ["Bearer abc", "bearer abc", "BEARER  abc", " Bearer abc "] {
            assert_eq!(bearer(&with(&[text])).expect("one header"), Some("abc"), "{text:?}");
        }
        for text in ["Basic abc", "abc", "Bearer", "Bearerabc"] {
            assert_eq!(bearer(&with(&[text])).expect("one header"), None, "{text:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()).expect("none"), None);
    }

    #[test]
    fn two_tokens_are_refused() {
        assert_eq!(bearer(&with(&["Bearer a", "Bearer b"])).expect_err("two").status, 400);
    }
}
