//! Parses the frames of clients in one pass over the bytes, without building a tree or copying the payload.

use super::client::{ClientFrame, Parsed, Token};
use super::field_names::FieldNames;
use crate::body::unescaped;
use crate::error_code::ErrorCode;
use crate::group_name::check_group_name;
use crate::json::{Json, JsonError};
use crate::json_scanner::{JsonFault, Scanner};
use crate::limits::{MAX_ACK_TIMEOUT_MS, MAX_CORR_BYTES, MAX_NACK_DELAY_MS, MAX_REASON_BYTES, MIN_EXTEND_MS};
use crate::options::fields::Ignored;
use crate::options::untyped::Untyped;
use crate::options::{OptionError, PublishOptions, Start, SubscribeOptions};
use crate::pattern::check_pattern;
use crate::topic_name::{TopicError, check_topic};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use thiserror::Error;
use uuid::Uuid;

/// Why a frame was refused: the content of its ERR.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{code}: {msg}")]
pub struct FrameError {
    /// `bad_json`, `bad_request` or `bad_topic`.
    pub code: ErrorCode,
    /// The problem, for people.
    pub msg: String,
    /// The frame's `corr` as the client sent it, if it could be read.
    pub corr: Option<String>,
}

/// Parses a client's frame. Field names may be in camelCase or snake_case. A field that is `null` counts as absent, except the payload.
/// If a name occurs twice in one spelling, the last value counts. Unknown fields are ignored and listed in [`Parsed::ignored`],
/// unless they look like a mistake.
///
/// # Errors
/// `bad_json` if it is not JSON; `bad_topic` if the topic name is not valid; `bad_request` if it is not a frame, has an option out of
/// range or a mistyped field, or is nested deeper than [`MAX_NESTING`](crate::limits::MAX_NESTING).
pub fn parse_client_frame(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
    parse_with(bytes, |_, _| ())
}

/// Parses a frame as [`parse_client_frame`] does, and passes its fields to `show` if it has no ignored fields.
pub(super) fn parse_with<'a>(
    bytes: &'a [u8],
    show: impl FnOnce(&FrameFields<'a>, &ClientFrame<'a>),
) -> Result<Parsed<'a>, FrameError> {
    let mut fields = FrameFields::default();
    let mut ignored = Ignored::default();
    let read = fields.read(bytes);
    let corr = fields.corr();
    let result = match (read, &corr) {
        (Err(refusal), _) => Err(refusal),
        (Ok(()), Err(refusal)) => Err(refusal.clone()),
        (Ok(()), Ok(_)) => fields.frame(&mut ignored),
    };
    let corr = corr.unwrap_or(None);
    match result {
        Ok(frame) => {
            // Frames with ignored fields are rare, and are always parsed in full.
            if ignored.is_empty() {
                show(&fields, &frame);
            }
            Ok(Parsed { corr, frame, ignored: ignored.into_names() })
        }
        Err(Refusal { code, msg, too_deep }) => {
            let corr =
                corr.map(str::to_owned).or_else(|| if too_deep { corr_of_deep_frame(bytes) } else { None });
            Err(FrameError { code, msg, corr })
        }
    }
}

/// An error before its `corr` is known.
#[derive(Clone)]
struct Refusal {
    code: ErrorCode,
    msg: String,
    /// Whether the frame is nested too deep, so that its `corr` must be read in another way.
    too_deep: bool,
}

impl Refusal {
    fn new(code: ErrorCode, msg: impl ToString) -> Self {
        Self { code, msg: msg.to_string(), too_deep: false }
    }

    fn bad_request(msg: impl ToString) -> Self {
        Self::new(ErrorCode::BadRequest, msg)
    }
}

impl From<JsonError> for Refusal {
    fn from(error: JsonError) -> Self {
        let too_deep = matches!(error, JsonError::TooDeep { .. });
        let code = if too_deep { ErrorCode::BadRequest } else { ErrorCode::BadJson };
        Self { code, msg: error.to_string(), too_deep }
    }
}

impl From<TopicError> for Refusal {
    fn from(error: TopicError) -> Self {
        Self::new(ErrorCode::BadTopic, error)
    }
}

impl From<OptionError> for Refusal {
    fn from(error: OptionError) -> Self {
        let code = match error {
            OptionError::Topic { .. } => ErrorCode::BadTopic,
            _ => ErrorCode::BadRequest,
        };
        Self::new(code, error)
    }
}

