//! Publishers over WebSocket and HTTP. A publish with an id of the publisher's choice is resent until it is answered; a publish
//! whose id the server chooses is sent once.

use crate::connection::{Connection, Frame, Read};
use crate::content::{Content, Name};
use crate::http;
use crate::plan::TOPICS;
use crate::random::Random;
use crate::world::World;
use serde::Deserialize;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio_tungstenite::tungstenite;

/// Maximum unanswered publishes per connection.
const WINDOW: usize = 128;
const TICK: Duration = Duration::from_millis(10);

struct Publisher {
    world: Arc<World>,
    publisher: u16,
    next_number: u32,
    random: Random,
    /// Publishes to resend because their answer is missing.
    resend: VecDeque<Name>,
    /// Answered publishes with an id of the publisher's choice; some are resent on purpose.
    answered: VecDeque<Name>,
}

/// One publisher over WebSocket.
pub(crate) async fn publish(world: Arc<World>, publisher: u16, rate: u64) {
    let random = Random::for_task(world.seed, "publisher", usize::from(publisher));
    let mut it = Publisher {
        world: Arc::clone(&world),
        publisher,
        next_number: 0,
        random,
        resend: VecDeque::new(),
        answered: VecDeque::new(),
    };
    let is_done = |it: &Publisher| it.world.is_publishing_over() && it.resend.is_empty();
    while !is_done(&it) {
        let Some(mut connection) = Connection::open(&world, || world.is_over()).await else { return };
        let mut waiting = HashMap::new();
        let mut last_seqs = [0; TOPICS.len()];
        // An error only means that the connection is lost; unanswered publishes are resent.
        let _ = it.use_connection(&mut connection, rate, &mut waiting, &mut last_seqs).await;
        let mut unanswered: Vec<Name> = waiting.into_values().collect();
        unanswered.sort_unstable_by_key(|name| name.number);
        for name in unanswered {
            if Content::of(world.seed, name).id.is_some() {
                it.resend.push_back(name);
            } else {
                world.count("publishes with unknown outcome");
            }
        }
    }
}

impl Publisher {
    async fn use_connection(
        &mut self,
        connection: &mut Connection,
        rate: u64,
        waiting: &mut HashMap<u64, Name>,
        last_seqs: &mut [u32; TOPICS.len()],
    ) -> Result<(), tungstenite::Error> {
        let mut sent_ms = self.world.now_ms();
        let vanish_ms = sent_ms + self.random.between(2_000, 30_000);
        loop {
            let now_ms = self.world.now_ms();
            // After a pause, at most half a second of publishes is made up for.
            sent_ms = sent_ms.max(now_ms.saturating_sub(500));
            let due = (now_ms - sent_ms) * rate / 1000;
            sent_ms += due * 1000 / rate;
            let is_over = self.world.is_publishing_over();
            for _ in 0..due.max(u64::from(is_over) * 50) {
                if waiting.len() >= WINDOW || (is_over && self.resend.is_empty()) {
                    break;
                }
                self.send_one(connection, waiting).await?;
            }
            connection.flush().await?;
            loop {
                match connection.try_read(&self.world) {
                    Read::Frame(frame) => self.answer(&frame, waiting, last_seqs),
                    Read::Nothing => break,
                    Read::Gone => return Ok(()),
                }
            }
            if is_over && self.resend.is_empty() && waiting.is_empty() {
                return Ok(());
            }
            if now_ms > vanish_ms && !is_over {
                self.world.count("publisher connections dropped");
                return Ok(());
            }
            tokio::time::sleep(TICK).await;
        }
    }

    async fn send_one(
        &mut self,
        connection: &mut Connection,
        waiting: &mut HashMap<u64, Name>,
    ) -> Result<(), tungstenite::Error> {
        let corr = connection.next_number();
        let again = if self.random.chance(30) && !self.answered.is_empty() {
            let index = self.random.below(self.answered.len() as u64) as usize;
            Some(self.answered[index])
        } else {
            None
        };
        // The server ignores the payload of a duplicate.
        let other_payload = again.is_some() && self.random.chance(300);
        let name = match again.or_else(|| self.resend.pop_front()) {
            Some(name) => {
                self.world.count("publishes sent again");
                name
            }
            None => {
                let number = self.next_number;
                self.next_number += 1;
                Name { publisher: self.publisher, number }
            }
        };
        let content = Content::of(self.world.seed, name);
        self.world.ledger().sending(name, self.world.now_ms());
        // Recorded before sending: after a failed send the outcome is unknown.
        waiting.insert(corr, name);
        let payload = other_payload.then_some("{\"other\":true}");
        connection.feed(content.publish_frame(corr, payload)).await?;
        if content.id.is_some() && self.random.chance(5) && again.is_none() {
            let corr = connection.next_number();
            self.world.ledger().sending(name, self.world.now_ms());
            waiting.insert(corr, name);
            connection.feed(content.publish_frame(corr, None)).await?;
        }
        Ok(())
    }

