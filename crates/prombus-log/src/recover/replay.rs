//! Replays the records after a checkpoint: applies them to the topics, the ids, the state and the index, and reports lost
//! records.

use crate::caller_state::State;
use crate::checkpoint::{Checkpoint, Mark};
use crate::error::{Fault, FaultKind};
use crate::event_id::EventId;
use crate::frame_scan::{Found, Scan};
use crate::index::{FoundEvent, Index};
use crate::keyed_hash::KeyedHash;
use crate::layout::segment_name;
use crate::rebuild_index::{DamagedRange, LostRecords, index_batch, losses_of_batch};
use crate::record::{Commit, FLAG_CLIENT_ID, FLAG_DELETED, HEADER_BYTES, Header, Kind, RunEntry};
use crate::recover::seq_audit::SeqAudit;
use crate::segment::Segment;
use crate::topics::TopicView;
use crate::unreadable_ranges::UnreadableRanges;
use std::io;

/// The state that a replay builds up.
pub(crate) struct Replay {
    /// The topics by internal id.
    pub(crate) topics: Vec<Option<TopicView>>,
    /// The newest server id.
    pub(crate) last_server_id: EventId,
    /// The newest commit time.
    pub(crate) last_commit_ms: i64,
    /// The end of the last replayed batch.
    pub(crate) mark: Mark,
    /// The caller's state.
    pub(crate) state: Box<dyn State>,
    /// Damaged records.
    pub(crate) faults: Vec<Fault>,
    /// Records that could not be read. They may be intact, so they are not reported as damaged.
    pub(crate) unreadable: Vec<Fault>,
    /// The number of events replayed.
    pub(crate) events: u64,
    /// Whether the COMMIT before the next batch was lost. Then the chain value that the next batch must continue is
    /// unknown.
    pub(super) lost_commit: bool,
    /// Finds seqs that were lost together with their COMMIT.
    pub(super) audit: SeqAudit,
    /// The number of the last replayed segment, and its bytes after the last batch that was found.
    pub(super) rest_of_last: Option<(u64, std::ops::Range<u64>)>,
    /// The unreadable ranges in the replayed regions of the current segment.
    pub(super) replayed_holes: UnreadableRanges,
    pub(super) hash: KeyedHash,
}

impl Replay {
    pub(crate) fn new(checkpoint: &Checkpoint, state: Box<dyn State>, hash: KeyedHash) -> Self {
        Self {
            topics: checkpoint.topic_views(),
            last_server_id: checkpoint.last_server_id,
            last_commit_ms: checkpoint.last_commit_ms,
            mark: checkpoint.mark,
            state,
            faults: Vec::new(),
            unreadable: Vec::new(),
            events: 0,
            lost_commit: false,
            audit: SeqAudit::default(),
            rest_of_last: None,
            replayed_holes: UnreadableRanges::default(),
            hash,
        }
    }

    /// Marks the seqs of the checkpoint as found. Called if the replay starts at the mark of the checkpoint.
    pub(crate) fn begin_at_mark(&mut self) {
        for (id, topic) in self.topics.iter().enumerate() {
            if let Some(topic) = topic {
                self.audit.account(id as u32, topic.last_seq);
            }
        }
    }

    /// Reports the seqs of each topic that are missing up to the newest one in the checkpoint. Called if everything up to
    /// the mark of the checkpoint was replayed.
    pub(crate) fn reach_mark(&mut self, checkpoint: &Checkpoint) {
        for row in &checkpoint.topics {
            self.found_seqs(row.id, row.last_seq + 1, row.last_seq);
        }
    }

    /// Reports the seqs of a topic that were lost before `first_seq`, and marks all up to `last_seq` as found.
    fn found_seqs(&mut self, topic: u32, first_seq: u64, last_seq: u64) {
        if let Some(lost) = self.audit.lost_before(topic, first_seq) {
            self.faults.push(Fault {
                topic: self.topic_name(topic),
                seq: Some(lost.first_seq),
                last_seq: (lost.last_seq > lost.first_seq).then_some(lost.last_seq),
                ..Fault::new(segment_name(lost.segment), lost.position, FaultKind::Event)
            });
        }
        self.audit.account(topic, last_seq);
    }

    /// Continues the replay after `mark`, the known end of a batch.
    pub(crate) fn resume_at(&mut self, mark: Mark) {
        self.mark = mark;
        self.lost_commit = false;
    }

