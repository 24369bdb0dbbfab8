//! All publishes and their results. Each observation of an event (an OK, a delivery, an export) is compared with all earlier ones:
//! an event has one id, one seq and one payload, and a seq belongs to one event.

use crate::content::{Content, Name, name_of};
use crate::plan::TOPICS;

/// One publish.
#[derive(Clone, Default)]
pub(crate) struct Publication {
    /// 0 until it is known.
    pub(crate) seq: u32,
    /// The id that the server reported; empty until it is known.
    pub(crate) id: Box<str>,
    pub(crate) first_sent_ms: u64,
    /// 0 until a PUBLISH was answered OK.
    pub(crate) ok_ms: u64,
    /// Whether it was sent more than once.
    pub(crate) was_resent: bool,
}

/// An event as a frame or response contains it.
pub(crate) struct Seen<'a> {
    pub(crate) topic: &'a str,
    pub(crate) seq: u32,
    pub(crate) id: &'a str,
    pub(crate) payload: &'a str,
    pub(crate) key: Option<&'a str>,
}

/// A kind of violation and its text.
pub(crate) type Fault = (&'static str, String);

pub(crate) struct Ledger {
    seed: u64,
    publishers: Vec<Vec<Publication>>,
    /// Per topic: the event of each seq, at index seq - 1.
    by_seq: Vec<Vec<Option<Name>>>,
}

impl Ledger {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, publishers: Vec::new(), by_seq: vec![Vec::new(); TOPICS.len()] }
    }

    pub(crate) fn content(&self, name: Name) -> Content {
        Content::of(self.seed, name)
    }

    /// Records that a publish is about to be sent, for the first time or again.
    pub(crate) fn sending(&mut self, name: Name, now_ms: u64) {
        let publisher = usize::from(name.publisher);
        if self.publishers.len() <= publisher {
            self.publishers.resize(publisher + 1, Vec::new());
        }
        let publications = &mut self.publishers[publisher];
        if publications.len() <= name.number as usize {
            publications.resize(name.number as usize + 1, Publication::default());
        }
        let publication = &mut publications[name.number as usize];
        if publication.first_sent_ms == 0 {
            publication.first_sent_ms = now_ms.max(1);
        } else {
            publication.was_resent = true;
        }
    }

    pub(crate) fn publication(&self, name: Name) -> Option<&Publication> {
        self.publishers.get(usize::from(name.publisher))?.get(name.number as usize)
    }

    /// Records the OK of a PUBLISH.
    pub(crate) fn answered(
        &mut self,
        name: Name,
        id: &str,
        seq: u32,
        duplicate: bool,
        now_ms: u64,
    ) -> Vec<Fault> {
        let topic = self.content(name).topic;
        let mut faults = self.note(name, topic, seq, id, "an OK");
        let Some(publication) = self
            .publishers
            .get_mut(usize::from(name.publisher))
            .and_then(|it| it.get_mut(name.number as usize))
        else {
            return faults;
        };
        let place = format!("topic {}, seq {seq}, id {id}", TOPICS[topic].name);
        if duplicate && !publication.was_resent {
            faults.push(("false_duplicate", format!("{place}: sent once and answered as a duplicate")));
        }
        if !duplicate && publication.ok_ms > 0 {
            let text = format!(
                "{place}: answered OK at {} ms, then sent again and not answered as a duplicate",
                publication.ok_ms
            );
            faults.push(("duplicate_not_found", text));
        }
        if publication.ok_ms == 0 {
            publication.ok_ms = now_ms.max(1);
        }
        faults
    }

    /// Records an event that was delivered or read back. Returns its content unless the event is unknown.
    pub(crate) fn observed(&mut self, seen: &Seen<'_>, source: &str) -> (Option<Content>, Vec<Fault>) {
        let place = format!("topic {}, seq {}, id {} in {source}", seen.topic, seen.seq, seen.id);
        let known = name_of(seen.id, seen.payload).filter(|&name| self.publication(name).is_some());
        let Some(name) = known else {
            let text = format!("{place}: not published by this run: {:.80}", seen.payload);
            return (None, vec![("unknown_event", text)]);
        };
        let content = self.content(name);
        let mut faults = Vec::new();
        if content.topic_name() != seen.topic {
            faults.push(("wrong_topic", format!("{place}: published to {}", content.topic_name())));
            return (None, faults);
        }
        if content.payload() != seen.payload {
            faults.push(("payload_changed", format!("{place}: {:.80}", seen.payload)));
        }
        if content.key.as_deref() != seen.key {
            faults.push(("key_changed", format!("{place}: {:?}, not {:?}", seen.key, content.key)));
        }
        faults.extend(self.note(name, content.topic, seen.seq, seen.id, source));
        (Some(content), faults)
    }

    fn note(&mut self, name: Name, topic: usize, seq: u32, id: &str, source: &str) -> Vec<Fault> {
        let mut faults = Vec::new();
        let place = format!("topic {}, seq {seq}, id {id} in {source}", TOPICS[topic].name);
        let chosen = self.content(name).id;
        if chosen.as_deref().is_some_and(|chosen| chosen != id) {
            faults.push(("wrong_id", format!("{place}: published with id {chosen:?}")));
        }
        let publication = &mut self.publishers[usize::from(name.publisher)][name.number as usize];
        if publication.seq == 0 {
            publication.seq = seq;
            publication.id = id.into();
        } else if publication.seq != seq || &*publication.id != id {
            let text = format!("{place}: known before as seq {}, id {}", publication.seq, publication.id);
            faults.push(("event_moved", text));
        }
        let Some(index) = seq.checked_sub(1) else {
            faults.push(("seq_zero", place));
            return faults;
        };
        let by_seq = &mut self.by_seq[topic];
        if by_seq.len() <= index as usize {
            by_seq.resize(index as usize + 1, None);
        }
        match by_seq[index as usize] {
            Some(other) if other != name => {
                faults.push(("seq_reused", format!("{place}: the seq belongs to {other:?}, now {name:?}")));
            }
            _ => by_seq[index as usize] = Some(name),
        }
        faults
    }

    /// The highest known seq of a topic.
    pub(crate) fn last_seq(&self, topic: usize) -> u32 {
        self.by_seq[topic].len() as u32
    }

    pub(crate) fn at(&self, topic: usize, seq: u32) -> Option<(Name, &Publication)> {
        let name = (*self.by_seq[topic].get(seq.checked_sub(1)? as usize)?)?;
        Some((name, self.publication(name)?))
    }

    /// All publishes with their names.
    pub(crate) fn publications(&self) -> impl Iterator<Item = (Name, &Publication)> {
        self.publishers.iter().enumerate().flat_map(|(publisher, publications)| {
            publications.iter().enumerate().map(move |(number, publication)| {
                (Name { publisher: publisher as u16, number: number as u32 }, publication)
            })
        })
    }
}
