//! Reads the frames of one client faster than [`parse_client_frame`], with the same results.
//!
//! Most frames of a client repeat the previous frame of their kind, except for the `corr`, the topic, the payload or an id. The reader
//! keeps the previous frame as fixed pieces with slots between them. If a new frame has the same pieces, only the content of its slots is
//! parsed. All other frames go through [`parse_client_frame`].

use super::client::{ClientFrame, Parsed};
use super::client_parse::{FrameError, FrameFields, is_corr, parse_with};
use crate::json::Json;
use crate::json_scanner::{Scanner, plain_prefix};
use crate::options::PublishOptions;
use crate::options::fields::Ignored;
use crate::topic_name::check_topic;
use std::borrow::Cow;
use std::ops::Range;
use uuid::Uuid;

/// Reads the frames of one client, as [`parse_client_frame`](super::parse_client_frame) does, but faster.
#[derive(Debug, Default)]
pub struct FrameReader {
    publish: Shape,
    ack: Shape,
}

/// Frames with longer pieces than this are not kept: they are rare, and a connection should use little memory.
const KEPT_BYTES_MAX: usize = 1_024;
/// Maximum number of slots in a frame.
const SLOTS_MAX: usize = 4;
/// The text of an id: 8-4-4-4-12 digits.
const ID_BYTES: usize = 36;

/// A frame as fixed pieces, with slots between them for the values that change.
#[derive(Debug, Default)]
struct Shape {
    /// The pieces, concatenated.
    pieces: Vec<u8>,
    /// The end of each piece, and the slot after it.
    slots: [(u32, Slot); SLOTS_MAX],
    /// How many of the `slots` are used.
    slot_count: usize,
    /// Where the topic and group of an ACK are in the pieces.
    names: Option<(Place, Place)>,
    /// The last topic of a PUBLISH; it was checked.
    topic: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Slot {
    /// The JSON text of a `corr`.
    #[default]
    Corr,
    /// A topic name, without its quotes.
    Topic,
    /// Any JSON value.
    Payload,
    /// The options of a publish.
    Opts,
    /// The digits of an id.
    Id,
}

/// The place of a text in a piece.
#[derive(Clone, Debug, Default)]
struct Place {
    /// The number of the piece.
    piece: usize,
    /// The range in the piece.
    range: Range<usize>,
}

/// The content of a frame's slots, and the positions of its pieces.
struct Filled<'a> {
    /// The whole frame.
    text: &'a str,
    /// Where each piece begins in `text`.
    piece_starts: [usize; SLOTS_MAX + 1],
    corr: Option<&'a str>,
    topic: Option<&'a str>,
    payload: Option<Json<'a>>,
    opts: PublishOptions,
    id: Option<Uuid>,
}

impl FrameReader {
    /// Reads a client's frame.
    ///
    /// # Errors
    /// As [`parse_client_frame`](super::parse_client_frame).
    pub fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<Parsed<'a>, FrameError> {
        if let Some(parsed) = self.read_again(bytes) {
            return Ok(parsed);
        }
        parse_with(bytes, |fields, frame| match frame {
            ClientFrame::Publish { topic, .. } => self.publish.learn(bytes, fields, topic, None),
            ClientFrame::Ack { topic, group, .. } => self.ack.learn(bytes, fields, topic, Some(group)),
            _ => {}
        })
    }

    /// Reads a frame that has the pieces of the previous frame of its kind; `None` for other frames.
    fn read_again<'a>(&self, bytes: &'a [u8]) -> Option<Parsed<'a>> {
        if self.publish.begins(bytes) {
            let Filled { corr, topic, payload, mut opts, id, .. } = self.publish.fill(bytes)?;
            opts.id = opts.id.or(id);
            let topic = Cow::Borrowed(topic?);
            let frame = ClientFrame::Publish { topic, payload: payload?, opts };
            return Some(Parsed { corr, frame, ignored: Vec::new() });
        }
        if self.ack.begins(bytes) {
            let Filled { text, piece_starts, corr, id, .. } = self.ack.fill(bytes)?;
            let (topic, group) = self.ack.names.as_ref()?;
            let (topic, group) = (topic.of(text, &piece_starts)?, group.of(text, &piece_starts)?);
            return Some(Parsed {
                corr,
                frame: ClientFrame::Ack { topic, group, id: id? },
                ignored: Vec::new(),
            });
        }
        None
    }
}