/// The fields of any frame as JSON text, not parsed yet.
#[derive(Default)]
pub(super) struct FrameFields<'a> {
    op: Option<Json<'a>>,
    pub(super) corr: Option<Json<'a>>,
    token: Option<Json<'a>>,
    topic: Option<Json<'a>>,
    group: Option<Json<'a>>,
    pub(super) payload: Option<Json<'a>>,
    pub(super) opts: Option<Json<'a>>,
    pub(super) id: Option<Json<'a>>,
    reason: Option<Json<'a>>,
    delay_ms: Option<Json<'a>>,
    extend_ms: Option<Json<'a>>,
    to: Option<Json<'a>>,
    ts: Option<Json<'a>>,
    after_id: Option<Json<'a>>,
    dead: Option<Json<'a>>,
    /// Fields with other names.
    others: Vec<(Cow<'a, str>, Json<'a>)>,
    /// A field that the frame has in two spellings, with different values.
    contradiction: Option<(&'static str, Cow<'a, str>)>,
}

impl<'a> FrameFields<'a> {
    /// Checks the whole text and cuts out the fields. After an error, the fields before it are available.
    fn read(&mut self, bytes: &'a [u8]) -> Result<(), Refusal> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| JsonError::NotUtf8 { position: error.valid_up_to() })?;
        let mut scanner = Scanner::new(bytes);
        scanner.skip_whitespace();
        if scanner.peek() != Some(b'{') {
            Json::new(bytes)?;
            return Err(Refusal::bad_request("a frame is a JSON object with an \"op\""));
        }
        self.read_object(&mut scanner, text).map_err(|fault| JsonError::at(&scanner, fault))?;
        if !self.others.is_empty() {
            self.take_other_spellings();
        }
        Ok(())
    }

    fn read_object(&mut self, scanner: &mut Scanner<'a>, text: &'a str) -> Result<(), JsonFault> {
        scanner.skip_byte();
        scanner.skip_whitespace();
        if scanner.peek() == Some(b'}') {
            scanner.skip_byte();
        } else {
            loop {
                self.read_field(scanner, text)?;
                scanner.skip_whitespace();
                if scanner.peek() == Some(b'}') {
                    scanner.skip_byte();
                    break;
                }
                scanner.expect(b',', JsonFault::CommaOrBrace)?;
                scanner.skip_whitespace();
            }
        }
        scanner.skip_whitespace();
        if scanner.at_end() { Ok(()) } else { Err(JsonFault::Trailing) }
    }

    fn read_field(&mut self, scanner: &mut Scanner<'a>, text: &'a str) -> Result<(), JsonFault> {
        if scanner.peek() != Some(b'"') {
            return Err(JsonFault::Name);
        }
        let start = scanner.position() + 1;
        scanner.string()?;
        let name = &text[start..scanner.position() - 1];
        scanner.skip_whitespace();
        scanner.expect(b':', JsonFault::Colon)?;
        scanner.skip_whitespace();
        let value = Json::scan(scanner, text)?;
        // A name that cannot be unescaped is an unknown name.
        let name = unescaped(name).unwrap_or(Cow::Borrowed(name));
        let slot = match &*name {
            "op" => &mut self.op,
            "corr" => &mut self.corr,
            "token" => &mut self.token,
            "topic" => &mut self.topic,
            "group" => &mut self.group,
            "payload" => {
                self.payload = Some(value);
                return Ok(());
            }
            "opts" => &mut self.opts,
            "id" => &mut self.id,
            "reason" => &mut self.reason,
            "delay_ms" => &mut self.delay_ms,
            "extend_ms" => &mut self.extend_ms,
            "to" => &mut self.to,
            "ts" => &mut self.ts,
            "afterId" => &mut self.after_id,
            "dead" => &mut self.dead,
            _ => {
                if value.get() != "null" {
                    self.others.push((name, value));
                }
                return Ok(());
            }
        };
        *slot = (value.get() != "null").then_some(value);
        Ok(())
    }

    /// Moves fields that use the other spelling of a name into their slots.
    fn take_other_spellings(&mut self) {
        for (name, value) in std::mem::take(&mut self.others) {
            let (known, slot) = match &*name {
                "delayMs" => ("delay_ms", &mut self.delay_ms),
                "extendMs" => ("extend_ms", &mut self.extend_ms),
                "after_id" => ("afterId", &mut self.after_id),
                _ => {
                    self.others.push((name, value));
                    continue;
                }
            };
            if slot.is_some_and(|slot| !is_same(slot, value)) {
                self.contradiction = Some((known, name));
            }
            *slot = Some(value);
        }
    }

