//! Routes that change groups, for operators. A body has the fields of the corresponding WebSocket frame, and is parsed by the
//! same code.

use super::ApiError;
use super::answer::{self, Answered, Deleted};
use super::call::Call;
use super::fields::{IgnoredNames, Shape, object};
use super::groups::may_see;
use super::json_body::{body_of, fields_of};
use prombus::{GroupError, GroupSpec, MemberOptions, SeekPreview, SettleOutcome, Verdict};
use prombus_protocol::{
    ClientFrame, CursorPosition, ErrorCode, GroupName, Pattern, SubscribeOptions, parse_client_frame,
};
use serde::Serialize;

/// The start position of a group.
const START: Shape = Shape::flat(&["from", "ts", "afterId"]);
/// The value of `header` has no shape: the names of headers are the user's.
const FILTER: Shape = Shape::flat(&["key", "tag", "header"]);
/// The options of SUBSCRIBE. The names from `manualAck` on are accepted without effect, as in a frame, because clients send them.
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
const SETTLE: Shape = Shape::flat(&["id", "verdict", "reason", "delay_ms", "dead", "extend_ms"]);

#[derive(Serialize)]
struct Created {
    created: bool,
}

#[derive(Serialize)]
struct Sought {
    cursor: Option<CursorPosition>,
}

/// The result of a seek that was not done.
#[derive(Serialize)]
struct Previewed {
    preview: bool,
    /// Where the group would be.
    cursor: CursorPosition,
    /// The number of settled events that would be delivered again.
    redeliver: u64,
    /// The number of unsettled events that would be skipped.
    skip: u64,
    /// The number of leases that would become void.
    leases: u64,
    /// The number of events that the group would have to settle.
    lag: u64,
    /// Whether the numbers are exact; otherwise they are upper bounds.
    exact: bool,
}

#[derive(Serialize)]
struct Paused {
    paused: bool,
}

#[derive(Serialize)]
struct Settled {
    stale: bool,
    /// How long until the lease ends, after an extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_in_ms: Option<u64>,
}

/// `PUT /groups/{topic}/{group}`: creates a group without members.
pub(super) async fn make(mut call: Call) -> Answered {
    let (subscription, group) = call.group()?;
    let body = body_of(&mut call).await?;
    let options = match body.trim_ascii() {
        [] => SubscribeOptions::default(),
        body => SubscribeOptions::from_json(&object(&fields_of(body, &GROUP, &mut call.ignored)?))?,
    };
    let spec = GroupSpec::from_options(subscription, group, &options)?;
    let joined = call.gateway.backend.join(spec, MemberOptions::default()).await?;
    joined.membership.leave().await?;
    answer::done(&Created { created: joined.created }, &call.ignored)
}

/// `DELETE /groups/{topic}/{group}`: for admins. A group with `expireMs` can also be deleted by tokens that may join it.
pub(super) async fn delete(call: Call) -> Answered {
    let (topic, group) = call.group()?;
    if !call.principal.is_admin() {
        let forbidden = || ApiError::forbidden(crate::auth::NEEDS_ADMIN);
        // Checked before the lookup, so that the response does not reveal whether the group exists.
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
        return Err(ApiError::internal("SEEK was parsed as another frame"));
    };
    let backend = &call.gateway.backend;
    if call.query.flag("preview")? == Some(true) {
        let preview = backend.preview_seek(topic.as_str(), group.as_str(), to).await?;
        let SeekPreview { cursor, redeliver, skip, leases, lag, is_exact: exact } = preview;
        let previewed = Previewed { preview: true, cursor, redeliver, skip, leases, lag, exact };
        return answer::done(&previewed, &call.ignored);
    }
    backend.seek(topic.as_str(), group.as_str(), to).await?;
    let cursor = backend.cursor(topic.as_str(), group.as_str()).await?;
    answer::done(&Sought { cursor }, &call.ignored)
}

/// `POST /groups/{topic}/{group}/pause`.
pub(super) async fn pause(call: Call) -> Answered {
    set_paused(call, true).await
}

/// `POST /groups/{topic}/{group}/resume`.
pub(super) async fn resume(call: Call) -> Answered {
    set_paused(call, false).await
}

async fn set_paused(call: Call, is_paused: bool) -> Answered {
    let (topic, group) = call.group()?;
    call.gateway.backend.pause_group(topic.as_str(), group.as_str(), is_paused).await?;
    answer::done(&Paused { paused: is_paused }, &call.ignored)
}

