//! `GET /export`: all events of a time range, for a topic in seq order, for a pattern in commit order.
//!
//! The export reads events in that order and skips those outside the range, so events with equal or out-of-order times are not
//! lost. It ends at the event that was the newest at the start; otherwise the export of a busy topic would never end.

use super::answer::{self, Answered};
use super::call::Call;
use super::event_reader::{EventReader, ReadRequest, ReaderKind, Until, non_empty, query_pattern};
use super::query::Begin;
use super::response_stream::{CHUNK, ResponsePieces, StreamClient, StreamError, body_of};
use super::topic_reader::TopicReader;
use bytes::Bytes;
use prombus_protocol::Start;
use std::ops::RangeInclusive;

struct Export {
    reader: EventReader,
    /// For a topic: the export ends before this seq.
    end_seq: u64,
    /// The range of `ts`.
    range: RangeInclusive<i64>,
    format: Format,
    /// Whether the start of the response was written.
    has_begun: bool,
    /// Whether the end of the response was written.
    is_done: bool,
    /// Whether no event was written yet.
    is_first: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Lines,
    Array,
}

pub(super) async fn export(call: Call) -> Answered {
    let pattern = query_pattern(&call)?;
    let (from_ts, to_ts) = (call.query.bound_ts("fromTs")?, call.query.bound_ts("toTs")?);
    let format = if call.query.flag("ndjson")?.unwrap_or(true) { Format::Lines } else { Format::Array };
    let reading = ReadRequest::of(&call, &pattern)?;
    // The end is located first: events that are published between the two lookups are after the end.
    let end_seq = match pattern.as_topic() {
        Some(topic) => {
            let client = StreamClient::new(&call);
            TopicReader::locate(client, topic, Start::Latest).await?.next_seq
        }
        None => u64::MAX,
    };
    let begin = Begin::At(from_ts.map_or(Start::Earliest, Start::Ts));
    let reader = EventReader::open(reading, &pattern, begin, Until::Now).await?;
    let range = from_ts.unwrap_or(i64::MIN)..=to_ts.unwrap_or(i64::MAX);
    let export = Export { reader, end_seq, range, format, has_begun: false, is_done: false, is_first: true };
    let content_type = match format {
        Format::Lines => "application/x-ndjson",
        Format::Array => "application/json",
    };
    Ok(answer::typed(content_type, body_of(export)))
}

impl ResponsePieces for Export {
    const ROUTE: &'static str = "/export";

    fn client(&mut self) -> &mut StreamClient {
        self.reader.client()
    }

    async fn next(&mut self) -> Result<Option<Bytes>, StreamError> {
        if self.is_done {
            return Ok(None);
        }
        let mut out = Vec::new();
        if !self.has_begun && self.format == Format::Array {
            out.push(b'[');
        }
        self.has_begun = true;
        while !self.is_done && out.len() < CHUNK.bytes / 2 {
            self.is_done = !self.put_some(&mut out).await?;
        }
        if self.is_done && self.format == Format::Array {
            out.extend_from_slice(b"]\n");
        }
        // Empty output occurs only at the end, and `None` ends the response.
        Ok(non_empty(out))
    }
}

impl Export {
    /// Appends the next events. Returns false at the end.
    async fn put_some(&mut self, out: &mut Vec<u8>) -> Result<bool, StreamError> {
        let is_over = matches!(&self.reader.kind, ReaderKind::Topic(topic_reader) if topic_reader.next_seq >= self.end_seq);
        if is_over || self.range.is_empty() {
            return Ok(false);
        }
        let taken = self.reader.read_patiently(CHUNK, Until::Now).await?;
        for (_, item) in taken.wanted() {
            if item.seq >= self.end_seq {
                return Ok(false);
            }
            if !self.range.contains(&item.ts) {
                continue;
            }
            if self.format == Format::Array && !std::mem::take(&mut self.is_first) {
                out.push(b',');
            }
            taken.put(out, item);
            if self.format == Format::Lines {
                out.push(b'\n');
            }
        }
        Ok(taken.has_more)
    }
}
