//! `GET /replay`: a page of a topic as one JSON object, written while it is read.

use super::call::Call;
use super::pages::{CHUNK, Pages, Pieces, StreamError, checked_body_of, id_of, put_event};
use super::query::Froms;
use super::{Answered, answer};
use bytes::Bytes;
use prombus::{PullLimit, Uuid};
use prombus_protocol::{Start, put_string};

const LIMIT_DEFAULT: i64 = 1_000;
const LIMIT_MAX: i64 = 1_000_000;

struct Replay {
    pages: Pages,
    /// Events with an older time are left out.
    since_ts: Option<i64>,
    left: u64,
    count: u64,
    last_id: Option<Uuid>,
    phase: Phase,
    /// It ends before events that cannot be read now.
    is_cut_short: bool,
}

enum Phase {
    Head,
    Events,
    Done,
}

pub(super) async fn replay(call: Call) -> Answered {
    let topic = call.query_topic()?;
    let start = call.query.start(Froms::ButLatest)?.unwrap_or(Start::Earliest);
    let limit = call.query.whole("limit", 1, LIMIT_MAX)?.unwrap_or(LIMIT_DEFAULT);
    call.check_may_read(topic.as_str())?;
    let pages = Pages::locate(&call.gateway, &call.principal, topic, start).await?;
    // The next pages of a replay by time say `afterId`, and `ts` again.
    let since_ts = match start {
        Start::Ts(ts) => Some(ts),
        Start::AfterId(_) => call.query.ts("ts")?,
        Start::Earliest | Start::Latest => None,
    };
    let left = limit.unsigned_abs();
    let replay =
        Replay { pages, since_ts, left, count: 0, last_id: None, phase: Phase::Head, is_cut_short: false };
    Ok(answer::typed("application/json", checked_body_of(replay).await?))
}

impl Pieces for Replay {
    const ROUTE: &'static str = "/replay";

    fn pages(&mut self) -> &mut Pages {
        &mut self.pages
    }

    async fn next(&mut self) -> Result<Option<Bytes>, StreamError> {
        let mut out = Vec::new();
        match self.phase {
            Phase::Done => return Ok(None),
            Phase::Head => {
                out.extend_from_slice(b"{\"topic\":");
                put_string(&mut out, self.pages.topic.as_str());
                out.extend_from_slice(b",\"events\":[");
                self.phase = Phase::Events;
            }
            Phase::Events => {}
        }
        while out.len() < CHUNK.bytes / 2 {
            if self.left == 0 || !self.put_some(&mut out).await? {
                self.put_end(&mut out).await?;
                self.phase = Phase::Done;
                break;
            }
        }
        Ok(Some(out.into()))
    }
}

impl Replay {
    /// False when there are no more.
    async fn put_some(&mut self, out: &mut Vec<u8>) -> Result<bool, StreamError> {
        let from = self.pages.next_seq;
        let events = u32::try_from(self.left).unwrap_or(u32::MAX);
        let chunk = match self.pages.read(PullLimit { events, ..CHUNK }).await {
            // Events before the unreadable one make a page; the next page is an error.
            Err(StreamError::Read(error)) if error.is_unreadable() && self.count > 0 => {
                self.is_cut_short = true;
                return Ok(false);
            }
            read => read?,
        };
        let since_ts = self.since_ts;
        for item in chunk.events.items().iter().filter(|item| since_ts.is_none_or(|ts| item.ts >= ts)) {
            if self.count > 0 {
                out.push(b',');
            }
            put_event(out, &chunk, item);
            self.count += 1;
            self.left -= 1;
            self.last_id = Some(id_of(item));
        }
        Ok(self.pages.next_seq > from)
    }

    async fn put_end(&mut self, out: &mut Vec<u8>) -> Result<(), StreamError> {
        let has_more = self.is_cut_short
            || self.left == 0 && {
                let one = PullLimit { events: 1, bytes: 0 };
                match self.pages.read(one).await {
                    Err(StreamError::Read(error)) if error.is_unreadable() => true,
                    read => !read?.events.is_empty(),
                }
            };
        out.extend_from_slice(format!("],\"count\":{},\"next\":", self.count).as_bytes());
        match self.last_id.filter(|_| has_more) {
            Some(id) => out.extend_from_slice(format!("\"{id}\"}}").as_bytes()),
            None => out.extend_from_slice(b"null}"),
        }
        Ok(())
    }
}
