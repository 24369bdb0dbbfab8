//! Checks after a power cut.

use super::{Check, GROUPS, History, Life, Place, TOPICS, ensure, payload_of, poll_once};
use prombus::delivery::MemberSettings;
use prombus::{
    Backend, DeadLetter, DeliveryBatch, GroupName, GroupSpec, MemberOptions, Pattern, PullLimit, Start,
    Topic, Uuid, Verdict,
};
use prombus_log::Step;
use std::collections::HashSet;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

impl History {
    pub(super) fn read_all(&mut self, life: &Life, topic: &str) -> Result<Vec<(u64, Uuid, String)>, String> {
        let Ok(topic) = Topic::new(topic) else { return Err(format!("{topic:?} is not a topic")) };
        let mut all = Vec::new();
        let mut from = 1;
        loop {
            let read = pin!(life.backend.read(&topic, from, PullLimit { events: 9, bytes: 5_000 }));
            let chunk = match poll_once(read) {
                Poll::Ready(Ok(chunk)) => chunk,
                Poll::Ready(Err(prombus::ReadError::UnknownTopic(_))) => return Ok(all),
                Poll::Ready(Err(error)) => return Err(format!("read: {error}")),
                Poll::Pending => return Err("a read waited".to_owned()),
            };
            for item in chunk.events.items() {
                let body = String::from_utf8_lossy(chunk.events.body(item)).into_owned();
                all.push((item.seq, Uuid::from_u128(item.id.as_u128()), body));
            }
            if chunk.next_seq == from {
                return Ok(all);
            }
            from = chunk.next_seq;
        }
    }

    /// Checks that every event that was confirmed or delivered is there, unchanged.
    pub(super) fn check_events(&mut self, life: &Life) -> Check {
        for topic in TOPICS {
            let events = self.read_all(life, topic)?;
            let seqs: Vec<u64> = events.iter().map(|(seq, ..)| *seq).collect();
            ensure(seqs.iter().copied().eq(1..=seqs.len() as u64), || format!("{topic} has {seqs:?}"))?;
            let known = self.known.range((topic.to_owned(), 0)..=(topic.to_owned(), u64::MAX));
            for ((_, seq), (id, payload)) in known {
                let event = events.get(*seq as usize - 1).ok_or_else(|| format!("{topic} lost seq {seq}"))?;
                let there = (event.1, payload_of(&event.2));
                ensure(there == (*id, payload.clone()), || format!("{topic} {seq} is {there:?}"))?;
            }
        }
        Ok(())
    }

    /// Checks that each dead letter is there once and matches its event. Its group has settled that event.
    pub(super) fn check_letters(&mut self, life: &Life) -> Result<HashSet<Place>, String> {
        let mut lettered = HashSet::new();
        for topic in TOPICS {
            for (_, _, body) in self.read_all(life, &format!("dlq.{topic}"))? {
                let letter: DeadLetter = serde_json::from_str(&payload_of(&body))
                    .map_err(|error| format!("a dead letter is not JSON: {error}: {body}"))?;
                let group = GROUPS.iter().position(|(_, name, _)| *name == letter.group);
                let group = group.ok_or_else(|| format!("a letter of {}", letter.group))?;
                ensure(letter.attempts == GROUPS[group].2, || format!("{} attempts", letter.attempts))?;
                ensure(letter.topic.as_str() == topic, || format!("a letter of {}", letter.topic))?;
                let place = (group, topic.to_owned(), letter.original.seq);
                let known = self.known.get(&(topic.to_owned(), letter.original.seq));
                let original = (letter.original.id, letter.original.payload.get().to_owned());
                ensure(known == Some(&original), || {
                    format!("the dead letter of {place:?} contains {original:?}")
                })?;
                ensure(lettered.insert(place.clone()), || format!("two dead letters of {place:?}"))?;
            }
        }
        self.settled.extend(lettered.iter().filter(|place| !self.sought.contains(&place.0)).cloned());
        self.letters += lettered.len() as u64;
        Ok(lettered)
    }

    /// Checks that healthy members get all unsettled events, and no others.
    pub(super) fn drain(&mut self, life: &mut Life) -> Check {
        let lettered = self.check_letters(life)?;
        let mut delivered: HashSet<Place> = HashSet::new();
        for group in self.made.clone() {
            let (subscription, name, max_attempts) = GROUPS[group];
            let spec = GroupSpec {
                subscription: Pattern::new(subscription).map_err(|error| error.to_string())?,
                group: GroupName::new(name).map_err(|error| error.to_string())?,
                topics: Vec::new(),
                filter: None,
                from: Start::Latest,
                expire_ms: None,
            };
            let settings = MemberSettings { max_attempts: max_attempts + 100, ..MemberSettings::default() };
            let backend = life.backend.clone();
            let joining = backend.join(spec, MemberOptions { settings, ..MemberOptions::default() });
            let joined = self.drive(&backend, joining, &life.store).ok_or("the join never ended")?;
            let joined = joined.map_err(|error| format!("join: {error}"))?;
            ensure(!joined.created, || format!("{name} was lost"))?;
            let mut batch = DeliveryBatch::default();
            let mut quiet = 0;
            while quiet < 3 {
                let mut context = Context::from_waker(Waker::noop());
                match joined.membership.poll_pull(PullLimit::default(), &mut batch, &mut context) {
                    Poll::Pending => {
                        quiet += 1;
                        self.clock.advance_ms(3_600_000);
                        life.backend.tick();
                        let log = life.store.log();
                        while log.step_commit() == Step::Worked || log.step_housekeeping() == Step::Worked {}
                        continue;
                    }
                    Poll::Ready(pulled) => pulled.map_err(|error| format!("pull: {error}"))?,
                }
                quiet = 0;
                let mut verdicts = Vec::new();
                for item in batch.items() {
                    let place = (group, batch.topic(item).to_string(), item.position.seq);
                    ensure(!self.settled.contains(&place), || {
                        format!("{place:?} was settled and is redelivered")
                    })?;
                    ensure(delivered.insert(place.clone()), || format!("{place:?} was delivered twice"))?;
                    verdicts.push((item.position, Verdict::Ack));
                }
                drop(joined.membership.settle(&verdicts, &mut Vec::new()));
            }
            for (topic, seq) in self.known.keys() {
                if Pattern::new(subscription).is_ok_and(|pattern| pattern.matches(topic)) {
                    let place = (group, topic.clone(), *seq);
                    let is_there = self.acked.contains(&place)
                        || delivered.contains(&place)
                        || lettered.contains(&place);
                    ensure(is_there, || format!("{place:?} was lost"))?;
                }
            }
        }
        let infos = pin!(life.backend.groups());
        let Poll::Ready(Ok(infos)) = poll_once(infos) else { return Err("groups() waited".to_owned()) };
        for info in infos {
            // A group whose creation was not confirmed may exist or not; it was not drained.
            let group = GROUPS.iter().position(|(_, name, _)| *name == info.group);
            if !group.is_some_and(|group| self.made.contains(&group)) {
                continue;
            }
            ensure(info.lag == 0 && info.in_flight == 0, || format!("at the end: {info:?}"))?;
        }
        let stats = life.store.stats();
        ensure(stats.faults == 0, || format!("a read error was reported as damage: {stats:?}"))
    }
}