    /// Replays the intact records of a durable region, and reports the others. `commit` is the COMMIT at the end of the
    /// region; `None` if the region has no valid COMMIT.
    pub(super) fn replay_region(
        &mut self,
        segment: &Segment,
        from: u64,
        to: u64,
        commit: Option<&Commit>,
        index: &mut Index,
    ) -> io::Result<()> {
        let file = segment.file()?;
        let mut scan = Scan::new(&*file, segment.id.salt, from, to, true).around_holes();
        let mut damage: Vec<DamagedRange> = Vec::new();
        let mut events: Vec<FoundEvent> = Vec::new();
        while let Some(found) = scan.next()? {
            if commit.is_none() {
                self.audit_without_commit(segment, &found, scan.holes());
            }
            match found {
                Found::Gap { position, end } => damage.push(DamagedRange::new(position, end, scan.holes())),
                Found::Frame { position, header, is_body_valid: false } => {
                    let place = DamagedRange::new(position, scan.position(), scan.holes());
                    let is_unreadable = place.is_unreadable;
                    damage.push(place);
                    if header.kind == Kind::Event {
                        let topic = self.topic(header.topic);
                        topic.last_seq = topic.last_seq.max(header.seq);
                    }
                    if commit.is_none() {
                        let fault = self.fault_of(segment, position, &header);
                        self.report(fault, is_unreadable);
                    }
                }
                Found::Frame { position, header, is_body_valid: true } => {
                    self.replay_frame(&header, scan.frame());
                    if header.kind == Kind::Event {
                        events.push(FoundEvent::new(header, scan.frame(), position, self.hash));
                    }
                }
            }
        }
        self.replayed_holes.append(scan.into_holes());
        index.damage.extend(damage.iter().map(|place| place.position..place.end));
        for (topic, first_seq, last_seq) in commit.iter().flat_map(|it| &it.runs).filter_map(RunEntry::seqs) {
            self.found_seqs(topic, first_seq, last_seq);
        }
        let losses = commit.map_or(Vec::new(), |commit| losses_of_batch(from, commit, &damage, &events));
        index_batch(index, &events, &losses);
        if commit.is_some() {
            self.report_losses(segment, &losses);
        } else {
            self.report_damage(segment, &damage);
        }
        Ok(())
    }

    /// Finds lost seqs in a region that has no COMMIT, and so no run table, by the seqs before and after the damage.
    fn audit_without_commit(&mut self, segment: &Segment, found: &Found, holes: &UnreadableRanges) {
        match *found {
            Found::Gap { position, end } if holes.overlapping(position..end).is_none() => {
                self.audit.add_damage(segment.id.number, position..end);
            }
            Found::Frame { header, .. } if header.kind == Kind::Event => {
                self.found_seqs(header.topic, header.seq, header.seq);
            }
            Found::Gap { .. } | Found::Frame { .. } => {}
        }
    }

    /// Reports the damaged ranges that are not reported yet.
    fn report_damage(&mut self, segment: &Segment, damage: &[DamagedRange]) {
        let file = segment.name();
        for place in damage {
            let list = if place.is_unreadable { &self.unreadable } else { &self.faults };
            let is_reported = list.iter().any(|fault| fault.position == place.position && fault.file == file);
            if !is_reported {
                let fault = Fault::new(segment.name(), place.position, FaultKind::Frame);
                self.report(fault, place.is_unreadable);
            }
        }
    }

    /// Adds a fault to `unreadable` or to `faults`: unreadable records are not damaged.
    pub(super) fn report(&mut self, fault: Fault, is_unreadable: bool) {
        if is_unreadable {
            self.unreadable.push(Fault { what: FaultKind::Unreadable, ..fault });
        } else {
            self.faults.push(fault);
        }
    }

    fn replay_frame(&mut self, header: &Header, frame: &[u8]) {
        self.last_commit_ms = self.last_commit_ms.max(header.commit_ms);
        let body = &frame[HEADER_BYTES + header.key_length as usize..];
        match header.kind {
            Kind::Event => {
                self.events += 1;
                let topic = self.topic(header.topic);
                topic.last_seq = topic.last_seq.max(header.seq);
                if header.flags & FLAG_CLIENT_ID == 0 {
                    self.last_server_id = self.last_server_id.max(header.id);
                }
            }
            Kind::State => self.state.apply(header.topic, body),
            Kind::Topic => {
                let name = String::from_utf8_lossy(body);
                let topic = self.topic(header.topic);
                topic.name = name.as_ref().into();
                topic.is_deleted = header.flags & FLAG_DELETED != 0;
            }
            Kind::Commit => {}
        }
    }

    /// The topic with an internal id. If its topic record was lost to damage, it gets a generated name.
    fn topic(&mut self, id: u32) -> &mut TopicView {
        let at = id as usize;
        if self.topics.len() <= at {
            self.topics.resize(at + 1, None);
        }
        self.topics[at].get_or_insert_with(|| TopicView {
            name: format!("recovered.topic-{id}").into(),
            last_seq: 0,
            is_deleted: false,
        })
    }

    fn fault_of(&self, segment: &Segment, position: u64, header: &Header) -> Fault {
        let mut fault = Fault::new(segment.name(), position, fault_kind(header.kind));
        if header.kind == Kind::Event {
            fault.topic = self.topic_name(header.topic);
            fault.seq = Some(header.seq);
        }
        fault
    }

    fn topic_name(&self, topic: u32) -> Option<String> {
        Some(self.topics.get(topic as usize)?.as_ref()?.name.to_string())
    }

    /// Reports lost records. With the run table of the COMMIT every lost seq is known, even if its header is lost.
    fn report_losses(&mut self, segment: &Segment, losses: &[LostRecords]) {
        for loss in losses {
            let mut fault = Fault::new(segment.name(), loss.position, loss.kind);
            if let Some((first, last)) = loss.seqs {
                let topic = self.topic(loss.run.topic);
                topic.last_seq = topic.last_seq.max(loss.run.last_seq);
                fault.topic = self.topic_name(loss.run.topic);
                fault.seq = Some(first);
                fault.last_seq = (last > first).then_some(last);
            }
            self.report(fault, loss.is_unreadable);
        }
    }
}

fn fault_kind(kind: Kind) -> FaultKind {
    match kind {
        Kind::Event => FaultKind::Event,
        Kind::State => FaultKind::State,
        Kind::Topic => FaultKind::Topic,
        Kind::Commit => FaultKind::Commit,
    }
}
