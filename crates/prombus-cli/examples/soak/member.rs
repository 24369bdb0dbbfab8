//! A member of a group. It acks, nacks, extends and abandons deliveries, and pauses, stalls, leaves and drops its connection.

mod verdicts;

use crate::connection::{Connection, Frame, Read};
use crate::group_book::{Delivery, Departure, Sent};
use crate::ledger::Seen;
use crate::plan::{GROUPS, GroupPlan, topic_number};
use crate::random::Random;
use crate::world::World;
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio_tungstenite::tungstenite;
use verdicts::Plan;

const MAX_IN_FLIGHT: u64 = 40;

struct Held {
    sent: Sent,
    id: String,
    plan: Plan,
    act_ms: u64,
}

/// A frame that waits for its answer.
enum Waiting {
    Ack(Sent),
    Nack(Sent, u64),
    Extend(Sent, u64),
    Other,
}

/// What a member does with its connection from time to time.
enum Interruption {
    Nothing,
    Pause,
    Stall,
    Unsubscribe,
    Close,
    Vanish,
}

struct Member {
    world: Arc<World>,
    group: usize,
    plan: &'static GroupPlan,
    random: Random,
    session: u32,
    held: Vec<Held>,
    waiting: HashMap<u64, Waiting>,
    /// ACKs without corr and their frame numbers.
    silent: VecDeque<(u64, Sent)>,
    resume_ms: Option<u64>,
}

/// Runs until the run is over.
pub(crate) async fn consume(world: Arc<World>, group: usize, number: usize) {
    let plan = &GROUPS[group];
    let mut member = Member {
        random: Random::for_task(world.seed, plan.name, number),
        world: Arc::clone(&world),
        group,
        plan,
        session: 0,
        held: Vec::new(),
        waiting: HashMap::new(),
        silent: VecDeque::new(),
        resume_ms: None,
    };
    while let Some(mut connection) = Connection::open(&world, || world.is_over()).await {
        let departure = member.use_connection(&mut connection).await.unwrap_or(Departure::ByServer);
        world.group(group).end_session(member.session, departure);
        member.held.clear();
        member.waiting.clear();
        member.silent.clear();
        member.resume_ms = None;
    }
}

impl Member {
    async fn use_connection(&mut self, connection: &mut Connection) -> Result<Departure, tungstenite::Error> {
        self.subscribe(connection).await?;
        let mut interrupt_ms = self.world.now_ms() + self.random.between(300, 4_000);
        loop {
            self.read_all(connection)?;
            self.act(connection).await?;
            let now_ms = self.world.now_ms();
            if self.world.is_over() {
                return self.close(connection).await;
            }
            if self.resume_ms.is_some_and(|at| at <= now_ms || self.world.is_draining()) {
                self.resume_ms = None;
                self.ask(connection, "RESUME").await?;
            }
            if now_ms >= interrupt_ms && !self.world.is_draining() {
                interrupt_ms = now_ms + self.random.between(300, 4_000);
                match self.choose_interruption() {
                    Interruption::Nothing => {}
                    Interruption::Pause if self.resume_ms.is_none() => {
                        self.ask(connection, "PAUSE").await?;
                        self.resume_ms = Some(now_ms + self.random.between(200, 2_500));
                        self.world.count("pauses");
                    }
                    Interruption::Pause => {}
                    Interruption::Stall => {
                        self.world.count("stalls of members");
                        tokio::time::sleep(Duration::from_millis(self.random.between(100, 2_000))).await;
                    }
                    Interruption::Unsubscribe => self.unsubscribe(connection).await?,
                    Interruption::Close => return self.close(connection).await,
                    Interruption::Vanish => {
                        self.world.count("members vanished");
                        return Ok(Departure::Vanished);
                    }
                }
            }
            let next_ms = self.held.iter().map(|held| held.act_ms).min().unwrap_or(u64::MAX);
            let patience = next_ms.saturating_sub(self.world.now_ms()).clamp(1, 50);
            self.read_one(connection, Duration::from_millis(patience)).await?;
        }
    }