/// `POST /groups/{topic}/{group}/settle`: applies a verdict to an event on behalf of the member that holds it.
pub(super) async fn settle(mut call: Call) -> Answered {
    let (topic, group) = call.group()?;
    let body = body_of(&mut call).await?;
    let fields = fields_of(&body, &SETTLE, &mut call.ignored)?;
    let SettleRequest { frame, is_release } = SettleRequest::of(&topic, &group, fields, &mut call.ignored)?;
    let parsed = parse_client_frame(&frame)?.frame;
    let (id, verdict) = match &parsed {
        ClientFrame::Ack { id, .. } if is_release => (*id, Verdict::Release),
        ClientFrame::Ack { id, .. } => (*id, Verdict::Ack),
        ClientFrame::Nack { id, reason, dead: true, .. } => {
            (*id, Verdict::GiveUp { reason: reason.as_deref() })
        }
        ClientFrame::Nack { id, reason, delay_ms, .. } => {
            (*id, Verdict::Nack { delay_ms: *delay_ms, reason: reason.as_deref() })
        }
        ClientFrame::Modack { id, extend_ms: Some(extend_ms), .. } => {
            (*id, Verdict::Extend { extend_ms: *extend_ms })
        }
        ClientFrame::Modack { .. } => {
            return Err(ApiError::bad_request("the verdict \"extend\" needs \"extend_ms\""));
        }
        _ => return Err(ApiError::internal("a verdict was parsed as another frame")),
    };
    let settled = call.gateway.backend.settle(topic.as_str(), group.as_str(), id, verdict).await;
    let outcome = settled.map_err(|error| match error {
        GroupError::Store(_) => ApiError::new(ErrorCode::AckFailed, error),
        error => error.into(),
    })?;
    let ends_in_ms = match outcome {
        SettleOutcome::Extended(ends_in_ms) => Some(ends_in_ms),
        SettleOutcome::Counted | SettleOutcome::Stale => None,
    };
    answer::done(&Settled { stale: outcome == SettleOutcome::Stale, ends_in_ms }, &call.ignored)
}

/// A verdict as the frame with the same fields. No frame releases a lease: that verdict has the fields of an ack.
struct SettleRequest {
    frame: Vec<u8>,
    is_release: bool,
}

impl SettleRequest {
    /// Fields that do not belong to the verdict are added to `ignored`.
    fn of(
        topic: &Pattern,
        group: &GroupName,
        mut fields: Vec<(&'static str, String)>,
        ignored: &mut IgnoredNames,
    ) -> Result<Self, ApiError> {
        let verdict = fields.iter().position(|(name, _)| *name == "verdict").map(|at| fields.remove(at).1);
        let verdict = verdict.and_then(|json| serde_json::from_str::<String>(&json).ok());
        let (op, used): (_, &[&str]) = match verdict.as_deref() {
            Some("ack" | "release") => ("ACK", &["id"]),
            Some("nack") => ("NACK", &["id", "reason", "delay_ms", "dead"]),
            Some("dead") => ("NACK", &["id", "reason"]),
            Some("extend") => ("MODACK", &["id", "extend_ms"]),
            _ => {
                let verdicts = "\"verdict\" must be \"ack\", \"nack\", \"dead\", \"release\" or \"extend\"";
                return Err(ApiError::bad_request(verdicts));
            }
        };
        fields.retain(|(name, _)| {
            let is_used = used.contains(name);
            if !is_used {
                ignored.add(name);
            }
            is_used
        });
        if verdict.as_deref() == Some("dead") {
            fields.push(("dead", "true".to_owned()));
        }
        Ok(Self {
            frame: frame_of(op, topic, group, &fields),
            is_release: verdict.as_deref() == Some("release"),
        })
    }
}

/// The equivalent WebSocket frame.
fn frame_of(op: &str, topic: &Pattern, group: &GroupName, fields: &[(&str, String)]) -> Vec<u8> {
    let text = |text: &str| format!("{text:?}");
    // Names of topics and groups need no escapes.
    let mut all = vec![("op", text(op)), ("topic", text(topic.as_str())), ("group", text(group.as_str()))];
    all.extend(fields.iter().map(|(name, value)| (*name, value.clone())));
    object(&all).into_bytes()
}
