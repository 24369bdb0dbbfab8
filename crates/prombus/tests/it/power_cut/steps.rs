//! The steps of a life: actions of publishers, members and operators.

use super::{Check, Expected, GROUPS, Held, History, Life, TOPICS, ensure, payload_of, poll_once};
use prombus::delivery::MemberSettings;
use prombus::{
    Backend, DeliveryBatch, GroupName, GroupSpec, MemberOptions, Pattern, PublishError, PublishOptions,
    Published, PullLimit, SettleOutcome, Start, Topic, Unavailable, Uuid, Verdict,
};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

impl History {
    pub(super) fn step(&mut self, life: &mut Life) -> Check {
        if self.random.one_in(12) {
            self.break_reads();
        }
        match self.random.below(32) {
            0..=6 => self.publish(life)?,
            7..=11 => {
                life.store.log().step_commit();
            }
            12 | 13 => {
                life.store.log().step_housekeeping();
            }
            14..=15 => self.join(life)?,
            16..=20 => self.pull(life)?,
            21..=25 => self.settle(life, Verdict::Ack),
            26 => self.settle(life, Verdict::Nack { delay_ms: Some(0), reason: Some("no \"luck\"\n") }),
            27 => self.settle(life, Verdict::Nack { delay_ms: None, reason: None }),
            28 => self.remove_member(life),
            29 => {
                let by = [1, 5, 200, 40_000][self.random.below(4) as usize];
                self.clock.advance_ms(by);
                life.backend.tick();
            }
            30 if self.random.one_in(12) => self.seek(life)?,
            _ => {
                life.backend.tick();
                life.backend.flush();
            }
        }
        Ok(())
    }

    pub(super) fn publish(&mut self, life: &mut Life) -> Check {
        let mut batch = life.backend.batch();
        let mut expected = Vec::new();
        for _ in 0..self.random.between(1, 4) {
            let topic = TOPICS[self.random.below(3) as usize].to_owned();
            let payload = format!("{{\"n\":{},\"pad\":\"{}\"}}", self.next_payload, "x".repeat(60));
            self.next_payload += 1;
            let id = self.random.one_in(3).then(|| Uuid::from_u128(u128::from(self.random.next()) << 64 | 7));
            let options = PublishOptions { id, ..PublishOptions::default() };
            let name = Topic::new(&topic).map_err(|error| error.to_string())?;
            batch.push_json(name, payload.as_bytes(), &options).map_err(|error| error.to_string())?;
            expected.push(Expected { topic, payload, id });
        }
        let mut publishing = life.backend.publish(batch);
        if let Poll::Ready(Err(error)) = poll_once(Pin::new(&mut publishing)) {
            let is_lookup = matches!(error, PublishError::Lookup(_)) && self.has_read_errors();
            return ensure(is_lookup || self.disk.is_off(), || format!("publish: {error}"));
        }
        life.publishing.push((publishing, expected));
        Ok(())
    }

