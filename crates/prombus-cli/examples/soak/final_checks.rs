//! The final checks: events in the topics, events that each group settled, and the state by key.

use crate::dead_letters::DeadLetters;
use crate::group_book::Verdict;
use crate::http;
use crate::ledger::Seen;
use crate::plan::{GROUPS, GroupPlan, KEYS, Keeps, RETENTION_BYTES, RETENTION_MS, TOPICS};
use crate::seeker::{LastSeek, Owed};
use crate::world::World;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::io;
use std::time::Duration;

#[derive(Deserialize)]
struct Exported {
    id: String,
    seq: u32,
    #[serde(default)]
    key: Option<String>,
    payload: Box<RawValue>,
}

/// The seqs that a topic still has, and when they were read.
pub(crate) struct Kept {
    seqs: Vec<u32>,
    read_ms: u64,
}

impl Kept {
    pub(crate) fn has(&self, seq: u32) -> bool {
        self.seqs.binary_search(&seq).is_ok()
    }
}

/// Waits until every group has settled all events; members ack meanwhile.
pub(crate) async fn drain(world: &World, patience: Duration) -> io::Result<()> {
    let give_up_ms = world.now_ms() + patience.as_millis() as u64;
    loop {
        let mut open = Vec::new();
        for plan in &GROUPS {
            let (address, path) = (world.address, format!("/groups/{}/{}", plan.subscription, plan.name));
            let asking = tokio::task::spawn_blocking(move || http::get(address, &path));
            let answer = asking.await.map_err(io::Error::other)??;
            let group: serde_json::Value = serde_json::from_str(&answer.body)?;
            if group["lag"] != 0 || group["in_flight"] != 0 {
                open.push(format!("{}: lag {}, in flight {}", plan.name, group["lag"], group["in_flight"]));
            }
        }
        if open.is_empty() {
            return Ok(());
        }
        if world.now_ms() > give_up_ms {
            world.violation("not_drained", &format!("after {patience:?}: {}", open.join("; ")));
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Reads a topic back and compares it with the ledger.
pub(crate) fn check_topic(world: &World, topic: usize) -> io::Result<Kept> {
    let plan = &TOPICS[topic];
    let mut seqs: Vec<u32> = Vec::new();
    let path = format!("/export?topic={}", plan.name);
    http::get_lines(world.address, &path, |line| {
        let Ok(event) = serde_json::from_str::<Exported>(line) else {
            world.violation("bad_export", &format!("topic {}: {line:.200}", plan.name));
            return;
        };
        let (payload, key) = (event.payload.get(), event.key.as_deref());
        let seen = Seen { topic: plan.name, seq: event.seq, id: &event.id, payload, key };
        for (kind, text) in world.ledger().observed(&seen, "the export").1 {
            world.violation(kind, &text);
        }
        if seqs.last().is_some_and(|&last| last >= event.seq) {
            world.violation("export_out_of_order", &format!("topic {}, seq {}", plan.name, event.seq));
        }
        seqs.push(event.seq);
    })?;
    let kept = Kept { seqs, read_ms: world.now_ms() };
    world.add(&format!("events in {}", plan.name), world.ledger().last_seq(topic).into());
    world.add(&format!("events left in {}", plan.name), kept.seqs.len() as u64);
    check_losses(world, topic, &kept);
    check_gaps(world, topic);
    Ok(kept)
}

/// Checks that every event that was answered or delivered is in the topic, unless cleaning may have removed it.
fn check_losses(world: &World, topic: usize, kept: &Kept) {
    let ledger = world.ledger();
    let mut newest_of_key: HashMap<String, u32> = HashMap::new();
    let mut newer_bytes = 0;
    for seq in (1..=ledger.last_seq(topic)).rev() {
        let Some((name, publication)) = ledger.at(topic, seq) else { continue };
        let content = ledger.content(name);
        newer_bytes += content.payload().len() as u64 + 200;
        let newest = content.key.clone().map(|key| *newest_of_key.entry(key).or_insert(seq));
        let may_be_gone = match TOPICS[topic].keeps {
            Keeps::Everything => false,
            Keeps::Recent => kept.read_ms >= publication.first_sent_ms + RETENTION_MS,
            Keeps::Newest => newer_bytes > RETENTION_BYTES / 2,
            Keeps::NewestPerKey => newest != Some(seq) || content.is_tombstone,
        };
        if !may_be_gone && !kept.has(seq) {
            let text = format!(
                "topic {}, seq {seq}, id {}: sent at {} ms, answered OK at {} ms, not in the export at {} ms",
                TOPICS[topic].name,
                publication.id,
                publication.first_sent_ms,
                publication.ok_ms,
                kept.read_ms
            );
            world.violation("event_lost", &text);
        }
    }
}

/// Checks that every seq belongs to a publish: a seq without a known event must belong to a publish without an answer.
fn check_gaps(world: &World, topic: usize) {
    let ledger = world.ledger();
    let last_seq = ledger.last_seq(topic);
    let unknown: Vec<u32> = (1..=last_seq).filter(|&seq| ledger.at(topic, seq).is_none()).collect();
    let unanswered = ledger.publications().filter(|(name, publication)| {
        publication.first_sent_ms > 0 && publication.seq == 0 && ledger.content(*name).topic == topic
    });
    let unanswered = unanswered.count();
    if unknown.len() > unanswered || (TOPICS[topic].keeps == Keeps::Everything && !unknown.is_empty()) {
        let first: Vec<u32> = unknown.iter().copied().take(5).collect();
        let text = format!(
            "topic {}: {} seqs have no event (first {first:?}), {unanswered} publishes have no answer",
            TOPICS[topic].name,
            unknown.len()
        );
        world.violation("seq_gap", &text);
    }
}

/// Checks that every publish with an id of the publisher's choice was answered.
pub(crate) fn check_answers(world: &World) {
    let ledger = world.ledger();
    for (name, publication) in ledger.publications() {
        if publication.first_sent_ms > 0 && publication.ok_ms == 0 && ledger.content(name).id.is_some() {
            world.violation("never_answered", &format!("{name:?}: sent at {} ms", publication.first_sent_ms));
        }
    }
}

/// Checks that the group acked every event that is kept, or that the event is a dead letter.
pub(crate) fn check_group(
    world: &World,
    number: usize,
    kept: &[Kept],
    letters: &DeadLetters,
    last_seek: Option<LastSeek>,
) {
    let plan: &GroupPlan = &GROUPS[number];
    let (ledger, book) = (world.ledger(), world.group(number));
    for &topic in plan.topics {
        for seq in 1..=ledger.last_seq(topic) {
            let Some((name, publication)) = ledger.at(topic, seq) else { continue };
            let content = ledger.content(name);
            if plan.only_red && !content.is_red {
                continue;
            }
            let place = format!(
                "group {}, topic {}, seq {seq}, id {}, published at {} ms",
                plan.name, TOPICS[topic].name, publication.id, publication.first_sent_ms
            );
            let (entry, is_dead) = (book.entry(topic, seq), letters.has(plan.name, topic, seq));
            let verdict = entry.map(|entry| entry.verdict);
            if plan.seeks {
                let is_owed = last_seek.is_some_and(|seek| match seek.owed {
                    Owed::AfterSeq(after) => seq > after,
                    Owed::SentAfter(sent_ms) => publication.first_sent_ms > sent_ms,
                });
                let seek_ms = last_seek.map_or(0, |seek| seek.sent_ms);
                if is_owed && entry.is_none_or(|entry| entry.received_ms < seek_ms) {
                    let last_ms = entry.map(|entry| entry.received_ms);
                    let text = format!("{place}: last delivered at {last_ms:?} ms, {last_seek:?}");
                    world.violation("not_delivered_after_seek", &text);
                }
                continue;
            }
            let is_acked = entry.is_some_and(|entry| entry.has_other_ack)
                || matches!(verdict, Some(Verdict::Acked | Verdict::AckSent | Verdict::AckSilent { .. }));
            if verdict == Some(Verdict::Acked) && is_dead {
                world.violation("acked_and_dead", &place);
            }
            if is_acked || is_dead {
                continue;
            }
            if kept[topic].has(seq) {
                let last = entry.map(|entry| (entry.attempt, entry.received_ms, entry.verdict));
                let text = format!("{place}: neither acked nor a dead letter; last delivery {last:?}");
                world.violation(if last.is_none() { "never_delivered" } else { "not_settled" }, &text);
            } else {
                world.count("events that retention deleted before a group settled them");
            }
        }
    }
    for &(topic, seq) in book.given_up() {
        if kept[topic].has(seq) && !letters.has(plan.name, topic, seq) {
            let text = format!("group {}, topic {}, seq {seq}", plan.name, TOPICS[topic].name);
            world.violation(
                "dead_letter_missing",
                &format!("{text}: the NACK of the last attempt was answered OK"),
            );
        }
    }
}

/// Checks that the state of the compacted topic is the newest event of each key that is not deleted.
pub(crate) fn check_state(world: &World, topic: usize) -> io::Result<()> {
    let name = TOPICS[topic].name;
    let answer = http::get(world.address, &format!("/state/{name}?limit=100000"))?;
    let page: serde_json::Value = serde_json::from_str(&answer.body)?;
    let mut state: HashMap<&str, u64> = HashMap::new();
    for event in page["events"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let (key, seq) =
            (event["key"].as_str().unwrap_or_default(), event["seq"].as_u64().unwrap_or_default());
        if state.insert(key, seq).is_some() {
            world.violation("state_wrong", &format!("topic {name}: key {key} occurs twice"));
        }
    }
    let ledger = world.ledger();
    let mut newest: HashMap<String, Option<u32>> = HashMap::new();
    for seq in 1..=ledger.last_seq(topic) {
        let Some((event, _)) = ledger.at(topic, seq) else { continue };
        let content = ledger.content(event);
        if let Some(key) = content.key {
            newest.insert(key, (!content.is_tombstone).then_some(seq));
        }
    }
    for number in 0..KEYS {
        let key = format!("key-{number}");
        let expected = newest.get(&key).copied().flatten().map(u64::from);
        let found = state.remove(key.as_str());
        if found != expected {
            let text = format!("topic {name}, key {key}: seq {found:?} in the state, {expected:?} published");
            world.violation("state_wrong", &text);
        }
    }
    for (key, seq) in state {
        world.violation("state_wrong", &format!("topic {name}: unknown key {key} with seq {seq}"));
    }
    Ok(())
}
