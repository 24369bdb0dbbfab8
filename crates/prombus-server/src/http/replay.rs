//! `GET /replay`: a page of events of a topic or a pattern, as one JSON object that is streamed while the events are read.

use super::ApiError;
use super::answer::{self, Answered};
use super::call::Call;
use super::event_reader::{EventReader, ReadRequest, ReaderKind, Until, only_topic, query_pattern};
use super::query::{Begin, ResumePoint};
use super::response_stream::{CHUNK, ResponsePieces, StreamClient, StreamError, checked_body_of};
use super::reverse_reader::ReverseReader;
use super::topic_reader::{TopicReader, id_of};
use bytes::Bytes;
use prombus::PullLimit;
use prombus_protocol::{Start, put_string};
use std::ops::RangeInclusive;

const LIMIT_DEFAULT: i64 = 1_000;
const LIMIT_MAX: i64 = 1_000_000;

struct Replay {
    reader: EventReader,
    /// The topic or pattern as the request spelled it.
    topic: String,
    /// Reads the events if the newest come first; `None` if the oldest come first.
    reverse: Option<ReverseReader>,
    /// Events outside this time range are skipped.
    times: RangeInclusive<i64>,
    /// How many more events the page may contain.
    left: u64,
    /// How many events the page contains so far.
    count: u64,
    /// The position after the last event that the page contains so far.
    last: Option<String>,
    phase: ReplayPhase,
    /// Whether the page ends early, before an event that is unreadable at the moment.
    is_cut_short: bool,
}

enum ReplayPhase {
    Head,
    Events,
    Done,
}

pub(super) async fn replay(call: Call) -> Answered {
    let pattern = query_pattern(&call)?;
    let begin = call.query.begin()?;
    let from_seq = call.query.whole("fromSeq", 1, i64::MAX)?.map(i64::unsigned_abs);
    let to_ts = call.query.bound_ts("toTs")?;
    let is_descending = call.query.is_descending()?;
    let limit = call.query.whole("limit", 1, LIMIT_MAX)?.unwrap_or(LIMIT_DEFAULT).unsigned_abs();
    // A request for a later page of a replay by time has `afterId` and repeats `ts`.
    let since_ts = match begin {
        Some(Begin::At(Start::Ts(ts))) => Some(ts),
        Some(Begin::After(_)) => call.query.ts("ts")?,
        _ => None,
    };
    let is_latest = begin == Some(Begin::At(Start::Latest));
    if is_descending {
        only_topic(&pattern, "\"order\": \"desc\"")?;
    } else if is_latest {
        only_topic(&pattern, "\"from\": \"latest\"")?;
    }
    if from_seq.is_some() {
        only_topic(&pattern, "\"fromSeq\"")?;
    }
    let reading = ReadRequest::of(&call, &pattern)?;
    let start = begin.unwrap_or(Begin::At(Start::Earliest));
    let reader = EventReader::open(reading, &pattern, start, Until::Now).await?;
    let mut replay = Replay {
        reader,
        topic: pattern.as_str().to_owned(),
        reverse: None,
        times: since_ts.unwrap_or(i64::MIN)..=to_ts.unwrap_or(i64::MAX),
        left: limit,
        count: 0,
        last: None,
        phase: ReplayPhase::Head,
        is_cut_short: false,
    };
    let from_seq = from_seq.unwrap_or(1);
    match &mut replay.reader.kind {
        ReaderKind::Topic(topic_reader) if is_descending => {
            replay.reverse = Some(reverse(topic_reader, begin, since_ts, from_seq).await?);
        }
        ReaderKind::Topic(topic_reader) if is_latest => {
            let reverse = ReverseReader::new(from_seq, topic_reader.next_seq);
            replay.go_to_last(reverse).await.map_err(StreamError::into_answer)?;
        }
        ReaderKind::Topic(topic_reader) => topic_reader.next_seq = topic_reader.next_seq.max(from_seq),
        ReaderKind::Pattern(_) => {}
    }
    Ok(answer::typed("application/json", checked_body_of(replay).await?))
}

/// Creates the reader of a page whose newest events come first.
async fn reverse(
    topic_reader: &TopicReader,
    begin: Option<Begin>,
    since_ts: Option<i64>,
    from_seq: u64,
) -> Result<ReverseReader, ApiError> {
    let locate = async |start| {
        TopicReader::locate(topic_reader.client.another(), topic_reader.topic.clone(), start)
            .await
            .map(|topic_reader| topic_reader.next_seq)
    };
    let before_seq = match begin {
        // In descending order, the page continues with the event before `afterId`.
        Some(Begin::After(ResumePoint::Id(_) | ResumePoint::Position(_))) => {
            topic_reader.next_seq.saturating_sub(1)
        }
        _ => locate(Start::Latest).await?,
    };
    let first_seq = match since_ts {
        Some(ts) => locate(Start::Ts(ts)).await?,
        None => 1,
    };
    Ok(ReverseReader::new(first_seq.max(from_seq), before_seq))
}

impl ResponsePieces for Replay {
    const ROUTE: &'static str = "/replay";

    fn client(&mut self) -> &mut StreamClient {
        self.reader.client()
    }