    /// Notes publishes and acks that have resolved.
    pub(super) fn take_answers(&mut self, life: &mut Life) -> Check {
        let mut at = 0;
        while at < life.publishing.len() {
            match poll_once(Pin::new(&mut life.publishing[at].0)) {
                Poll::Pending => at += 1,
                Poll::Ready(answer) => {
                    let (_, expected) = life.publishing.swap_remove(at);
                    match answer {
                        Ok(published) => self.published(&published, expected)?,
                        // It was not queued yet when the bus was closed.
                        Err(PublishError::Unavailable(Unavailable::Closed)) => {}
                        Err(PublishError::Lookup(_)) if self.has_read_errors() => {}
                        Err(error) => ensure(self.disk.is_off(), || format!("publish: {error}"))?,
                    }
                }
            }
        }
        let mut at = 0;
        while at < life.tickets.len() {
            match poll_once(Pin::new(&mut life.tickets[at].0)) {
                Poll::Pending => at += 1,
                Poll::Ready(answer) => {
                    let (_, place) = life.tickets.swap_remove(at);
                    match answer {
                        Ok(()) => {
                            self.settled.insert(place);
                        }
                        Err(error) => ensure(self.disk.is_off(), || format!("ack: {error}"))?,
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn published(&mut self, published: &[Published], expected: Vec<Expected>) -> Check {
        for (published, expected) in published.iter().zip(expected) {
            ensure(!published.duplicate, || format!("{expected:?} was reported as a duplicate"))?;
            ensure(expected.id.is_none_or(|id| id == published.id), || {
                format!("{expected:?} got another id")
            })?;
            let place = (expected.topic, published.seq);
            let known = self.known.insert(place.clone(), (published.id, expected.payload.clone()));
            ensure(known.is_none_or(|known| known == (published.id, expected.payload)), || {
                format!("{place:?} was assigned twice")
            })?;
        }
        Ok(())
    }

    pub(super) fn join(&mut self, life: &mut Life) -> Check {
        if life.members.iter().flatten().count() >= 5 {
            return Ok(());
        }
        let group = self.random.below(3) as usize;
        let (subscription, name, max_attempts) = GROUPS[group];
        let spec = GroupSpec {
            subscription: Pattern::new(subscription).map_err(|error| error.to_string())?,
            group: GroupName::new(name).map_err(|error| error.to_string())?,
            topics: Vec::new(),
            filter: None,
            from: Start::Earliest,
            expire_ms: None,
        };
        let settings = MemberSettings {
            max_in_flight: self.random.between(1, 40) as u32,
            batch_size: self.random.between(1, 12) as u32,
            ack_timeout_ms: [100, 30_000][self.random.below(2) as usize],
            max_attempts,
            max_unsettled: self.random.between(5, 200) as u32,
            passes_unreadable: true,
        };
        let backend = life.backend.clone();
        let joining = backend.join(spec, MemberOptions { settings, ..MemberOptions::default() });
        match self.drive(&backend, joining, &life.store) {
            Some(Ok(joined)) => {
                ensure(!(joined.created && self.made.contains(&group)), || format!("{name} was lost"))?;
                self.made.insert(group);
                life.members.push(Some((group, joined.membership, max_attempts)));
                Ok(())
            }
            Some(Err(prombus::GroupError::Read(error))) if error.is_unreadable() => Ok(()),
            Some(Err(error)) => ensure(self.disk.is_off(), || format!("join: {error}")),
            None => ensure(self.disk.is_off(), || "join does not resolve".to_owned()),
        }
    }

    pub(super) fn any_member(&mut self, life: &Life) -> Option<usize> {
        let there: Vec<usize> = (0..life.members.len()).filter(|&at| life.members[at].is_some()).collect();
        (!there.is_empty()).then(|| there[self.random.below(there.len() as u64) as usize])
    }

    pub(super) fn pull(&mut self, life: &mut Life) -> Check {
        let Some(at) = self.any_member(life) else { return Ok(()) };
        let (group, member, max_attempts) = life.members[at].clone().ok_or("chosen among those there")?;
        let mut batch = DeliveryBatch::default();
        let limit = PullLimit { events: self.random.between(1, 20) as u32, ..PullLimit::default() };
        match member.poll_pull(limit, &mut batch, &mut Context::from_waker(Waker::noop())) {
            Poll::Pending => return Ok(()),
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return ensure(self.disk.is_off(), || format!("pull: {error}")),
        }
        for item in batch.items() {
            let topic = batch.topic(item).to_string();
            let seq = item.position.seq;
            let place = (group, topic.clone(), seq);
            ensure(!self.settled.contains(&place), || format!("{place:?} was settled and is redelivered"))?;
            let before = self.attempts.insert(place.clone(), item.attempt).unwrap_or(0);
            ensure(item.attempt >= before, || {
                format!("{place:?}: attempt {} after attempt {before}", item.attempt)
            })?;
            let earlier = self.delivered_in.insert(place.clone(), self.lives);
            let is_from_before = earlier.is_some_and(|earlier| earlier < self.lives);
            ensure(!is_from_before || item.reason.is_some(), || {
                format!("{place:?} was delivered before the power cut, and is redelivered without a reason")
            })?;
            ensure(item.attempt <= max_attempts, || format!("{place:?}: attempt {}", item.attempt))?;
            let payload = String::from_utf8_lossy(batch.body(item)).into_owned();
            let event = (Uuid::from_u128(item.id.as_u128()), payload_of(&payload));
            let known = self.known.entry((topic.clone(), seq)).or_insert_with(|| event.clone());
            ensure(*known == event, || format!("{place:?} is {event:?}, not {known:?}"))?;
            life.held.push(Held { member: at, group, position: item.position, topic });
        }
        Ok(())
    }

    pub(super) fn settle(&mut self, life: &mut Life, verdict: Verdict<'_>) {
        for _ in 0..self.random.between(1, 6) {
            if life.held.is_empty() {
                return;
            }
            let at = self.random.below(life.held.len() as u64) as usize;
            let held = life.held.swap_remove(at);
            let Some((_, member, _)) = &life.members[held.member] else { continue };
            let mut outcomes = Vec::new();
            let ticket = member.settle(&[(held.position, verdict)], &mut outcomes);
            if outcomes == [SettleOutcome::Counted] && verdict == Verdict::Ack {
                let place = (held.group, held.topic, held.position.seq);
                self.acked.insert(place.clone());
                life.acked.push(place.clone());
                if !self.random.one_in(3) {
                    life.tickets.push((ticket, place));
                }
            }
        }
    }

    /// Removes a member that leaves or is lost.
    pub(super) fn remove_member(&mut self, life: &mut Life) {
        let Some(at) = self.any_member(life) else { return };
        if let Some((_, member, _)) = life.members[at].take()
            && self.random.one_in(2)
        {
            drop(member.leave());
        }
    }

    pub(super) fn seek(&mut self, life: &mut Life) -> Check {
        let group = self.random.below(3) as usize;
        let (subscription, name, _) = GROUPS[group];
        let backend = life.backend.clone();
        let sought = self.drive(&backend, backend.seek(subscription, name, Start::Earliest), &life.store);
        match sought {
            Some(Ok(())) => {}
            Some(Err(prombus::GroupError::UnknownGroup { .. })) => return Ok(()),
            Some(Err(prombus::GroupError::Read(error))) if error.is_unreadable() => return Ok(()),
            Some(Err(_)) | None if self.disk.is_off() => {}
            Some(Err(error)) => return Err(format!("seek: {error}")),
            None => return Err("seek does not resolve".to_owned()),
        }
        // Also if it did not resolve: it may have been written to disk.
        self.settled.retain(|place| place.0 != group);
        self.attempts.retain(|place, _| place.0 != group);
        self.delivered_in.retain(|place, _| place.0 != group);
        life.tickets.retain(|(_, place)| place.0 != group);
        life.acked.retain(|place| place.0 != group);
        self.sought.insert(group);
        Ok(())
    }
}
