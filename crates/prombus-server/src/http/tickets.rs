//! `POST /tickets`: issues tickets for clients that cannot send a header.
//!
//! Without a body, a ticket works once, on any topic that its token may read. With `{"topic", "query"?}`, it works for that one
//! subscription, also for reconnects.

use super::ApiError;
use super::answer::{self, Answered};
use super::call::Call;
use super::fields::{IgnoredNames, Shape};
use super::json_body::{body_of, options_of};
use super::parameters::{self, ParameterIn};
use super::query::Query;
use crate::auth::{SseTickets, TicketScope, sse_ticket_life_ms};
use crate::clock::now_ms;
use axum::http::{HeaderValue, StatusCode, header};
use prombus_protocol::{ErrorCode, Pattern};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The first use of a ticket must come within this time.
const TICKET_MS: u64 = 30_000;

/// The fields of the body.
const WANTED: Shape = Shape::flat(&["topic", "query"]);

#[derive(Deserialize)]
struct Wanted {
    topic: String,
    #[serde(default)]
    query: Option<WantedQuery>,
}

/// A query as text, or as an object of names and values.
#[derive(Deserialize)]
#[serde(untagged)]
enum WantedQuery {
    Text(String),
    Fields(Map<String, Value>),
}

#[derive(Serialize)]
struct TicketView {
    ticket: String,
    /// The time within which the ticket must be used for the first time.
    expires_in_ms: u64,
    /// How long the ticket may be used for reconnects; `None` if it works only once.
    #[serde(skip_serializing_if = "Option::is_none")]
    reconnect_ms: Option<i64>,
}

/// `POST /tickets`.
pub(super) async fn ticket(mut call: Call) -> Answered {
    let body = body_of(&mut call).await?;
    let now_ms = now_ms();
    let ticket = if body.trim_ascii().is_empty() {
        let ticket =
            call.gateway.tickets.issue(Arc::clone(&call.principal), now_ms).map_err(|error| ApiError {
                retry_after_ms: Some(TICKET_MS),
                ..ApiError::new(ErrorCode::LimitReached, error).with_status(StatusCode::TOO_MANY_REQUESTS)
            })?;
        TicketView { ticket, expires_in_ms: TICKET_MS, reconnect_ms: None }
    } else {
        let Wanted { topic, query } = options_of(&body, &WANTED, &mut call.ignored)?;
        let topic = Pattern::new(topic).map_err(|error| ApiError::from(error).at("\"topic\""))?;
        call.check_may_read(topic.as_str())?;
        let query = query.map_or_else(|| Ok(Query::default()), WantedQuery::read)?;
        let query = named(query, &mut call.ignored)?;
        let scope = TicketScope::new(topic.as_str(), query.pairs());
        let key = SseTickets::new_key().map_err(ApiError::internal)?;
        let key = call.gateway.backend.keep_first(SseTickets::KEY_NAME, key).await?;
        let issued = call.gateway.sse_tickets.issue(&key, &call.principal, scope, now_ms);
        let life_ms = sse_ticket_life_ms(&call.principal, now_ms);
        TicketView {
            ticket: issued.map_err(ApiError::internal)?,
            expires_in_ms: TICKET_MS.min(life_ms.unsigned_abs()),
            reconnect_ms: Some(life_ms),
        }
    };
    let mut response = answer::done(&ticket, &call.ignored)?;
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The query with its names in the spelling of the route. The query of a subscription is normalized in the same way before it is
/// compared with the ticket's.
fn named(query: Query, ignored: &mut IgnoredNames) -> Result<Query, ApiError> {
    let names = parameters::SUBSCRIBE.iter().filter(|it| it.place == ParameterIn::Query).map(|it| it.name);
    let (query, unknown) =
        query.with_names(&names.collect::<Vec<_>>()).map_err(|error| error.at("\"query\""))?;
    unknown.names().iter().for_each(|name| ignored.add(name));
    Ok(query)
}

impl WantedQuery {
    fn read(self) -> Result<Query, ApiError> {
        let fields = match self {
            Self::Text(text) => {
                let text = text.strip_prefix('?').unwrap_or(&text);
                return Query::parse(text).map_err(|error| error.at("\"query\""));
            }
            Self::Fields(fields) => fields,
        };
        let mut pairs = Vec::new();
        for (name, value) in fields {
            let values = if let Value::Array(values) = value { values } else { vec![value] };
            for value in values {
                let value = match value {
                    Value::String(text) => text,
                    Value::Number(number) => number.to_string(),
                    _ => {
                        let message = "\"query\": a value must be text, a number, or a list of them";
                        return Err(ApiError::bad_request(message));
                    }
                };
                pairs.push((name.clone(), value));
            }
        }
        Ok(Query::of(pairs))
    }
}
