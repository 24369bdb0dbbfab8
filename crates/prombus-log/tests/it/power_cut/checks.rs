//! The checks after an open, and at any time.

use super::*;

impl History {
    /// Deleted topics stay deleted, and internal ids are never reused.
    pub(super) fn check_passing_topics(&mut self, log: &Log) -> Check {
        let passing = &mut self.passing;
        passing.deleting.clear();
        for topic in log.topics() {
            ensure(!passing.deleted.contains(&*topic.name), || format!("{} is back", topic.name))?;
            passing.highest_id = passing.highest_id.max(topic.id.number());
        }
        passing.alive.retain(|name| log.topic(name).is_some());
        Ok(())
    }

    /// Only durable events are visible.
    pub(super) fn check_visible(&mut self, log: &Log) -> Check {
        self.take_acknowledged(log);
        let visible: HashSet<(&str, u64)> = self.appended[..self.durable]
            .iter()
            .flat_map(|appended| appended.events.iter().map(|event| (event.topic, event.seq)))
            .collect();
        let Some(topic) =
            TOPICS.into_iter().find(|topic| log.topic(topic).is_some_and(|id| log.last_seq(id) > 0))
        else {
            return Ok(());
        };
        let id = log.topic(topic).ok_or("the topic does not exist")?;
        let mut chunk = Chunk::default();
        let mut seq = 1;
        loop {
            let failed_before = self.disk.failed_reads();
            match log.read(id, seq, ReadLimit { events: 7, bytes: 3000 }, &mut chunk) {
                Ok(()) => {}
                Err(ReadError::Unreadable { first_seq, last_seq, .. })
                    if self.disk.failed_reads() > failed_before =>
                {
                    self.refused.reads += 1;
                    let is_sound = first_seq == seq && last_seq >= seq && last_seq <= log.last_seq(id);
                    ensure(is_sound, || {
                        format!("{topic}: {first_seq} to {last_seq} unreadable, from {seq}")
                    })?;
                    // Later events can still be read.
                    seq = last_seq + 1;
                    continue;
                }
                Err(ReadError::Io { .. }) if self.disk.failed_reads() > failed_before => {
                    self.refused.reads += 1;
                    return Ok(());
                }
                Err(_) if self.disk.is_off() => return Ok(()),
                Err(error) => return Err(format!("read: {error}")),
            }
            for missing in chunk.missing() {
                for seq in missing.first_seq..=missing.last_seq {
                    let is_cleaned = missing.reason == MissingReason::Cleaned && self.dead.has(topic, seq);
                    ensure(is_cleaned, || format!("{topic} {seq} is skipped: {missing:?}"))?;
                }
            }
            for event in chunk.events() {
                let is_there = visible.contains(&(topic, event.seq));
                ensure(is_there, || format!("{topic} {} is visible and was not durable", event.seq))?;
            }
            if chunk.next_seq() == seq {
                return Ok(());
            }
            seq = chunk.next_seq();
        }
    }

    /// The log contains a prefix of the appends, which includes all acknowledged ones.
    pub(super) fn check(&mut self, log: &Log, state: &Remembered) -> Check {
        let (kept, newest_server_id) = self.check_content(log, state)?;
        self.appended.truncate(kept);
        self.durable = kept;
        self.appended.iter_mut().for_each(|appended| appended.ticket = None);
        // Ids of lost events were never returned to a publisher.
        self.newest_server_id = newest_server_id;
        self.check_passing_topics(log)?;
        let faults = self.listener.faults();
        ensure(faults.is_empty(), || format!("a power cut was reported as damage: {faults:?}"))
    }

    /// Checks the content of a log that was just opened. Returns how many appends it contains, and its newest server id.
    pub(super) fn check_content(&self, log: &Log, state: &Remembered) -> Result<(usize, EventId), String> {
        let mut there: BTreeMap<&'static str, Vec<Read>> = BTreeMap::new();
        for topic in TOPICS {
            if let Some(id) = log.topic(topic) {
                there.insert(topic, read_all(log, id));
            }
        }
        let states: Vec<u64> = state.all();
        let kept = self.longest_prefix(log, &states)?;
        ensure(kept >= self.durable, || format!("{} appends were acknowledged, {kept} exist", self.durable))?;
        let own = there.values().flatten().filter(|event| !event.client_id).map(|event| event.id).max();
        let appended = &self.appended[..kept];
        let expected_states: Vec<u64> =
            appended.iter().flat_map(|appended| appended.states.clone()).collect();
        ensure(states == expected_states, || format!("state {states:?} instead of {expected_states:?}"))?;
        for topic in TOPICS {
            let expected: Vec<&Expected> = appended
                .iter()
                .flat_map(|appended| &appended.events)
                .filter(|event| event.topic == topic)
                .collect();
            let events = there.remove(topic).unwrap_or_default();
            let back = events.iter().find(|event| self.removed.contains(&(topic, event.seq)));
            ensure(back.is_none(), || {
                format!("{topic}: seq {:?} was removed and is back", back.map(|e| e.seq))
            })?;
            self.check_topic(topic, &expected, &events)?;
        }
        Ok((kept, own.unwrap_or_default()))
    }

