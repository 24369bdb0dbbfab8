//! The operations of a history: appends, topics, cleaning and backups.

use super::*;

impl History {
    pub(super) fn clean(&mut self, log: &Log) -> Check {
        self.raise_floors(log);
        let mut options = CleanOptions::default();
        options.compact = !self.random.one_in(4);
        let living = Living { log, dead: &self.dead, counts: !self.random.one_in(4) };
        if self.random.one_in(3) {
            self.disk.cut_after(self.random.between(1, 40));
        }
        // Cleaning fails only if the power is off. Unreadable segments stay as they are.
        let cleaned = log.clean(&living, &options);
        if cleaned.is_err() || self.disk.is_off() {
            return ensure(self.disk.is_off(), || format!("cleaning failed: {cleaned:?}"));
        }
        self.refused.cleanings += u64::from(cleaned.is_ok_and(|report| report.was_unreadable));
        self.disk.make_readable();
        for topic in TOPICS {
            let Some(id) = log.topic(topic) else { continue };
            let there: HashSet<u64> = read_all(log, id).iter().map(|event| event.seq).collect();
            for seq in (1..=log.last_seq(id)).filter(|seq| !there.contains(seq)) {
                ensure(self.dead.has(topic, seq), || {
                    format!("{topic}: cleaning removed the live seq {seq}")
                })?;
                self.removed.insert((topic, seq));
            }
        }
        Ok(())
    }

    /// Backs the log up to a disk that may lose power during the backup, and loses power after it.
    pub(super) fn back_up(&mut self, log: &Log) -> Check {
        self.take_acknowledged(log);
        let copy = Disk::new(self.random.next());
        copy.lie_about(self.lie);
        if self.random.one_in(2) {
            copy.cut_after(self.random.between(1, 60));
        }
        let failed_before = self.disk.failed_reads();
        let outcome = log.backup_storage(Arc::new(copy.clone()), &mut |_| {});
        let is_refused =
            matches!(outcome, Err(BackupError::Read { .. })) && self.disk.failed_reads() > failed_before;
        self.refused.backups += u64::from(is_refused);
        let is_allowed = outcome.is_ok() || copy.is_off() || self.disk.is_off() || is_refused;
        copy.power_cut();
        ensure(is_allowed, || format!("backup: {outcome:?}"))?;
        if outcome.is_err() && !copy.names().iter().any(|name| name == "MANIFEST") {
            return Ok(());
        }
        let report = verify_storage(Arc::new(copy.clone()), |_| {})
            .map_err(|error| format!("verify the backup: {error}"))?;
        ensure(report.faults.is_empty(), || format!("verify found in the backup: {:?}", report.faults))?;
        let state = Remembered::default();
        let options = Options { observer: Listener::new(), ..self.options.clone() };
        let restored = Log::open_storage(Arc::new(copy), options, Box::new(state.clone()))
            .map_err(|error| format!("open the backup: {error}"))?;
        self.backups += 1;
        self.check_content(&restored, &state).map_err(|error| format!("backup: {error}")).map(|_| ())
    }

