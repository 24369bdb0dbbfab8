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
    redriven: Vec<(u64, u64)>,
    /// Ranges of seqs, both ends included.
    discarded: Vec<(u64, u64)>,
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

impl From<DeadLetterStates> for DeadLetterDetail {
    fn from(states: DeadLetterStates) -> Self {
        let DeadLetterStates { topic, first_seq, last_seq, open, redriven, discarded } = states;
        Self { topic: topic.to_string(), first_seq, last_seq, open, redriven, discarded }
    }
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

/// `GET /dead-letters/{topic}`.
pub(super) async fn one(call: Call) -> Answered {
    let topic = dead_letter_topic(&call)?;
    if !call.principal.is_admin() && !call.principal.may_subscribe(topic.as_str(), None) {
        return Err(ApiError::forbidden(format!(
            "this token may not read {topic}: it needs the scope \"subscribe:{topic}\""
        )));
    }
    match call.gateway.backend.dead_letters(&topic) {
        Some(states) => answer::done(&DeadLetterDetail::from(states), &call.ignored),
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