    /// Checks the fields that the frame does not use: a mistake is refused, others are listed as ignored.
    fn check_unused(&self, op: &str, ignored: &mut Ignored) -> Result<(), Refusal> {
        if let Some((field, other)) = &self.contradiction {
            let (field, other) = ((*field).to_owned(), other.to_string());
            return Err(OptionError::Contradiction { field, other }.into());
        }
        let Some(names) = FieldNames::of(op) else { return Ok(()) };
        let slots = [
            ("token", self.token.is_some()),
            ("topic", self.topic.is_some()),
            ("group", self.group.is_some()),
            ("payload", self.payload.is_some_and(|payload| payload.get() != "null")),
            ("opts", self.opts.is_some()),
            ("id", self.id.is_some()),
            ("reason", self.reason.is_some()),
            ("delay_ms", self.delay_ms.is_some()),
            ("extend_ms", self.extend_ms.is_some()),
            ("to", self.to.is_some()),
            ("ts", self.ts.is_some()),
            ("afterId", self.after_id.is_some()),
            ("dead", self.dead.is_some()),
        ];
        for (name, _) in slots.iter().filter(|(name, is_there)| *is_there && !names.frame.contains(name)) {
            names.check_unused(name, ignored)?;
        }
        for (name, _) in &self.others {
            names.check_unused(name, ignored)?;
        }
        match self.opts {
            Some(opts) if names.opts.is_empty() => Ok(names.check_useless_opts(&untyped(opts)?)?),
            _ => Ok(()),
        }
    }

    fn corr(&self) -> Result<Option<&'a str>, Refusal> {
        let Some(corr) = self.corr else { return Ok(None) };
        let corr = corr.get();
        if !is_corr(corr) {
            return Err(Refusal::bad_request(format_args!(
                "\"corr\" must be a string or a number of at most {MAX_CORR_BYTES} bytes"
            )));
        }
        Ok(Some(corr))
    }

    fn frame(&self, ignored: &mut Ignored) -> Result<ClientFrame<'a>, Refusal> {
        let op = text(self.op, "op")?;
        self.check_unused(&op, ignored)?;
        Ok(match &*op {
            "PUBLISH" => {
                let topic = text(self.topic, "topic")?;
                check_topic(&topic)?;
                let payload = self.payload.ok_or_else(|| missing("payload"))?;
                let opts = match self.opts {
                    None => PublishOptions::default(),
                    Some(opts) => PublishOptions::from_json_noting(opts.get(), ignored)?,
                };
                ClientFrame::Publish { topic, payload, opts }
            }
            "AUTH" => ClientFrame::Auth { token: optional_text(self.token, "token")?.map(Token::new) },
            "SUBSCRIBE" | "UNSUBSCRIBE" | "ACK" | "NACK" | "MODACK" | "PAUSE" | "RESUME" | "CURSOR"
            | "SEEK" => {
                let topic = text(self.topic, "topic")?;
                check_pattern(&topic)?;
                let group = text(self.group, "group")?;
                check_group_name(&group)
                    .map_err(|error| Refusal::bad_request(format_args!("\"group\": {error}")))?;
                self.group_frame(&op, topic, group, ignored)?
            }
            _ => {
                let shown: String = op.chars().take(40).collect();
                return Err(Refusal::bad_request(format_args!("unknown \"op\": {shown:?}")));
            }
        })
    }

    /// Builds a frame about a subscription or group. The topic and group names are checked already.
    fn group_frame(
        &self,
        op: &str,
        topic: Cow<'a, str>,
        group: Cow<'a, str>,
        ignored: &mut Ignored,
    ) -> Result<ClientFrame<'a>, Refusal> {
        Ok(match op {
            "SUBSCRIBE" => {
                let opts = match self.opts {
                    None => SubscribeOptions::default(),
                    Some(opts) => SubscribeOptions::from_json_noting(opts.get(), ignored)?,
                };
                ClientFrame::Subscribe { topic, group, opts }
            }
            "UNSUBSCRIBE" => ClientFrame::Unsubscribe { topic, group },
            "ACK" => ClientFrame::Ack { topic, group, id: self.id()? },
            "NACK" => {
                let reason = optional_text(self.reason, "reason")?.map(shortened);
                let delay_ms = match self.delay_ms {
                    None => None,
                    Some(delay) => {
                        Some(untyped(delay)?.whole("delay_ms", 0, MAX_NACK_DELAY_MS as i64)? as u64)
                    }
                };
                let dead = self.dead.map(untyped).transpose()?.map(|dead| dead.bool("dead")).transpose()?;
                let dead = dead.unwrap_or_default();
                if dead && delay_ms.is_some() {
                    return Err(OptionError::Exclusive { field: "dead", other: "delay_ms" }.into());
                }
                ClientFrame::Nack { topic, group, id: self.id()?, reason, delay_ms, dead }
            }
            "MODACK" => ClientFrame::Modack { topic, group, id: self.id()?, extend_ms: self.extend_ms()? },
            "PAUSE" => ClientFrame::Pause { topic, group },
            "RESUME" => ClientFrame::Resume { topic, group },
            "CURSOR" => ClientFrame::Cursor { topic, group },
            _ => {
                let to = untyped(self.to.ok_or_else(|| missing("to"))?)?;
                let ts = self.ts.map(untyped).transpose()?;
                let after_id = self.after_id.map(untyped).transpose()?;
                let to = Start::from_field("to", to, ts, after_id, ignored)?;
                ClientFrame::Seek { topic, group, to }
            }
        })
    }

    fn id(&self) -> Result<Uuid, Refusal> {
        let id = self.id.ok_or_else(|| missing("id"))?;
        let inside = id.get().strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        if let Some(id) = inside.and_then(|text| Uuid::try_parse(text).ok()) {
            return Ok(id);
        }
        Ok(untyped(id)?.uuid("id")?)
    }

    /// A duration of at most a day. Values below [`MIN_EXTEND_MS`] are raised to it.
    fn extend_ms(&self) -> Result<Option<u64>, Refusal> {
        let Some(extend) = self.extend_ms else { return Ok(None) };
        let number = match untyped(extend)? {
            Untyped::Integer(number) if number < MIN_EXTEND_MS as i64 => {
                Untyped::Integer(MIN_EXTEND_MS as i64)
            }
            Untyped::Float(number) if number < MIN_EXTEND_MS as f64 => Untyped::Integer(MIN_EXTEND_MS as i64),
            Untyped::Float(number) => Untyped::Float(number.floor()),
            other => other,
        };
        // Zero in the error message, because smaller values than the minimum are accepted.
        Ok(Some(number.whole("extend_ms", 0, MAX_ACK_TIMEOUT_MS as i64)? as u64))
    }
}

