//! `GET /export`: all events of a topic in a range of time, in the order of their seqs.
//!
//! It goes by seq and leaves out what is outside of the range, so that equal times and times out of order lose nothing. It ends at
//! what was the newest event when it began: a busy topic has no end otherwise.

use super::call::Call;
use super::pages::{CHUNK, Pages, Pieces, StreamError, body_of, put_event};
use super::{Answered, answer};
use bytes::Bytes;
use prombus_protocol::Start;
use std::ops::RangeInclusive;

struct Export {
    pages: Pages,
    end_seq: u64,
    range: RangeInclusive<i64>,
    format: Format,
    has_begun: bool,
    is_done: bool,
    is_first: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Lines,
    Array,
}

pub(super) async fn export(call: Call) -> Answered {
    let topic = call.query_topic()?;
    let (from_ts, to_ts) = (call.query.bound_ts("fromTs")?, call.query.bound_ts("toTs")?);
    let format = if call.query.flag("ndjson")?.unwrap_or(true) { Format::Lines } else { Format::Array };
    call.check_may_read(topic.as_str())?;
    let (gateway, principal) = (&call.gateway, &call.principal);
    // The end first: what comes between the two is outside of a range that ends before it.
    let end_seq = Pages::locate(gateway, principal, topic.clone(), Start::Latest).await?.next_seq;
    let start = from_ts.map_or(Start::Earliest, Start::Ts);
    let pages = Pages::locate(gateway, principal, topic, start).await?;
    let range = from_ts.unwrap_or(i64::MIN)..=to_ts.unwrap_or(i64::MAX);
    let export = Export { pages, end_seq, range, format, has_begun: false, is_done: false, is_first: true };
    let content_type = match format {
        Format::Lines => "application/x-ndjson",
        Format::Array => "application/json",
    };
    Ok(answer::typed(content_type, body_of(export)))
}

impl Pieces for Export {
    const ROUTE: &'static str = "/export";

    fn pages(&mut self) -> &mut Pages {
        &mut self.pages
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
        // Nothing to say at the end is the end.
        Ok((!out.is_empty()).then(|| out.into()))
    }
}

impl Export {
    /// False when there are no more.
    async fn put_some(&mut self, out: &mut Vec<u8>) -> Result<bool, StreamError> {
        let from = self.pages.next_seq;
        if from >= self.end_seq || self.range.is_empty() {
            return Ok(false);
        }
        let chunk = self.pages.read_patiently(CHUNK).await?;
        for item in chunk.events.items() {
            if item.position.seq >= self.end_seq {
                return Ok(false);
            }
            if !self.range.contains(&item.ts) {
                continue;
            }
            if self.format == Format::Array && !std::mem::take(&mut self.is_first) {
                out.push(b',');
            }
            put_event(out, &chunk, item);
            if self.format == Format::Lines {
                out.push(b'\n');
            }
        }
        Ok(self.pages.next_seq > from)
    }
}
