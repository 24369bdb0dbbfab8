//! `POST /publish/{topic}`: publishes one event, or several as lines. Either all of them are stored or none; the response is sent
//! when they are durable.

use super::answer::{self, Answered};
use super::call::Call;
use super::fields::IgnoredNames;
use super::ndjson_lines::NdjsonLines;
use super::request_body::{BodyReader, HeldBytes};
use super::{ApiError, envelope, event_headers, idempotency_header};
use axum::http::{HeaderMap, header};
use prombus::{PublishBatch, Published};
use prombus_protocol::{Addressee, ErrorCode, PublishOptions, Topic, Uuid};
use serde::Serialize;

/// Maximum memory for the events of one request; one commit holds about as much.
const BATCH_BYTES_MAX: usize = 64 << 20;
/// Maximum size of a record without its payload.
const ENVELOPE_BYTES_MAX: usize = 512 * 1024;

/// The error of a publish with an addressee by a token without the scope `admin`.
pub(crate) const ADDRESSEE_FORBIDDEN: &str = "\"addressee\" needs a token with the scope \"admin\"";

#[derive(Serialize)]
struct PublishedList {
    count: usize,
    events: Vec<Published>,
}

/// Collects the events of a request into a batch.
struct Intake {
    batch: PublishBatch,
    topic: Topic,
    /// Options from the query and the headers. They apply to every event that does not set its own.
    defaults: PublishOptions,
    /// Whether each event is a whole record, not only a payload.
    is_envelope: bool,
    /// The `Idempotency-Key` of the request.
    key: Option<Uuid>,
    /// Unknown names in the query and in records.
    ignored: IgnoredNames,
    /// Whether events may have an addressee.
    is_admin: bool,
}

pub(super) async fn publish(call: Call) -> Answered {
    let topic = call.topic()?;
    if !call.principal.may_publish(topic.as_str()) {
        return Err(ApiError::forbidden(call.principal.publish_refusal(topic.as_str())));
    }
    if call.gateway.stopping.is_stopping() {
        return Err(ApiError::new(ErrorCode::Unavailable, call.gateway.stopping.reason()));
    }
    let is_many = is_ndjson(&call.headers);
    let defaults = options_of(&call)?;
    let key = idempotency_header::key_of(&call.headers)?;
    if defaults.id.is_some() && (is_many || key.is_some()) {
        let message =
            "\"id\" is for a single event without Idempotency-Key; for several events, send Idempotency-Key";
        return Err(ApiError::bad_request(message));
    }
    let is_envelope = call.query.flag("envelope")?.unwrap_or(false);
    let is_admin = call.principal.is_admin();
    let Call { gateway, peer, headers, body, ignored, mut standing, .. } = call;
    let batch = gateway.backend.batch();
    let mut intake = Intake { batch, topic, defaults, is_envelope, key, ignored, is_admin };
    let mut held = HeldBytes::new(&gateway);

    let envelope_bytes = if is_envelope { ENVELOPE_BYTES_MAX } else { 0 };
    let one_bytes_max = gateway.options.max_payload_bytes.saturating_add(envelope_bytes);
    let limit_bytes = if is_many { usize::MAX } else { one_bytes_max };
    let incoming = BodyReader::new(&gateway, &headers, body, limit_bytes, standing.clone())?;
    if is_many {
        read_lines(incoming, NdjsonLines::new(one_bytes_max), &mut intake, &mut held).await?;
    } else {
        let whole = incoming.whole(&mut held).await?;
        intake.defaults.id = intake.defaults.id.or(intake.key.take());
        intake.add(&whole)?;
    }

    // The last piece may have arrived together with the reload.
    standing.check()?;
    let count = u32::try_from(intake.batch.len()).unwrap_or(u32::MAX);
    gateway.rates.take_publish(&*gateway.backend, &peer.rate, intake.topic.as_str(), count)?;
    let mut events = gateway.backend.publish(intake.batch).await?;
    match events.pop() {
        Some(event) if !is_many => answer::done(&event, &intake.ignored),
        last => {
            events.extend(last);
            answer::done(&PublishedList { count: events.len(), events }, &intake.ignored)
        }
    }
}