    async fn next(&mut self) -> Result<Option<Bytes>, StreamError> {
        let mut out = Vec::new();
        match self.phase {
            ReplayPhase::Done => return Ok(None),
            ReplayPhase::Head => {
                out.extend_from_slice(b"{\"topic\":");
                put_string(&mut out, &self.topic);
                out.extend_from_slice(b",\"events\":[");
                self.phase = ReplayPhase::Events;
            }
            ReplayPhase::Events => {}
        }
        while out.len() < CHUNK.bytes / 2 {
            if self.left == 0 || !self.put_some(&mut out).await? {
                self.put_end(&mut out).await?;
                self.phase = ReplayPhase::Done;
                break;
            }
        }
        Ok(Some(out.into()))
    }
}

impl Replay {
    /// Moves to the start of the last page, which contains the newest events, up to the limit.
    async fn go_to_last(&mut self, mut reverse: ReverseReader) -> Result<(), StreamError> {
        let mut left = self.left;
        loop {
            let ReaderKind::Topic(topic_reader) = &mut self.reader.kind else { return Ok(()) };
            let window = reverse.read(topic_reader).await?;
            // If there are fewer events than the limit, the page starts with the first one.
            topic_reader.next_seq = reverse.before_seq();
            let Some(window) = window else { return Ok(()) };
            let taken = self.reader.taken(window.chunk.events, Vec::new(), true);
            for (_, item) in taken.wanted().rev() {
                let seq = item.seq;
                if seq >= window.end_seq || !self.times.contains(&item.ts) {
                    continue;
                }
                left -= 1;
                if left == 0 {
                    let ReaderKind::Topic(topic_reader) = &mut self.reader.kind else { return Ok(()) };
                    topic_reader.next_seq = seq;
                    return Ok(());
                }
            }
        }
    }

    /// Appends the next events. Returns false at the end.
    async fn put_some(&mut self, out: &mut Vec<u8>) -> Result<bool, StreamError> {
        if self.reverse.is_some() {
            return self.put_window(out).await;
        }
        let events = u32::try_from(self.left).unwrap_or(u32::MAX);
        let taken = match self.reader.read(PullLimit { events, ..CHUNK }, Until::Now).await {
            // The page ends before the unreadable event; the request for the next page gets an error.
            Err(StreamError::Read(error)) if error.is_unreadable() && self.count > 0 => {
                self.is_cut_short = true;
                return Ok(false);
            }
            read => read?,
        };
        for (at, item) in taken.wanted().filter(|(_, item)| self.times.contains(&item.ts)) {
            if self.count > 0 {
                out.push(b',');
            }
            taken.put(out, item);
            self.count += 1;
            self.left -= 1;
            self.last = Some(taken.place(at, item));
        }
        Ok(taken.has_more)
    }

    /// Like [`put_some`](Self::put_some), but appends the newest events first.
    async fn put_window(&mut self, out: &mut Vec<u8>) -> Result<bool, StreamError> {
        let (Some(reverse), ReaderKind::Topic(topic_reader)) = (&mut self.reverse, &mut self.reader.kind)
        else {
            return Ok(false);
        };
        let window = match reverse.read(topic_reader).await {
            Err(StreamError::Read(error)) if error.is_unreadable() && self.count > 0 => {
                self.is_cut_short = true;
                return Ok(false);
            }
            read => read?,
        };
        let Some(window) = window else { return Ok(false) };
        let taken = self.reader.taken(window.chunk.events, Vec::new(), true);
        let wanted = taken
            .wanted()
            .rev()
            .filter(|(_, item)| item.seq < window.end_seq && self.times.contains(&item.ts));
        for (_, item) in wanted {
            if self.left == 0 {
                break;
            }
            if self.count > 0 {
                out.push(b',');
            }
            taken.put(out, item);
            self.count += 1;
            self.left -= 1;
            self.last = Some(id_of(item).to_string());
            if self.left == 0
                && let Some(reverse) = &mut self.reverse
            {
                reverse.go_below(item.seq);
            }
        }
        Ok(true)
    }

    /// Whether more events follow after a full page. An unreadable event counts as one.
    async fn has_more(&mut self) -> Result<bool, StreamError> {
        let read = match (&mut self.reverse, &mut self.reader.kind) {
            (Some(reverse), ReaderKind::Topic(topic_reader)) => loop {
                match reverse.read(topic_reader).await {
                    Ok(Some(window)) => {
                        let items = window.chunk.events.items();
                        if items.first().is_some_and(|item| item.seq < window.end_seq) {
                            break Ok(true);
                        }
                    }
                    Ok(None) => break Ok(false),
                    Err(error) => break Err(error),
                }
            },
            _ => self
                .reader
                .read(PullLimit { events: 1, bytes: 0 }, Until::Now)
                .await
                .map(|taken| !taken.events.is_empty()),
        };
        match read {
            Err(StreamError::Read(error)) if error.is_unreadable() => Ok(true),
            read => read,
        }
    }

    async fn put_end(&mut self, out: &mut Vec<u8>) -> Result<(), StreamError> {
        let position = self.reader.is_pattern().then(|| self.reader.position());
        let has_more = self.is_cut_short || self.left == 0 && self.has_more().await?;
        out.extend_from_slice(format!("],\"count\":{},\"next\":", self.count).as_bytes());
        // For a pattern, the position also covers the events that the filter skipped.
        let last = position.clone().or_else(|| self.last.take());
        match last.filter(|_| has_more) {
            Some(last) => out.extend_from_slice(format!("\"{last}\"").as_bytes()),
            None => out.extend_from_slice(b"null"),
        }
        if let Some(position) = position {
            out.extend_from_slice(format!(",\"position\":\"{position}\"").as_bytes());
        }
        out.push(b'}');
        Ok(())
    }
}
