//! The deliveries that a subscription was sent and has not settled, by id: clients settle by id, groups by position.

use foldhash::fast::RandomState;
use prombus::delivery::Position;
use std::collections::HashMap;
use uuid::Uuid;

/// Deliveries are forgotten only if more than `2 * window + EXTRA` are remembered; see [`Delivered::forget_expired`].
const EXTRA: usize = 1_024;

/// A delivery that was put into the send buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) position: Position,
    /// The event's `ts`, in ms since 1970.
    pub(super) ts: i64,
    /// When the delivery was put into the send buffer, on the steady clock.
    pub(super) at_ms: u64,
    /// When the lease ends, on the steady clock. An extension updates it.
    pub(super) deadline_ms: u64,
    /// The position of the send buffer at which the EVENT frame ends.
    pub(super) end: u64,
}

#[derive(Debug, Default)]
pub(super) struct Delivered {
    by_id: HashMap<Uuid, Sent, RandomState>,
    /// Further deliveries whose id is already in `by_id`. Ids are unique in a topic, but a pattern may deliver the same id from
    /// two topics.
    twins: Vec<(Uuid, Sent)>,
}

impl Delivered {
    pub(super) fn len(&self) -> usize {
        self.by_id.len() + self.twins.len()
    }

    /// Remembers a delivery. A redelivery replaces the earlier delivery of the same event.
    pub(super) fn insert(&mut self, id: Uuid, sent: Sent) {
        if let Some(twin) =
            self.twins.iter_mut().find(|(other, it)| *other == id && it.position == sent.position)
        {
            twin.1 = sent;
            return;
        }
        let known = self.by_id.insert(id, sent);
        if let Some(twin) = known.filter(|known| known.position != sent.position) {
            self.twins.push((id, twin));
        }
    }

    pub(super) fn get(&mut self, id: Uuid) -> Option<&mut Sent> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: Uuid) -> Option<Sent> {
        let removed = self.by_id.remove(&id)?;
        if let Some(at) = self.twins.iter().position(|(other, _)| *other == id) {
            let (_, twin) = self.twins.swap_remove(at);
            self.by_id.insert(id, twin);
        }
        Some(removed)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sent> {
        self.by_id.values().chain(self.twins.iter().map(|(_, sent)| sent))
    }

    /// Forgets deliveries whose leases have expired, earliest deadline first, if far more than `window` (the subscription's
    /// `max_in_flight`) are remembered. An ack for a forgotten delivery is stale.
    pub(super) fn forget_expired(&mut self, window: usize, now_ms: u64) {
        let before = self.len();
        if before <= 2 * window + EXTRA {
            return;
        }
        let mut ends: Vec<u64> =
            self.iter().map(|it| it.deadline_ms).filter(|&deadline| deadline < now_ms).collect();
        let surplus = (before - window - EXTRA / 2).min(ends.len());
        if surplus == 0 {
            return;
        }
        let (_, &mut last, _) = ends.select_nth_unstable(surplus - 1);
        self.by_id.retain(|_, it| it.deadline_ms > last);
        self.twins.retain(|(_, it)| it.deadline_ms > last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prombus::delivery::SourceId;

    fn sent(source: u32, seq: u64, deadline_ms: u64) -> Sent {
        Sent { position: Position { source: SourceId(source), seq }, ts: 0, at_ms: 0, deadline_ms, end: 0 }
    }

    #[test]
    fn the_same_id_from_two_topics_can_be_settled_twice() {
        let (mut delivered, id) = (Delivered::default(), Uuid::from_u128(1));
        delivered.insert(id, sent(0, 1, 10));
        delivered.insert(id, sent(1, 5, 10));
        delivered.insert(id, sent(0, 1, 20));
        assert_eq!(delivered.len(), 2);
        let settled =
            [delivered.remove(id), delivered.remove(id)].map(|it| it.expect("two").position.source.0);
        assert_eq!(settled.iter().sum::<u32>(), 1);
        assert_eq!((delivered.remove(id), delivered.len()), (None, 0));
    }

    #[test]
    fn expired_deliveries_are_forgotten_only_when_there_are_many() {
        let mut delivered = Delivered::default();
        for seq in 0..1_224 {
            delivered.insert(Uuid::from_u128(u128::from(seq)), sent(0, seq, seq));
        }
        delivered.forget_expired(100, 5_000);
        assert_eq!(delivered.len(), 1_224);
        delivered.insert(Uuid::from_u128(5_000), sent(0, 5_000, 9_000));
        delivered.forget_expired(100, 0);
        assert_eq!(delivered.len(), 1_225);
        delivered.forget_expired(100, 5_000);
        assert_eq!(delivered.len(), 612);
        assert!(delivered.get(Uuid::from_u128(5_000)).is_some());
        assert!(delivered.get(Uuid::from_u128(0)).is_none());
    }
}
