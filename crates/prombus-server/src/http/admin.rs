//! Routes that change groups, for operators. A body says what the frame of the same name says on a WebSocket, and is read by the
//! same code.

use super::body::{Held, Incoming};
use super::call::Call;
use super::fields::{self, Ignored, Shape, object};
use super::groups::may_see;
use super::{Answered, ApiError, answer};
use bytes::Bytes;
use prombus::{GroupError, GroupSpec, MemberOptions, SettleOutcome, Verdict};
use prombus_protocol::{
    ClientFrame, CursorPosition, ErrorCode, GroupName, Json, JsonError, Pattern, SubscribeOptions,
    parse_client_frame,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Bodies here are small.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Where a group starts.
const START: Shape = Shape::flat(&["from", "ts", "afterId"]);
/// Names of headers are the user's.
const FILTER: Shape = Shape::flat(&["key", "tag", "header"]);
/// The options of SUBSCRIBE. The last ones have no effect, as in a frame: clients pass them on.
const GROUP: Shape = Shape {
    names: &[
        "from",
        "ts",
        "afterId",
        "topics",
        "filter",
        "batchSize",
        "maxInFlight",
        "ackTimeoutMs",
        "maxAttempts",
        "maxUnsettled",
        "name",
        "expireMs",
        "manualAck",
        "topic",
        "group",
        "payload",
        "partition",
        "ttlMs",
    ],
    nested: &[("from", START), ("filter", FILTER)],
};
const SEEK: Shape = Shape { names: &["to", "ts", "afterId"], nested: &[("to", START)] };
const SETTLE: Shape = Shape::flat(&["id", "verdict", "reason", "delay_ms", "dead"]);

#[derive(Serialize)]
struct Created {
    created: bool,
}

#[derive(Serialize)]
pub(super) struct Deleted {
    pub(super) deleted: bool,
}

#[derive(Serialize)]
struct Sought {
    cursor: Option<CursorPosition>,
}

#[derive(Serialize)]
struct Settled {
    stale: bool,
}

/// `PUT /groups/{topic}/{group}`: makes a group that nobody has joined yet.
pub(super) async fn make(mut call: Call) -> Answered {
    let (subscription, group) = call.group()?;
    let body = body_of(&mut call).await?;
    let options = match body.trim_ascii() {
        [] => SubscribeOptions::default(),
        body => SubscribeOptions::from_json(&object(&fields_of(body, &GROUP, &mut call.ignored)?))?,
    };
    let topics = options.topics.iter().map(Pattern::new).collect::<Result<_, _>>()?;
    let spec = GroupSpec {
        subscription,
        group,
        topics,
        filter: options.filter,
        from: options.from,
        expire_ms: options.expire_ms,
    };
    let joined = call.gateway.backend.join(spec, MemberOptions::default()).await?;
    joined.membership.leave().await?;
    answer::done(&Created { created: joined.created }, &call.ignored)
}

/// `DELETE /groups/{topic}/{group}`: for admins, and for a group that was made to expire also for tokens that may join it.
pub(super) async fn delete(call: Call) -> Answered {
    let (topic, group) = call.group()?;
    if !call.principal.is_admin() {
        let forbidden = || ApiError::forbidden("this needs a token with the scope \"admin\"");
        // Before looking: whether it is there is not everybody's business.
        if !call.principal.may_subscribe(topic.as_str(), Some(group.as_str())) {
            return Err(forbidden());
        }
        let info = call.gateway.backend.group(topic.as_str(), group.as_str()).await?;
        if info.is_none_or(|info| info.expire_ms.is_none() || !may_see(&call.principal, &info)) {
            return Err(forbidden());
        }
    }
    call.gateway.backend.delete_group(topic.as_str(), group.as_str()).await?;
    answer::done(&Deleted { deleted: true }, &call.ignored)
}

/// `POST /groups/{topic}/{group}/seek`.
pub(super) async fn seek(mut call: Call) -> Answered {
    let (topic, group) = call.group()?;
    let body = body_of(&mut call).await?;
    let frame = frame_of("SEEK", &topic, &group, &fields_of(&body, &SEEK, &mut call.ignored)?);
    let ClientFrame::Seek { to, .. } = parse_client_frame(&frame)?.frame else {
        return Err(ApiError::internal("SEEK was read as something else"));
    };
    let backend = &call.gateway.backend;
    backend.seek(topic.as_str(), group.as_str(), to).await?;
    let cursor = backend.cursor(topic.as_str(), group.as_str()).await?;
    answer::done(&Sought { cursor }, &call.ignored)
}

/// `POST /groups/{topic}/{group}/settle`: an ack or a nack on behalf of whoever has the event.
pub(super) async fn settle(mut call: Call) -> Answered {
    let (topic, group) = call.group()?;
    let body = body_of(&mut call).await?;
    let mut fields = fields_of(&body, &SETTLE, &mut call.ignored)?;
    let verdict = fields.iter().position(|(name, _)| *name == "verdict").map(|at| fields.remove(at).1);
    let verdict = verdict.and_then(|json| serde_json::from_str::<String>(&json).ok());
    let op = match verdict.as_deref() {
        Some("ack") => "ACK",
        Some("nack") => "NACK",
        _ => return Err(ApiError::bad_request("\"verdict\": \"ack\" or \"nack\" is needed")),
    };
    let frame = frame_of(op, &topic, &group, &fields);
    let parsed = parse_client_frame(&frame)?.frame;
    let (id, verdict) = match &parsed {
        ClientFrame::Ack { id, .. } => (*id, Verdict::Ack),
        ClientFrame::Nack { id, reason, dead: true, .. } => {
            (*id, Verdict::GiveUp { reason: reason.as_deref() })
        }
        ClientFrame::Nack { id, reason, delay_ms, .. } => {
            (*id, Verdict::Nack { delay_ms: *delay_ms, reason: reason.as_deref() })
        }
        _ => return Err(ApiError::internal("a verdict was read as something else")),
    };
    let settled = call.gateway.backend.settle(topic.as_str(), group.as_str(), id, verdict).await;
    let outcome = settled.map_err(|error| match error {
        GroupError::Store(_) => ApiError::new(ErrorCode::AckFailed, error),
        error => error.into(),
    })?;
    answer::done(&Settled { stale: outcome == SettleOutcome::Stale }, &call.ignored)
}

pub(super) async fn body_of(call: &mut Call) -> Result<Bytes, ApiError> {
    let body = std::mem::take(&mut call.body);
    let incoming = Incoming::new(&call.gateway, &call.headers, body, BODY_BYTES_MAX)?;
    incoming.whole(&mut Held::new(&call.gateway)).await
}

/// JSON that is not nested so deeply that reading it costs anything.
fn checked(body: &[u8]) -> Result<&str, ApiError> {
    Json::new(body).map(|json| json.get()).map_err(|error| {
        let code = match error {
            JsonError::TooDeep { .. } => ErrorCode::BadRequest,
            _ => ErrorCode::BadJson,
        };
        ApiError::new(code, error).at("the body")
    })
}

/// The options in a body, as an object with the names of a shape; the others are noted as ignored.
pub(super) fn options_of<T: DeserializeOwned>(
    body: &[u8],
    shape: &Shape,
    ignored: &mut Ignored,
) -> Result<T, ApiError> {
    let json = object(&fields_of(body, shape, ignored)?);
    let refused = |error| ApiError::bad_request(format!("the body: {error}"));
    let mut options: Value = serde_json::from_str(&json).map_err(refused)?;
    options.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(make_whole);
    serde_json::from_value(options).map_err(refused)
}

/// `318.0` is the integer 318, as in JSON schemas.
fn make_whole(value: &mut Value) {
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() <= WHOLE_MAX;
    if value.is_f64()
        && let Some(number) = value.as_f64().filter(is_whole)
    {
        *value = Value::from(number as i64);
    }
}

fn fields_of(
    body: &[u8],
    shape: &Shape,
    ignored: &mut Ignored,
) -> Result<Vec<(&'static str, String)>, ApiError> {
    let fields = fields::canonical(checked(body)?, shape, ignored)?;
    fields.ok_or_else(|| ApiError::bad_request("the body: an object was expected"))
}

/// The frame that would say the same.
fn frame_of(op: &str, topic: &Pattern, group: &GroupName, fields: &[(&str, String)]) -> Vec<u8> {
    let text = |text: &str| format!("{text:?}");
    // Names of topics and groups need no escapes.
    let mut all = vec![("op", text(op)), ("topic", text(topic.as_str())), ("group", text(group.as_str()))];
    all.extend(fields.iter().map(|(name, value)| (*name, value.clone())));
    object(&all).into_bytes()
}