impl Shape {
    /// Whether a frame begins with the first piece.
    fn begins(&self, bytes: &[u8]) -> bool {
        self.slot_count > 0 && bytes.starts_with(&self.pieces[..self.slots[0].0 as usize])
    }

    /// Compares a frame with the pieces and parses the slots. `None` if a piece differs or a slot is not valid.
    fn fill<'a>(&self, bytes: &'a [u8]) -> Option<Filled<'a>> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut filled = Filled {
            text,
            piece_starts: [0; SLOTS_MAX + 1],
            corr: None,
            topic: None,
            payload: None,
            opts: PublishOptions::default(),
            id: None,
        };
        let mut scanner = Scanner::new(bytes);
        let mut piece_start = 0;
        for (number, &(piece_end, slot)) in self.slots[..self.slot_count].iter().enumerate() {
            let piece_end = piece_end as usize;
            filled.piece_starts[number] = scanner.position();
            scanner.skip_literal(&self.pieces[piece_start..piece_end])?;
            piece_start = piece_end;
            match slot {
                Slot::Id => {
                    let at = scanner.position();
                    let id = bytes.get(at..at + ID_BYTES)?;
                    filled.id = Some(Uuid::try_parse_ascii(id).ok()?);
                    scanner.skip(ID_BYTES);
                }
                Slot::Corr => {
                    filled.corr = Some(Json::scan(&mut scanner, text).ok()?.get()).filter(|it| is_corr(it));
                    filled.corr?;
                }
                Slot::Topic => {
                    let at = scanner.position();
                    let topic = &text[at..at + plain_prefix(&bytes[at..])];
                    if topic != self.topic {
                        check_topic(topic).ok()?;
                    }
                    scanner.skip(topic.len());
                    filled.topic = Some(topic);
                }
                Slot::Payload => filled.payload = Some(Json::scan(&mut scanner, text).ok()?),
                Slot::Opts => {
                    let opts = Json::scan(&mut scanner, text).ok()?;
                    let mut ignored = Ignored::default();
                    filled.opts = PublishOptions::from_json_noting(opts.get(), &mut ignored).ok()?;
                    if !ignored.is_empty() {
                        return None;
                    }
                }
            }
        }
        filled.piece_starts[self.slot_count] = scanner.position();
        scanner.skip_literal(&self.pieces[piece_start..])?;
        scanner.at_end().then_some(filled)
    }

    /// Keeps the shape of a frame that was parsed. Only an ACK has a group.
    #[expect(clippy::ptr_arg, reason = "a borrowed Cow means that the frame contains the name unescaped")]
    fn learn(
        &mut self,
        bytes: &[u8],
        fields: &FrameFields<'_>,
        topic: &Cow<'_, str>,
        group: Option<&Cow<'_, str>>,
    ) {
        self.slot_count = 0;
        self.pieces.clear();
        let mut slots: [(Range<usize>, Slot); SLOTS_MAX] = Default::default();
        let mut count = 0;
        let mut add = |range: Range<usize>, slot| {
            slots[count] = (range, slot);
            count += 1;
        };
        if let Some(corr) = fields.corr {
            add(range_of(bytes, corr.get()), Slot::Corr);
        }
        if group.is_some() {
            let Some(id) = fields.id.map(|id| range_of(bytes, id.get())) else { return };
            if id.len() != ID_BYTES + 2 {
                return;
            }
            add(id.start + 1..id.end - 1, Slot::Id);
        } else {
            let (Some(payload), Cow::Borrowed(topic)) = (fields.payload, topic) else { return };
            add(range_of(bytes, topic), Slot::Topic);
            self.topic.clear();
            self.topic.push_str(topic);
            add(range_of(bytes, payload.get()), Slot::Payload);
            if let Some(opts) = fields.opts {
                let range = range_of(bytes, opts.get());
                let inside =
                    opts.get().strip_prefix(r#"{"id":""#).and_then(|rest| rest.strip_suffix(r#""}"#));
                let start = range.start + r#"{"id":""#.len();
                match inside {
                    Some(id) if id.len() == ID_BYTES => add(start..start + ID_BYTES, Slot::Id),
                    _ => add(range, Slot::Opts),
                }
            }
        }
        let slots = &mut slots[..count];
        slots.sort_unstable_by_key(|(range, _)| range.start);
        let values: usize = slots.iter().map(|(range, _)| range.len()).sum();
        if bytes.len() - values > KEPT_BYTES_MAX {
            return;
        }
        let mut names = None;
        if let Some(group) = group {
            names = place_of(bytes, slots, topic).zip(place_of(bytes, slots, group));
            if names.is_none() {
                return;
            }
        }
        self.keep(bytes, slots);
        self.names = names;
    }

    /// Keeps the text around the slots of a frame.
    #[inline]
    fn keep(&mut self, bytes: &[u8], slots: &[(Range<usize>, Slot)]) {
        let mut end = 0;
        for (number, (range, slot)) in slots.iter().enumerate() {
            self.pieces.extend_from_slice(&bytes[end..range.start]);
            self.slots[number] = (self.pieces.len() as u32, *slot);
            end = range.end;
        }
        self.pieces.extend_from_slice(&bytes[end..]);
        self.slot_count = slots.len();
    }
}

