//! Moves the group `seeker` with SEEK, and remembers which events must be delivered afterwards.

use crate::connection::{Connection, Read};
use crate::plan::GROUPS;
use crate::random::Random;
use crate::world::World;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The events that must be delivered after a SEEK.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owed {
    AfterSeq(u32),
    SentAfter(u64),
}

/// The last SEEK that was answered OK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastSeek {
    pub(crate) owed: Owed,
    /// When it was sent; earlier deliveries do not count.
    pub(crate) sent_ms: u64,
}

pub(crate) type SharedSeek = Arc<Mutex<Option<LastSeek>>>;

/// Sends SEEKs until publishing is over. A SEEK without an answer is repeated.
pub(crate) async fn seek(world: Arc<World>, last: SharedSeek) {
    let mut random = Random::for_task(world.seed, "seek", 0);
    let Some(plan) = GROUPS.iter().find(|plan| plan.seeks) else { return };
    let topic = plan.topics[0];
    while !world.is_publishing_over() {
        tokio::time::sleep(Duration::from_millis(random.between(3_000, 12_000))).await;
        let (to, owed) = choose(&world, topic, &mut random);
        let frame =
            json!({"op": "SEEK", "topic": plan.subscription, "group": plan.name, "to": to, "corr": 1});
        loop {
            let Some(mut connection) = Connection::open(&world, || world.is_over()).await else { return };
            let sent_ms = world.now_ms();
            if connection.send(frame.to_string()).await.is_ok()
                && is_ok(&world, &mut connection, &frame).await
            {
                // A SEEK to `latest` may skip events that were published before its answer.
                let owed = owed.unwrap_or(Owed::SentAfter(world.now_ms()));
                *crate::world::lock(&last) = Some(LastSeek { owed, sent_ms });
                world.count("seeks");
                break;
            }
        }
    }
}

/// The target of a SEEK, and the events that must be delivered afterwards (`None` for `latest`).
fn choose(world: &World, topic: usize, random: &mut Random) -> (Value, Option<Owed>) {
    let ledger = world.ledger();
    let last_seq = ledger.last_seq(topic);
    let seq = last_seq.saturating_sub(random.below(1_000) as u32);
    match (random.below(10), ledger.at(topic, seq)) {
        (0..6, Some((_, publication))) => (json!({"afterId": &*publication.id}), Some(Owed::AfterSeq(seq))),
        (6..8, _) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let (now_ms, back_ms) = (world.now_ms(), 4_000);
            // A margin of half a second, because this program and the server read the clock at different times.
            let owed = Owed::SentAfter(now_ms.saturating_sub(back_ms - 500));
            (json!({"ts": now.as_millis() as u64 - back_ms}), Some(owed))
        }
        _ => (json!("latest"), None),
    }
}

async fn is_ok(world: &World, connection: &mut Connection, frame: &Value) -> bool {
    let give_up_ms = world.now_ms() + 20_000;
    while world.now_ms() < give_up_ms {
        match connection.read(world, Duration::from_millis(200)).await {
            Read::Frame(answer) if answer.op == "OK" => return true,
            Read::Frame(answer) => {
                if answer.code != "unavailable" {
                    world.violation("seek_refused", &format!("{frame}: {} {}", answer.code, answer.msg));
                }
                return false;
            }
            Read::Nothing => {}
            Read::Gone => return false,
        }
    }
    false
}
