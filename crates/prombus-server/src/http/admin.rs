//! Routes that change groups, for operators. A body says what the frame of the same name says on a WebSocket, and is read by the
//! same code.

use super::body::{Held, Incoming};
use super::call::Call;
use super::groups::may_see;
use super::{Answered, ApiError, answer};
use bytes::Bytes;
use prombus::{GroupError, GroupSpec, MemberOptions, SettleOutcome, Verdict};
use prombus_protocol::{
    ClientFrame, CursorPosition, ErrorCode, GroupName, Json, JsonError, Pattern, RawValue, SubscribeOptions,
    parse_client_frame,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// Bodies here are small.
const BODY_BYTES_MAX: usize = 64 * 1024;

type Fields<'a> = BTreeMap<&'a str, &'a RawValue>;

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
        body => SubscribeOptions::from_json(checked(body)?)?,
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
    answer::json(&Created { created: joined.created })
}

/// `DELETE /groups/{topic}/{group}`: for admins; a group that was made to expire also for whoever may join it.
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
    answer::json(&Deleted { deleted: true })
}

/// `POST /groups/{topic}/{group}/seek`.
pub(super) async fn seek(mut call: Call) -> Answered {
    let (topic, group) = call.group()?;
    let body = body_of(&mut call).await?;
    let frame = frame_of("SEEK", &topic, &group, &fields_of(&body)?);
    let ClientFrame::Seek { to, .. } = parse_client_frame(&frame)?.frame else {
        return Err(ApiError::internal("SEEK was read as something else"));
    };
    let backend = &call.gateway.backend;
    backend.seek(topic.as_str(), group.as_str(), to).await?;
    answer::json(&Sought { cursor: backend.cursor(topic.as_str(), group.as_str()).await? })
}

/// `POST /groups/{topic}/{group}/settle`: an ack or a nack on behalf of whoever has the event.
pub(super) async fn settle(mut call: Call) -> Answered {
    let (topic, group) = call.group()?;
    let body = body_of(&mut call).await?;
    let mut fields = fields_of(&body)?;
    let op = match fields.remove("verdict").map(RawValue::get) {
        Some("\"ack\"") => "ACK",
        Some("\"nack\"") => "NACK",
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
    answer::json(&Settled { stale: outcome == SettleOutcome::Stale })
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

/// The object that a body is. (serde would take a list of values in the order of fields, too.)
pub(super) fn object_of<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let json = checked(body)?;
    if !json.trim_start().starts_with('{') {
        return Err(ApiError::bad_request("the body: an object was expected"));
    }
    serde_json::from_str(json).map_err(|error| ApiError::bad_request(format!("the body: {error}")))
}

fn fields_of(body: &[u8]) -> Result<Fields<'_>, ApiError> {
    serde_json::from_str(checked(body)?)
        .map_err(|_| ApiError::bad_request("the body: an object with plain names was expected"))
}

/// The frame that would say the same.
fn frame_of(op: &str, topic: &Pattern, group: &GroupName, fields: &Fields<'_>) -> Vec<u8> {
    // Names of topics and groups need no escapes.
    let mut frame = format!("{{\"op\":\"{op}\",\"topic\":\"{topic}\",\"group\":\"{group}\"");
    let own = ["op", "topic", "group", "corr"];
    for (name, value) in fields.iter().filter(|(name, _)| !own.contains(name)) {
        let name = RawName(name);
        frame.push_str(&format!(",{name}:{}", value.get()));
    }
    frame.push('}');
    frame.into_bytes()
}

/// A name as a JSON string.
struct RawName<'a>(&'a str);

impl std::fmt::Display for RawName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = Vec::new();
        prombus_protocol::put_string(&mut text, self.0);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}
