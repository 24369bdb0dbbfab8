//! `POST /repair`: lists unreadable events and, when the operator accepts the loss, marks them as damaged.

use super::answer::{self, Answered};
use super::call::Call;
use super::fields::Shape;
use super::json_body::{body_of, options_of};
use prombus::UnreadableRange;
use serde::{Deserialize, Serialize};

const OPTIONS: Shape = Shape::flat(&["accept_loss"]);

#[derive(Default, Deserialize)]
struct RepairOptions {
    accept_loss: Option<bool>,
}

#[derive(Serialize)]
struct Repair {
    /// Whether the events in `unreadable` were given up by this request.
    accepted: bool,
    unreadable: Vec<Range>,
}

#[derive(Serialize)]
struct Range {
    topic: String,
    first_seq: u64,
    last_seq: u64,
    /// The file that contains the events.
    file: String,
    /// The unreadable places in the file: for each the first byte, and the byte after the last.
    bytes: Vec<(u64, u64)>,
    /// When the events were found to be unreadable, in ms since 1970.
    since_ms: i64,
    error: String,
}

impl From<UnreadableRange> for Range {
    fn from(range: UnreadableRange) -> Self {
        let UnreadableRange { topic, first_seq, last_seq, file, bytes, since_ms, error } = range;
        let bytes = bytes.into_iter().map(|range| (range.start, range.end)).collect();
        Self { topic, first_seq, last_seq, file, bytes, since_ms, error }
    }
}

pub(super) async fn repair(mut call: Call) -> Answered {
    let body = body_of(&mut call).await?;
    let options = match body.trim_ascii() {
        [] => RepairOptions::default(),
        body => options_of::<RepairOptions>(body, &OPTIONS, &mut call.ignored)?,
    };
    let accept_loss = options.accept_loss.unwrap_or(false);
    let backend = &call.gateway.backend;
    let ranges = if accept_loss { backend.accept_losses().await? } else { backend.unreadable().await? };
    if accept_loss && !ranges.is_empty() {
        let events: u64 = ranges.iter().map(|range| range.last_seq - range.first_seq + 1).sum();
        tracing::warn!("{} gave up {events} unreadable events", call.principal.name());
    }
    let accepted = accept_loss && !ranges.is_empty();
    let unreadable = ranges.into_iter().map(Range::from).collect();
    answer::done(&Repair { accepted, unreadable }, &call.ignored)
}