    fn choose_interruption(&mut self) -> Interruption {
        match self.random.below(100) {
            0..12 => Interruption::Pause,
            12..22 => Interruption::Stall,
            _ if !self.plan.leaves => Interruption::Nothing,
            22..32 => Interruption::Unsubscribe,
            32..40 => Interruption::Close,
            40..50 => Interruption::Vanish,
            _ => Interruption::Nothing,
        }
    }

    async fn subscribe(&mut self, connection: &mut Connection) -> Result<(), tungstenite::Error> {
        let mut options = json!({
            "from": "earliest", "maxInFlight": MAX_IN_FLIGHT, "batchSize": self.random.between(1, MAX_IN_FLIGHT),
            "ackTimeoutMs": self.plan.ack_timeout_ms, "maxAttempts": self.plan.max_attempts,
        });
        if self.plan.only_red {
            options["filter"] = json!({"tag": "red"});
        }
        self.session = self.world.group(self.group).open_session(connection.life, self.world.now_ms());
        let corr = connection.next_number();
        self.waiting.insert(corr, Waiting::Other);
        let (topic, group) = (self.plan.subscription, self.plan.name);
        let frame = json!({"op": "SUBSCRIBE", "topic": topic, "group": group, "opts": options, "corr": corr});
        connection.send(frame.to_string()).await
    }

    /// Sends a frame that only names the subscription.
    async fn ask(&mut self, connection: &mut Connection, op: &str) -> Result<u64, tungstenite::Error> {
        let corr = connection.next_number();
        self.waiting.insert(corr, Waiting::Other);
        let (topic, group) = (self.plan.subscription, self.plan.name);
        let frame = json!({"op": op, "topic": topic, "group": group, "corr": corr});
        connection.send(frame.to_string()).await?;
        Ok(corr)
    }

    /// Leaves the group and joins it again on the same connection.
    async fn unsubscribe(&mut self, connection: &mut Connection) -> Result<(), tungstenite::Error> {
        self.world.count("unsubscribes");
        self.world.group(self.group).end_session(self.session, Departure::Clean);
        let corr = self.ask(connection, "UNSUBSCRIBE").await?;
        while self.waiting.contains_key(&corr) {
            self.read_one(connection, Duration::from_millis(100)).await?;
        }
        self.held.clear();
        self.resume_ms = None;
        tokio::time::sleep(Duration::from_millis(self.random.below(800))).await;
        self.subscribe(connection).await
    }

    /// Leaves with a close frame. Deliveries that arrive until then are still recorded.
    async fn close(&mut self, connection: &mut Connection) -> Result<Departure, tungstenite::Error> {
        self.world.count("clean closes");
        self.world.group(self.group).end_session(self.session, Departure::Clean);
        connection.send_close().await?;
        let give_up_ms = self.world.now_ms() + 10_000;
        while self.world.now_ms() < give_up_ms {
            self.read_one(connection, Duration::from_millis(100)).await?;
        }
        Ok(Departure::Clean)
    }

    fn read_all(&mut self, connection: &mut Connection) -> Result<(), tungstenite::Error> {
        loop {
            match connection.try_read(&self.world) {
                Read::Frame(frame) => self.take(connection, &frame),
                Read::Nothing => return Ok(()),
                Read::Gone => return Err(tungstenite::Error::ConnectionClosed),
            }
        }
    }

    async fn read_one(
        &mut self,
        connection: &mut Connection,
        patience: Duration,
    ) -> Result<(), tungstenite::Error> {
        match connection.read(&self.world, patience).await {
            Read::Frame(frame) => self.take(connection, &frame),
            Read::Nothing => {}
            Read::Gone => return Err(tungstenite::Error::ConnectionClosed),
        }
        Ok(())
    }

    fn take(&mut self, connection: &Connection, frame: &Frame) {
        if frame.op == "EVENT" {
            self.take_event(connection, frame);
        } else {
            self.take_answer(frame);
        }
    }