    fn answer(
        &mut self,
        frame: &Frame,
        waiting: &mut HashMap<u64, Name>,
        last_seqs: &mut [u32; TOPICS.len()],
    ) {
        let Some(name) = frame.corr.and_then(|corr| waiting.get(&corr)).copied() else {
            let text = format!("publisher {}: {} {} {}", self.publisher, frame.op, frame.code, frame.msg);
            self.world.violation("unexpected_frame", &text);
            return;
        };
        if frame.op != "OK" {
            let has_id = Content::of(self.world.seed, name).id.is_some();
            if frame.corr.and_then(|corr| waiting.remove(&corr)).is_some() && has_id {
                self.resend.push_back(name);
            }
            if frame.code != "unavailable" {
                let text = format!("publisher {}: {name:?}: {} {}", self.publisher, frame.code, frame.msg);
                self.world.violation("publish_refused", &text);
            }
            return;
        }
        if let Some(corr) = frame.corr {
            waiting.remove(&corr);
        }
        let content = Content::of(self.world.seed, name);
        note_ok(&self.world, name, &frame.id, frame.seq, frame.duplicate);
        if !frame.duplicate {
            let last_seq = &mut last_seqs[content.topic];
            if frame.seq <= *last_seq {
                let text = format!("topic {}, seq {} after {last_seq}", content.topic_name(), frame.seq);
                self.world.violation("oks_out_of_order", &text);
            }
            *last_seq = frame.seq;
        }
        if content.id.is_some() && self.random.chance(100) {
            self.answered.push_back(name);
            // Kept for a while, so that some events are cleaned before their ids are resent.
            if self.answered.len() > 2_000 {
                self.answered.pop_front();
            }
        }
    }
}

fn note_ok(world: &World, name: Name, id: &str, seq: u32, duplicate: bool) {
    world.count("publishes answered OK");
    if duplicate {
        world.count("publishes answered as duplicates");
    }
    let faults = world.ledger().answered(name, id, seq, duplicate, world.now_ms());
    for (kind, text) in faults {
        world.violation(kind, &text);
    }
}

#[derive(Deserialize)]
struct PublishedLines {
    events: Vec<Published>,
}

#[derive(Deserialize)]
struct Published {
    id: String,
    seq: u32,
    #[serde(default)]
    duplicate: bool,
}

/// One publisher over HTTP: small batches of events with ids for one topic, repeated until they are answered.
pub(crate) async fn publish_over_http(world: Arc<World>, publisher: u16) {
    let mut random = Random::for_task(world.seed, "http-publisher", usize::from(publisher));
    let mut number = 0;
    while !world.is_publishing_over() {
        tokio::time::sleep(Duration::from_millis(random.between(20, 150))).await;
        let wanted = random.between(1, 6) as usize;
        let mut batch: Vec<Content> = Vec::new();
        while batch.len() < wanted && batch.last().is_none_or(|last| number <= last.name.number + 20) {
            let content = Content::of(world.seed, Name { publisher, number });
            number += 1;
            let fits = batch.first().is_none_or(|first| first.topic == content.topic);
            if content.id.is_some() && fits {
                batch.push(content);
            }
        }
        let Some(first) = batch.first() else { continue };
        let path = format!("/publish/{}?envelope=1", first.topic_name());
        let lines: Vec<String> = batch.iter().map(Content::record_line).collect();
        let lines = lines.join("\n");
        let answers = loop {
            for content in &batch {
                world.ledger().sending(content.name, world.now_ms());
            }
            let (address, path, lines) = (world.address, path.clone(), lines.clone());
            let posting = tokio::task::spawn_blocking(move || {
                http::post(address, &path, "content-type: application/x-ndjson\r\n", &lines)
            });
            match posting.await {
                Ok(Ok(answer)) if answer.status == 200 => break answer.body,
                Ok(Ok(answer)) if answer.status != 503 => {
                    world.violation(
                        "publish_refused",
                        &format!("HTTP {}: {:.200}", answer.status, answer.body),
                    );
                }
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let answers = serde_json::from_str::<PublishedLines>(&answers)
            .map(|it| it.events)
            .or_else(|_| serde_json::from_str(&answers).map(|it| vec![it]));
        match answers {
            Ok(answers) if answers.len() == batch.len() => {
                for (content, it) in batch.iter().zip(answers) {
                    note_ok(&world, content.name, &it.id, it.seq, it.duplicate);
                }
            }
            _ => world.violation("bad_answer", &format!("POST {path}: not one result per line")),
        }
    }
}