    pub(super) fn append(&mut self, log: &Log) -> Check {
        let mut topics: HashMap<&'static str, TopicId> = HashMap::new();
        let count = self.random.below(5);
        let mut events = Vec::new();
        for _ in 0..count {
            let topic = TOPICS[self.random.below(TOPICS.len() as u64) as usize];
            match log.ensure_topic(topic) {
                Ok(id) => topics.insert(topic, id),
                Err(AppendError::QueueFull | AppendError::StorageFull) => {
                    log.step_commit();
                    log.step_housekeeping();
                    return Ok(());
                }
                Err(error) => return ensure(self.disk.is_off(), || format!("ensure_topic: {error}")),
            };
            events.push(self.make_event(topic));
        }
        let mut states = Vec::new();
        for _ in 0..self.random.below(3) {
            states.push(self.next_number);
            self.next_number += 1;
        }
        let state_bodies: Vec<[u8; 8]> = states.iter().map(|number| number.to_le_bytes()).collect();
        let new_events: Vec<NewEvent<'_>> = events
            .iter()
            .map(|(expected, chosen)| NewEvent {
                topic: topics[expected.topic],
                id: chosen.then_some(expected.id),
                ts: expected.ts,
                key: expected.key.as_deref(),
                body: &expected.body,
                tombstone: false,
            })
            .collect();
        let new_states: Vec<NewState<'_>> = states
            .iter()
            .zip(&state_bodies)
            .map(|(&number, body)| NewState { tag: number as u32, body })
            .collect();
        let mut outcomes = Outcomes::default();
        let use_reserve = self.random.one_in(4);
        let append = Append { events: &new_events, states: &new_states, use_reserve };
        let failed_before = self.disk.failed_reads();
        let mut appended = log.try_append(&append, &mut outcomes);
        if matches!(appended, Err(AppendError::QueueFull)) && self.random.one_in(2) {
            // A large append may need a segment that maintenance prepares for it.
            log.step_commit();
            for _ in 0..4 {
                log.step_housekeeping();
            }
            appended = log.try_append(&append, &mut outcomes);
        }
        let ticket = match appended {
            Ok(ticket) => ticket,
            // If an id cannot be looked up, the append is refused: the id must not count as new.
            Err(AppendError::Lookup(_)) if self.disk.failed_reads() > failed_before => {
                self.refused.appends += 1;
                return Ok(());
            }
            Err(AppendError::QueueFull) => {
                log.step_commit();
                log.step_housekeeping();
                return Ok(());
            }
            Err(AppendError::TooLarge { .. }) => return Ok(()),
            Err(error) => return ensure(self.disk.is_off(), || format!("append: {error}")),
        };
        let mut kept = Vec::new();
        for ((mut expected, chosen), outcome) in events.into_iter().zip(outcomes.iter()) {
            let there = chosen.then(|| self.find(&kept, expected.topic, expected.id)).flatten();
            if let Some(seq) = there {
                let dead_since_ms = self.dead.since_ms.get(&(expected.topic, seq));
                let is_over = dead_since_ms.is_some_and(|&ms| self.latest_ms >= ms + self.options.dedupe_ms);
                let right = outcome.duplicate && outcome.seq == seq || !outcome.duplicate && is_over;
                ensure(right, || {
                    format!("append with id {} of seq {seq} returned {outcome:?}", expected.id)
                })?;
            } else {
                ensure(!outcome.duplicate, || format!("a new id counts as a duplicate: {outcome:?}"))?;
            }
            if outcome.duplicate {
                continue;
            }
            if !chosen {
                ensure(outcome.id > self.newest_server_id, || {
                    format!("id {} after {}", outcome.id, self.newest_server_id)
                })?;
                self.newest_server_id = outcome.id;
            }
            expected.id = outcome.id;
            expected.seq = outcome.seq;
            kept.push(expected);
        }
        self.appended.push(Appended { ticket: Some(ticket), events: kept, states });
        Ok(())
    }

    pub(super) fn make_or_delete_topic(&mut self, log: &Log) -> Check {
        let passing = &mut self.passing;
        if self.random.one_in(2) && !passing.alive.is_empty() {
            let at = self.random.below(passing.alive.len() as u64) as usize;
            let id = log.topic(&passing.alive[at]);
            if let Some(Ok(ticket)) = id.map(|id| log.delete_topic(id)) {
                passing.deleting.push((ticket, passing.alive.swap_remove(at)));
            }
            return Ok(());
        }
        passing.made += 1;
        let name = format!("passing-{}", passing.made);
        let Ok(id) = log.ensure_topic(&name) else { return Ok(()) };
        ensure(id.number() > passing.highest_id, || {
            format!("the internal id {} was used before", id.number())
        })?;
        passing.alive.push(name);
        let body = vec![b'p'; self.random.below(1500) as usize];
        let chosen = self.random.one_in(2).then(|| EventId::from_u128(self.random.below(40).into()));
        let events = [NewEvent { topic: id, id: chosen, ts: 0, key: None, body: &body, tombstone: false }];
        let mut outcomes = Outcomes::default();
        if log.try_append(&Append { events: &events, ..Append::default() }, &mut outcomes).is_ok() {
            ensure(!outcomes[0].duplicate, || "an id counts as a duplicate in a new topic".to_owned())?;
            if chosen.is_none() {
                self.newest_server_id = self.newest_server_id.max(outcomes[0].id);
            }
        }
        Ok(())
    }