/// Reads the events of all lines. After an error, the rest of the body is read and discarded, so that the client receives the
/// error response instead of a closed connection.
async fn read_lines(
    mut incoming: BodyReader,
    mut lines: NdjsonLines,
    intake: &mut Intake,
    held: &mut HeldBytes,
) -> Result<(), ApiError> {
    let mut refused = None;
    while let Some(piece) = incoming.next().await? {
        if refused.is_some() {
            continue;
        }
        let decoder_bytes = incoming.decoder_bytes();
        held.grow_to(intake.batch.byte_count() + lines.rest_bytes() + piece.len() + decoder_bytes).await?;
        let pushed = lines.push(&piece, &mut |number, line| intake.add_line(number, line));
        refused = pushed.err();
        if intake.batch.byte_count() > BATCH_BYTES_MAX {
            let message =
                format!("{} events are too large for one request: send fewer at a time", intake.batch.len());
            refused = Some(ApiError::new(ErrorCode::TooLarge, message));
        }
    }
    if let Some(refused) = refused {
        return Err(refused);
    }
    lines.finish(&mut |number, line| intake.add_line(number, line))?;
    if intake.batch.is_empty() {
        return Err(ApiError::bad_request("the body is empty: expected one JSON value per line"));
    }
    Ok(())
}

impl Intake {
    fn add_line(&mut self, number: usize, line: &[u8]) -> Result<(), ApiError> {
        self.add(line).map_err(|error| error.at(format_args!("line {number}")))
    }

    fn add(&mut self, json: &[u8]) -> Result<(), ApiError> {
        let id = self.key.map(|key| idempotency_header::id_of(key, self.batch.len()));
        if !self.is_envelope {
            self.defaults.id = id.or(self.defaults.id);
            self.check_addressee(&self.defaults)?;
            return Ok(self.batch.push_json(self.topic.clone(), json, &self.defaults)?);
        }
        let (payload, mut options) = envelope::open(json, &self.topic, &self.defaults, &mut self.ignored)?;
        options.id = options.id.or(id);
        self.check_addressee(&options)?;
        Ok(self.batch.push_json(self.topic.clone(), payload.get().as_bytes(), &options)?)
    }
}

impl Intake {
    /// Only admins may publish to a single group.
    fn check_addressee(&self, options: &PublishOptions) -> Result<(), ApiError> {
        if options.addressee.is_some() && !self.is_admin {
            return Err(ApiError::forbidden(ADDRESSEE_FORBIDDEN));
        }
        Ok(())
    }
}

fn addressee_of(json: &str) -> Result<Addressee, ApiError> {
    let options = PublishOptions::from_json(&format!("{{\"addressee\":{json}}}"))?;
    options
        .addressee
        .ok_or_else(|| ApiError::bad_request("addressee: expected {\"subscription\": …, \"group\": …}"))
}

/// The publish options in the query and the headers.
fn options_of(call: &Call) -> Result<PublishOptions, ApiError> {
    let query = &call.query;
    let options = PublishOptions {
        id: query.uuid("id")?,
        ts: query.ts("ts")?,
        key: query.one("key")?.map(str::to_owned),
        headers: event_headers::event_headers(&call.headers)?,
        tags: query.all("tag").map(str::to_owned).collect(),
        caused_by: query.uuids("caused_by")?,
        sid: query.uuid("sid")?,
        addressee: match query.one("addressee")? {
            Some(json) => Some(addressee_of(json)?),
            None => None,
        },
    };
    options.check()?;
    Ok(options)
}

/// Whether the body has one event per line. A body of any other type is one event: `curl -d` declares every body as a form.
fn is_ndjson(headers: &HeaderMap) -> bool {
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = text.split(';').next().unwrap_or_default().trim();
    ["application/x-ndjson", "application/ndjson"].iter().any(|it| media_type.eq_ignore_ascii_case(it))
}
