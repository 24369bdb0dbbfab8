//! `/dead-letters`: which dead letters are open, redriven or discarded, and closing them. A letter is open until it is closed. The
//! letters themselves are read like the events of any topic.

use super::ApiError;
use super::answer::{self, Answered};
use super::call::Call;
use super::fields::Shape;
use super::json_body::{body_of, options_of};
use super::list_query::NAMES_AT_ONCE;
use prombus::DeadLetterStates;
use prombus::engine::LetterClosing;
use prombus_protocol::{DEAD_LETTER_PREFIX, Topic, Uuid};
use serde::{Deserialize, Serialize};

/// Maximum number of letters that one request closes.
const IDS_MAX: usize = 1_000;

/// Default and maximum number of ranges on a page.
const RANGES_MAX: i64 = 10_000;

/// The first and the last seq of a range.
type SeqRange = (u64, u64);

const CLOSE: Shape = Shape::flat(&["ids", "state"]);

#[derive(Serialize)]
struct DeadLetterTopics {
    topics: Vec<DeadLetterCounts>,
    /// Whether there may be dead letters that the token may not read.
    restricted: bool,
}

#[derive(Serialize)]
struct DeadLetterCounts {
    topic: String,
    open: u64,
    redriven: u64,
    discarded: u64,
}

#[derive(Serialize)]
struct DeadLetterDetail {
    topic: String,
    /// The lowest seq that may be stored.
    first_seq: u64,
    last_seq: u64,
    open: u64,
    /// Ranges of seqs, both ends included.
    redriven: Vec<SeqRange>,
    /// Ranges of seqs, both ends included.
    discarded: Vec<SeqRange>,
    /// The parameter `fromSeq` of the next page; `None` on the last page.
    next: Option<u64>,
}

#[derive(Deserialize)]
struct CloseOptions {
    ids: Vec<Uuid>,
    state: ClosedState,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ClosedState {
    Redriven,
    Discarded,
}

#[derive(Serialize)]
struct Closed {
    closed: u64,
    unknown: u64,
}

impl From<DeadLetterStates> for DeadLetterCounts {
    fn from(states: DeadLetterStates) -> Self {
        let count = |ranges: &[(u64, u64)]| ranges.iter().map(|(first, last)| last - first + 1).sum();
        Self {
            topic: states.topic.to_string(),
            open: states.open,
            redriven: count(&states.redriven),
            discarded: count(&states.discarded),
        }
    }
}

impl DeadLetterDetail {
    /// The page with the first `ranges_max` ranges from `from_seq` on, of both kinds together. It is complete up to `next`.
    fn page(states: DeadLetterStates, from_seq: u64, ranges_max: usize) -> Self {
        let DeadLetterStates { topic, first_seq, last_seq, open, redriven, discarded } = states;
        let (redriven, discarded) = (from(redriven, from_seq), from(discarded, from_seq));
        let mut starts: Vec<u64> = redriven.iter().chain(&discarded).map(|&(first, _)| first).collect();
        let next = (starts.len() > ranges_max).then(|| *starts.select_nth_unstable(ranges_max).1);
        let before_next = |ranges: Vec<SeqRange>| -> Vec<SeqRange> {
            ranges.into_iter().take_while(|&(first, _)| next.is_none_or(|next| first < next)).collect()
        };
        Self {
            topic: topic.to_string(),
            first_seq,
            last_seq,
            open,
            redriven: before_next(redriven),
            discarded: before_next(discarded),
            next,
        }
    }
}

/// The parts of the ranges from this seq on.
fn from(mut ranges: Vec<SeqRange>, from_seq: u64) -> Vec<SeqRange> {
    let at = ranges.partition_point(|&(_, last)| last < from_seq);
    ranges.drain(..at);
    if let Some((first, _)) = ranges.first_mut() {
        *first = from_seq.max(*first);
    }
    ranges
}

/// `GET /dead-letters`: the dead-letter topics that the token may read; an admin sees all.
pub(super) async fn all(call: Call) -> Answered {
    let (principal, backend) = (&call.principal, &call.gateway.backend);
    let is_admin = principal.is_admin();
    if !is_admin && !principal.may_read_dead_letters() {
        return Err(ApiError::forbidden(
            "this token may not read dead letters: it needs the scope \"subscribe:dlq.**\"",
        ));
    }
    let restricted = !is_admin && !principal.may_subscribe("dlq.**", None);
    let mut topics = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let names = backend.topic_names(DEAD_LETTER_PREFIX, after.as_deref(), NAMES_AT_ONCE);
        let is_last = names.len() < NAMES_AT_ONCE;
        after = names.last().map(Topic::to_string);
        let seen = names.iter().filter(|it| is_admin || principal.may_subscribe(it.as_str(), None));
        topics.extend(seen.filter_map(|topic| backend.dead_letters(topic)).map(DeadLetterCounts::from));
        if is_last {
            return answer::json(&DeadLetterTopics { topics, restricted });
        }
        // The loop can be long for a token that may read few of very many topics.
        tokio::task::yield_now().await;
    }
}