    fn take_event(&mut self, connection: &Connection, frame: &Frame) {
        let Some(event) = &frame.event else { return };
        // Read after its life ended: the next life may already have redelivered the event, so the order is unknown.
        if self.world.life() != connection.life {
            return;
        }
        let seen = Seen {
            topic: &event.topic,
            seq: event.seq,
            id: &event.id,
            payload: event.payload.get(),
            key: event.key.as_deref(),
        };
        let (content, mut faults) = self.world.ledger().observed(&seen, "a delivery");
        let topic = topic_number(&event.topic).filter(|topic| self.plan.topics.contains(topic));
        let (reason, attempt) = (frame.ctx.reason.as_deref(), frame.ctx.attempt);
        let received_ms = self.world.now_ms();
        if let (Some(content), Some(topic)) = (content, topic) {
            if self.plan.only_red && !content.is_red {
                let text = format!("group {}, seq {}: the filter does not match", self.plan.name, event.seq);
                faults.push(("filter_ignored", text));
            }
            let delivery = Delivery {
                topic,
                seq: event.seq,
                id: &event.id,
                attempt,
                reason,
                session: self.session,
                received_ms,
                empty_ms: connection.empty_ms,
            };
            let found = self.world.group(self.group).delivered(&delivery, &self.world.timeline());
            faults.extend(found);
            let sent = Sent { topic, seq: event.seq, session: self.session, attempt, sent_ms: 0 };
            let plan = self.choose(content.is_poison);
            let work_ms = if self.random.chance(100) { self.plan.work_ms * 10 } else { self.plan.work_ms };
            let act_ms = received_ms + self.random.below(work_ms);
            // The member works only on the latest delivery of an event.
            self.held.retain(|held| (held.sent.topic, held.sent.seq) != (topic, event.seq));
            self.held.push(Held { sent, id: event.id.clone(), plan, act_ms });
        } else if topic.is_none() {
            let text = format!("group {} received an event of {}", self.plan.name, event.topic);
            faults.push(("wrong_topic", text));
        }
        if frame.ctx.max_attempts != self.plan.max_attempts {
            let text = format!("group {}: max_attempts {}", self.plan.name, frame.ctx.max_attempts);
            faults.push(("wrong_max_attempts", text));
        }
        for (kind, text) in faults {
            self.world.violation(kind, &text);
        }
        self.world.count("deliveries");
        if attempt > 1 || reason.is_some() {
            self.world.count(&format!("redeliveries: {}", reason.unwrap_or("no reason")));
        }
    }

    fn take_answer(&mut self, frame: &Frame) {
        let now_ms = self.world.now_ms();
        let waiting = frame.corr.and_then(|corr| self.waiting.remove(&corr));
        let (is_ok, is_stopping) = (frame.op == "OK", frame.code == "unavailable");
        let mut book = self.world.group(self.group);
        // The server handles frames in order: those sent before this one have been handled too.
        while let Some((number, _)) = self.silent.front()
            && frame.corr.is_some_and(|corr| corr > *number)
        {
            if let Some((_, sent)) = self.silent.pop_front() {
                book.silent_ack_handled(&sent, now_ms);
            }
        }
        let mut faults = Vec::new();
        match waiting {
            Some(Waiting::Ack(sent)) if is_ok => {
                faults = book.verdict_answered(&sent, frame.stale, None, now_ms);
                self.world.count(if frame.stale { "acks answered stale" } else { "acks answered OK" });
            }
            Some(Waiting::Nack(sent, due_ms)) if is_ok => {
                faults = book.verdict_answered(&sent, frame.stale, Some(due_ms), now_ms);
                self.world.count(if frame.stale { "nacks answered stale" } else { "nacks answered OK" });
            }
            Some(Waiting::Extend(sent, extend_ms)) if is_ok || frame.code == "unknown_id" => {
                faults = book.extend_answered(&sent, extend_ms, is_ok);
            }
            Some(Waiting::Other) if is_ok => {}
            _ if is_stopping => {}
            _ => {
                let text = format!("group {}: {} {} {}", self.plan.name, frame.op, frame.code, frame.msg);
                faults.push(("unexpected_frame", text));
            }
        }
        drop(book);
        for (kind, text) in faults {
            self.world.violation(kind, &text);
        }
    }
}