pub(super) fn is_corr(json: &str) -> bool {
    json.len() <= MAX_CORR_BYTES && matches!(json.as_bytes().first(), Some(b'"' | b'-' | b'0'..=b'9'))
}

/// The `corr` of a frame that is nested too deep for the scanner. `serde_json` skips values without recursion, so depth is safe here.
fn corr_of_deep_frame(bytes: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct OnlyCorr<'a> {
        #[serde(borrow)]
        corr: Option<&'a RawValue>,
    }
    let corr = serde_json::from_slice::<OnlyCorr<'_>>(bytes).ok()?.corr?.get();
    is_corr(corr).then(|| corr.to_owned())
}

/// Whether two values are equal, however they are written.
fn is_same(one: Json<'_>, other: Json<'_>) -> bool {
    one.get() == other.get()
        || untyped(one).is_ok_and(|one| untyped(other).is_ok_and(|other| one.means(&other)))
}

fn missing(field: &str) -> Refusal {
    Refusal::bad_request(format_args!("\"{field}\" is missing"))
}

fn untyped(json: Json<'_>) -> Result<Untyped<'_>, Refusal> {
    Ok(Untyped::parse(json.get()).map_err(OptionError::unreadable)?)
}

fn text<'a>(json: Option<Json<'a>>, field: &str) -> Result<Cow<'a, str>, Refusal> {
    optional_text(json, field)?.ok_or_else(|| missing(field))
}

fn optional_text<'a>(json: Option<Json<'a>>, field: &str) -> Result<Option<Cow<'a, str>>, Refusal> {
    let Some(json) = json else { return Ok(None) };
    let inside = json.get().strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    match inside.and_then(unescaped) {
        Some(text) => Ok(Some(text)),
        None => Err(Refusal::bad_request(format_args!("\"{field}\" must be a string"))),
    }
}

fn shortened(reason: Cow<'_, str>) -> Cow<'_, str> {
    let mut end = reason.len().min(MAX_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    match reason {
        Cow::Borrowed(text) => Cow::Borrowed(&text[..end]),
        Cow::Owned(mut text) => {
            text.truncate(end);
            Cow::Owned(text)
        }
    }
}