impl Place {
    fn of<'a>(&self, text: &'a str, piece_starts: &[usize]) -> Option<Cow<'a, str>> {
        let start = piece_starts[self.piece];
        text.get(start + self.range.start..start + self.range.end).map(Cow::Borrowed)
    }
}

/// The range of a part of a frame.
fn range_of(bytes: &[u8], part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - bytes.as_ptr().addr();
    start..start + part.len()
}

/// The piece that contains a text, and the range in it; `None` if the text was unescaped or is in a slot. Slots are in order.
#[expect(clippy::ptr_arg, reason = "a borrowed Cow means that the frame contains the text unescaped")]
fn place_of(bytes: &[u8], slots: &[(Range<usize>, Slot)], text: &Cow<'_, str>) -> Option<Place> {
    let Cow::Borrowed(text) = text else { return None };
    let range = range_of(bytes, text);
    let piece = slots.iter().take_while(|(slot, _)| slot.end <= range.start).count();
    let start = if piece == 0 { 0 } else { slots[piece - 1].0.end };
    let is_whole = slots.get(piece).is_none_or(|(slot, _)| range.end <= slot.start);
    is_whole.then(|| Place { piece, range: range.start - start..range.end - start })
}

#[cfg(test)]
mod tests {
    use super::super::parse_client_frame;
    use super::*;

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn frames() -> Vec<String> {
        let mut frames: Vec<String> = [
            r#"{"op":"PUBLISH","topic":"orders","corr":1,"payload":{"a":1}}"#,
            r#"{"op":"PUBLISH","topic":"orders","corr":234,"payload":[1, 2]}"#,
            r#"{"op":"PUBLISH","topic":"orders","corr":"x","payload":null}"#,
            r#"{"op":"PUBLISH","topic":"orders","corr":null,"payload":1}"#,
            r#"{"op":"PUBLISH","topic":"orders","corr":{},"payload":1}"#,
            r#"{"op":"PUBLISH","topic":"orders","corr": 1,"payload":1}"#,
            r#"{"op":"PUBLISH","topic":"orders","payload":1}"#,
            r#"{"op":"PUBLISH","topic":"others","payload":1}"#,
            r#"{"op":"PUBLISH","topic":"","payload":1}"#,
            r#"{"op":"PUBLISH","topic":7,"payload":1}"#,
            r#"{"op":"PUBLISH","topic":"é","payload":1}"#,
            r#"{"op":"PUBLISH","topic":"or\u0064ers","payload":1}"#,
            r#"{"payload":"a\n","topic":"orders","op":"PUBLISH","corr":9}"#,
            r#"{"payload":"é","topic":"orders","op":"PUBLISH","corr":10}"#,
            r#"{"payload":1,"payload":2,"topic":"orders","op":"PUBLISH","corr":10}"#,
            r#"{"op":"PUBLISH","topic":"a","topic":"orders","payload":[],"x":{"payload":1}}"#,
            r#"{"op":"PUBLISH","topic":"orders","payload":2,"opts":{"id":"ID"}}"#,
            r#"{"op":"PUBLISH","topic":"orders","payload":2,"opts":{"id":"IDx"}}"#,
            r#"{"op":"PUBLISH","topic":"orders","payload":2,"opts":{"id":"01890a5d-ac96-774b-bcce-b302099a805g"}}"#,
            r#"{"op":"PUBLISH","topic":"orders","payload":2,"opts":{"id":"ID","key":"k"}}"#,
            r#"{"op":"PUBLISH","topic":"orders","payload":2,"opts":{"key":"k","tags":["a"]}}"#,
            r#"{"op":"PUBLISH","topic":"orders","payload":2,"opts":{"key":7}}"#,
            r#"{"op":"PUBLISH","topic":"orders","payload":2,"opts":{}}"#,
            r#"{"op":"PUBLISH","topic":"bad topic","payload":2}"#,
            r#"{"op":"ACK","topic":"orders","group":"g","id":"ID"}"#,
            r#"{"op":"ACK","topic":"orders","group":"g","id":"ID","corr":7}"#,
            r#"{"op":"ACK","id":"ID","topic":"orders.*","group":"g"}"#,
            r#"{"op":"ACK","topic":"orders","group":"g","id":"01890a5dac96774bbcceb302099a8057"}"#,
            r#"{"op":"ACK","topic":"orders","group":"g","id":"01890A5D-AC96-774B-BCCE-B302099A8057"}"#,
            r#"{"op":"ACK","topic":"orders","group":"g","id":"nothing"}"#,
            r#"{"op":"ACK","topic":"orders","group":"h","id":"ID"}"#,
            r#"{"op":"NACK","topic":"orders","group":"g","id":"ID"}"#,
            r#"{"op":"SUBSCRIBE","topic":"orders","group":"g"}"#,
            r#"{"op":"PUBLISH"}"#,
            r#"[]"#,
            "",
        ]
        .iter()
        .map(|frame| frame.replace("ID", ID))
        .collect();
        let long = format!(r#"{{"op":"PUBLISH","x":"{}","topic":"orders","payload":1}}"#, "y".repeat(2_000));
        frames.push(long);
        frames
    }

    /// The result does not depend on the frames that were read before.
    #[test]
    fn the_reader_returns_what_the_parser_returns() {
        let frames = frames();
        for first in &frames {
            for second in &frames {
                let mut reader = FrameReader::default();
                for frame in [first, second, second, first] {
                    let bytes = frame.as_bytes();
                    assert_eq!(reader.read(bytes), parse_client_frame(bytes), "{first} then {second}");
                }
            }
        }
    }

    /// After it learned a frame, the reader gets variants of that frame: with one byte changed, inserted or removed, and cut at each byte.
    #[test]
    fn the_reader_detects_every_changed_byte() {
        for frame in frames().iter().filter(|frame| frame.len() < 500) {
            let bytes = frame.as_bytes();
            let mut reader = FrameReader::default();
            let mut check = |changed: &[u8]| {
                let _ = reader.read(bytes);
                assert_eq!(reader.read(changed), parse_client_frame(changed), "{frame}");
            };
            for at in 0..bytes.len() {
                for byte in *b"\"\\{}[],: \n0a\x00\x7f\xc3\xff" {
                    let mut changed = bytes.to_vec();
                    changed[at] = byte;
                    check(&changed);
                    changed[at] = bytes[at];
                    changed.insert(at, byte);
                    check(&changed);
                }
                let mut changed = bytes.to_vec();
                changed.remove(at);
                check(&changed);
                check(&bytes[..at]);
            }
        }
    }

    #[test]
    fn a_repeated_frame_is_not_parsed() {
        for frame in frames() {
            let mut reader = FrameReader::default();
            let Ok(Parsed {
                frame: ClientFrame::Publish { topic, .. } | ClientFrame::Ack { topic, .. }, ..
            }) = reader.read(frame.as_bytes())
            else {
                continue;
            };
            let is_odd = matches!(topic, Cow::Owned(_))
                || frame.len() > 500
                || frame.contains("01890a5dac")
                || frame.contains("\"x\":");
            assert_eq!(reader.read_again(frame.as_bytes()).is_none(), is_odd, "{frame}");
        }
    }
}