/// `GET /dead-letters/{topic}`: one page of the closed letters.
pub(super) async fn one(call: Call) -> Answered {
    let topic = dead_letter_topic(&call)?;
    if !call.principal.is_admin() && !call.principal.may_subscribe(topic.as_str(), None) {
        return Err(ApiError::forbidden(format!(
            "this token may not read {topic}: it needs the scope \"subscribe:{topic}\""
        )));
    }
    let from_seq = call.query.whole("fromSeq", 1, i64::MAX)?.unwrap_or(1).unsigned_abs();
    let ranges_max = call.query.whole("limit", 1, RANGES_MAX)?.unwrap_or(RANGES_MAX).unsigned_abs() as usize;
    match call.gateway.backend.dead_letters(&topic) {
        Some(states) => answer::done(&DeadLetterDetail::page(states, from_seq, ranges_max), &call.ignored),
        None => Err(ApiError::not_found(format!("there is no topic {:?}", topic.as_str()))),
    }
}

/// `POST /dead-letters/{topic}/close`: marks letters as redriven or discarded.
pub(super) async fn close(mut call: Call) -> Answered {
    let topic = dead_letter_topic(&call)?;
    let body = body_of(&mut call).await?;
    let CloseOptions { ids, state } = options_of(&body, &CLOSE, &mut call.ignored)?;
    if ids.len() > IDS_MAX {
        return Err(ApiError::bad_request(format!(
            "\"ids\" has {} items: at most {IDS_MAX} are allowed",
            ids.len()
        )));
    }
    let closing = match state {
        ClosedState::Redriven => LetterClosing::Redriven,
        ClosedState::Discarded => LetterClosing::Discarded,
    };
    let count = call.gateway.backend.close_dead_letters(&topic, &ids, closing).await?;
    answer::done(&Closed { closed: count.closed, unknown: count.unknown }, &call.ignored)
}

/// The dead-letter topic in the path, which may be given without its prefix.
fn dead_letter_topic(call: &Call) -> Result<Topic, ApiError> {
    let topic = call.topic()?;
    Ok(if topic.is_dead_letter() { topic } else { topic.dead_letter() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_contain_every_range_once_and_are_complete_up_to_next() {
        let states = DeadLetterStates {
            topic: Topic::new("dlq.a").expect("a topic"),
            first_seq: 1,
            last_seq: 30,
            open: 11,
            redriven: vec![(1, 2), (7, 9), (20, 24)],
            discarded: vec![(3, 3), (4, 5), (25, 30)],
        };
        for ranges_max in 1..=7 {
            let (mut redriven, mut discarded) = (Vec::new(), Vec::new());
            let mut from_seq = 1;
            loop {
                let page = DeadLetterDetail::page(states.clone(), from_seq, ranges_max);
                let count = page.redriven.len() + page.discarded.len();
                assert!((1..=ranges_max).contains(&count), "{count} of {ranges_max}");
                assert_eq!(page.open, 11, "counts are about the whole topic");
                redriven.extend(page.redriven);
                discarded.extend(page.discarded);
                let Some(next) = page.next else { break };
                assert_eq!(count, ranges_max);
                from_seq = next;
            }
            assert_eq!((&redriven, &discarded), (&states.redriven, &states.discarded), "{ranges_max}");
        }
        let page = DeadLetterDetail::page(states, 8, 1);
        assert_eq!((page.redriven, page.discarded, page.next), (vec![(8, 9)], vec![], Some(20)));
    }
}