    pub(super) fn make_event(&mut self, topic: &'static str) -> (Expected, bool) {
        let random = &mut self.random;
        let length = match random.below(24) {
            // Larger than the room in the first segment, and sometimes than that in the next one.
            0 => random.below(30_000),
            1 => random.below(2500),
            _ => random.below(120),
        };
        let mut body = format!("event {} ", self.next_number).into_bytes();
        self.next_number += 1;
        // Bytes that look like frames.
        while body.len() < length as usize {
            body.extend_from_slice(&[0xf5, b'p', b'm', b'b']);
            body.extend_from_slice(&random.next().to_le_bytes());
        }
        let key = random.one_in(3).then(|| format!("key-{}", random.below(6)).into_bytes());
        let ts = random.below(1000) as i64;
        let chosen = random.one_in(3);
        let id = match random.below(4) {
            // An id that may already exist, or may have been lost.
            0 => EventId::from_u128(random.below(40).into()),
            1 => EventId::from_u128(
                u128::from(random.below(1 << 40)) << 80 | 7 << 76 | u128::from(random.next()),
            ),
            _ => random.id(),
        };
        (Expected { topic, seq: 0, id, ts, key, body }, chosen)
    }

    /// The seq of the event with an id, among the earlier appends and the earlier events of this one.
    pub(super) fn find(&self, kept: &[Expected], topic: &str, id: EventId) -> Option<u64> {
        let is_it = |event: &&Expected| event.topic == topic && event.id == id;
        if let Some(event) = kept.iter().rfind(is_it) {
            return Some(event.seq);
        }
        self.appended.iter().rev().find_map(|appended| {
            let event = appended.events.iter().rfind(is_it)?;
            Some(event.seq)
        })
    }

    pub(super) fn take_acknowledged(&mut self, log: &Log) {
        self.take_deleted(log);
        while let Some(appended) = self.appended.get(self.durable) {
            match appended.ticket {
                Some(ticket) if log.is_durable(ticket) => self.durable += 1,
                _ => break,
            }
        }
    }

    pub(super) fn take_deleted(&mut self, log: &Log) {
        let passing = &mut self.passing;
        for (ticket, name) in std::mem::take(&mut passing.deleting) {
            if log.is_durable(ticket) {
                passing.deleted.insert(name);
            } else {
                passing.deleting.push((ticket, name));
            }
        }
        for topic in log.topics() {
            passing.highest_id = passing.highest_id.max(topic.id.number());
        }
    }

    pub(super) fn acknowledge_all(&mut self) {
        self.durable = self.appended.len();
    }

    pub(super) fn raise_floors(&mut self, log: &Log) {
        for topic in TOPICS {
            if let Some(id) = log.topic(topic) {
                let last = log.last_seq(id);
                if SPARSE.contains(&topic) {
                    let floor = self.dead.floors.entry(topic).or_default();
                    *floor = (*floor).max(self.random.below(last + 1));
                }
                if self.random.one_in(2) {
                    let cut = self.dead.cuts.entry(topic).or_insert(1);
                    *cut = (*cut).max(self.random.below(last + 2));
                }
                for seq in 1..=last {
                    // The clock also goes back: an event that is still there may be removed at an earlier time.
                    if self.dead.has(topic, seq) && !self.removed.contains(&(topic, seq)) {
                        let since_ms = self.dead.since_ms.entry((topic, seq)).or_insert(i64::MAX);
                        *since_ms = (*since_ms).min(self.clock.now_ms());
                    }
                }
            }
        }
    }
}