    pub(super) fn check_topic(&self, topic: &str, expected: &[&Expected], events: &[Read]) -> Check {
        let mut by_seq: BTreeMap<u64, &Read> = BTreeMap::new();
        let mut last: Option<&Read> = None;
        for event in events {
            if let Some(last) = last {
                ensure(last.seq < event.seq, || format!("{topic}: seq {} after {}", event.seq, last.seq))?;
                ensure(last.commit_ms <= event.commit_ms, || {
                    format!("{topic}: the commit time decreases at {}", event.seq)
                })?;
            }
            last = Some(event);
            by_seq.insert(event.seq, event);
        }
        for (at, expected) in expected.iter().enumerate() {
            ensure(expected.seq == at as u64 + 1, || format!("{topic}: a gap before seq {}", expected.seq))?;
            match by_seq.remove(&expected.seq) {
                Some(event) => {
                    let same = event.id == expected.id
                        && event.ts == expected.ts
                        && event.key == expected.key
                        && event.body == expected.body;
                    ensure(same, || format!("{topic}: seq {} is another event", expected.seq))?;
                }
                None => ensure(self.dead.has(topic, expected.seq), || {
                    let there: Vec<u64> = events.iter().map(|event| event.seq).collect();
                    format!("{topic}: seq {} is lost, there are {there:?}", expected.seq)
                })?,
            }
        }
        ensure(by_seq.is_empty(), || format!("{topic}: {:?} were not appended completely", by_seq.keys()))
    }

    /// How many appends the log contains, according to its newest seqs and state records.
    pub(super) fn longest_prefix(&self, log: &Log, states: &[u64]) -> Result<usize, String> {
        let last: HashMap<&str, u64> =
            TOPICS.iter().map(|topic| (*topic, log.topic(topic).map_or(0, |id| log.last_seq(id)))).collect();
        let states: HashSet<u64> = states.iter().copied().collect();
        let mut kept = 0;
        for (at, appended) in self.appended.iter().enumerate() {
            let has_event = |event: &Expected| event.seq <= last[event.topic];
            let events = appended.events.iter().filter(|event| has_event(event)).count();
            let numbers = appended.states.iter().filter(|number| states.contains(number)).count();
            let parts = appended.events.len() + appended.states.len();
            let found = events + numbers;
            ensure(found == 0 || found == parts, || {
                format!("append {at} is incomplete: {found} of {parts}")
            })?;
            if parts == 0 {
                // An append without content counts as existing if the previous ones exist.
                kept += usize::from(kept == at);
            } else if found > 0 {
                ensure(kept == at, || format!("append {at} exists, but an earlier one does not"))?;
                kept = at + 1;
            }
        }
        // Whether appends without content after the last existing one exist is unknown. Acknowledged ones count as
        // existing.
        Ok(kept.max(self.durable.min(self.trailing_empty(kept))))
    }

    pub(super) fn trailing_empty(&self, from: usize) -> usize {
        let is_empty = |appended: &&Appended| appended.events.is_empty() && appended.states.is_empty();
        from + self.appended[from..].iter().take_while(is_empty).count()
    }

    /// Every kind of lookup returns the same result as a scan of all events.
    pub(super) fn check_lookups(&mut self, log: &Log) -> Check {
        for topic in TOPICS {
            let Some(id) = log.topic(topic) else { continue };
            let events = read_all(log, id);
            for event in events.iter().filter(|event| event.seq % 3 == 0) {
                let naive = events.iter().rfind(|other| other.id == event.id).map(|other| other.seq);
                let found = log.find_id(id, event.id).map_err(|error| error.to_string())?;
                ensure(found == naive, || format!("{topic}: id {} is {naive:?}, found {found:?}", event.id))?;
                let naive = events.iter().find(|other| other.ts >= event.ts).map(|other| other.seq);
                let found = log.first_at_or_after(id, event.ts).map_err(|error| error.to_string())?;
                ensure(found == naive, || format!("{topic}: ts {} is {naive:?}, found {found:?}", event.ts))?;
                if let Some(key) = &event.key {
                    let naive =
                        events.iter().rfind(|other| other.key.as_ref() == Some(key)).map(|other| other.seq);
                    let found = log.find_key(id, key).map_err(|error| error.to_string())?;
                    ensure(found == naive, || format!("{topic}: key is {naive:?}, found {found:?}"))?;
                }
            }
        }
        Ok(())
    }
}
