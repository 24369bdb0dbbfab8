//! Tests with the histories of one or a few events.

use super::*;

/// The expected list if no lease must be extended.
const NONE: [u64; 0] = [];
const LEASE: Duration = Duration::from_secs(30);

fn key(number: u128) -> EventKey {
    (Topic::new("orders").unwrap(), Uuid::from_u128(number))
}

fn nack() -> Settlement {
    Settlement::Nack { reason: "no".to_owned(), delay: None }
}

struct Fixture {
    table: LeaseTable,
    now: Instant,
}

impl Fixture {
    fn new(is_auto_extended: bool) -> Self {
        let extend_for = is_auto_extended.then_some(5 * LEASE);
        let (mut table, now) = (LeaseTable::new(LEASE, extend_for), Instant::now());
        table.connected(now);
        Self { table, now }
    }

    /// Delivers an event that is new, and hands it to the consumer.
    fn deliver(&mut self, number: u128) -> Arc<Lease> {
        let lease = self.queue(number);
        assert!(lease.take(self.now));
        lease
    }

    fn queue(&mut self, number: u128) -> Arc<Lease> {
        match self.table.arrived(key(number), LEASE, None, self.now) {
            Arrival::New(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, lease: &Lease, settlement: Settlement) -> Settling {
        self.table.settle(lease.serial(), settlement, self.now)
    }

    /// Redelivers an event because its member was lost.
    fn arrived(&mut self, number: u128) -> Arrival {
        self.arrived_because(number, Some(RedeliveryReason::MemberLost))
    }

    fn arrived_because(&mut self, number: u128, reason: Option<RedeliveryReason>) -> Arrival {
        self.table.arrived(key(number), LEASE, reason, self.now)
    }

    fn reconnect(&mut self) {
        self.table.disconnected(self.now);
        self.table.connected(self.now);
    }

    fn pass(&mut self, time: Duration) -> Vec<u64> {
        self.now += time;
        std::iter::from_fn(|| self.table.next_extension(self.now)).map(|lease| lease.serial).collect()
    }

    /// The server extends a lease.
    fn extended(&mut self, serial: u64) {
        let lease = self.table.extendable(serial).unwrap();
        self.table.extended(lease, LEASE, self.now);
    }

    /// Lets time pass while every extension succeeds. Returns the number of extensions.
    fn pass_extended(&mut self, time: Duration) -> usize {
        let (end, mut extensions) = (self.now + time, 0);
        while self.now < end {
            for serial in self.pass(LEASE / 2) {
                self.extended(serial);
                extensions += 1;
            }
        }
        extensions
    }

    fn is_empty(&self) -> bool {
        let table = &self.table;
        table.entries.is_empty() && table.by_event.is_empty() && table.due.is_empty() && table.kept.is_empty()
    }
}

#[test]
fn a_settled_delivery_leaves_nothing() {
    let mut it = Fixture::new(true);
    let lease = it.deliver(1);
    assert_eq!(it.settle(&lease, Settlement::Ack), Settling::Send(Uuid::from_u128(1)));
    assert_eq!(it.settle(&lease, Settlement::Ack), Settling::Unknown);
    it.table.answered(lease.serial());
    assert!(it.is_empty());
}

#[test]
fn a_delivery_that_is_still_handled_adopts_the_lease_of_the_next_connection() {
    let mut it = Fixture::new(true);
    let lease = it.deliver(1);
    it.reconnect();
    it.pass(LEASE / 3);
    assert!(matches!(it.arrived(1), Arrival::Adopted));
    assert_eq!(lease.deadline(), it.now + LEASE);
    assert_eq!(it.settle(&lease, Settlement::Ack), Settling::Send(Uuid::from_u128(1)));
}

#[test]
fn a_result_of_an_earlier_connection_waits_for_the_redelivery() {
    let mut it = Fixture::new(true);
    let lease = it.deliver(1);
    it.reconnect();
    assert_eq!(it.settle(&lease, nack()), Settling::Kept);
    assert!(matches!(it.arrived(1), Arrival::Resend { settlement, .. } if settlement == nack()));
    it.table.answered(lease.serial());
    assert!(it.is_empty());
}

#[test]
fn a_result_whose_response_was_lost_is_resent_and_a_late_response_does_not_remove_it() {
    let mut it = Fixture::new(true);
    let lease = it.deliver(1);
    it.settle(&lease, Settlement::Ack);
    it.table.disconnected(it.now);
    it.table.answered(lease.serial());
    it.table.connected(it.now);
    assert!(matches!(it.arrived(1), Arrival::Resend { .. }));
}

#[test]
fn a_result_that_waits_too_long_is_forgotten() {
    let mut it = Fixture::new(true);
    let lease = it.deliver(1);
    it.table.disconnected(it.now);
    assert_eq!(it.settle(&lease, Settlement::Ack), Settling::Kept);
    // The time runs from the reconnect.
    it.pass(10 * KEEP_MARGIN);
    it.table.connected(it.now);
    it.pass(KEEP_MARGIN);
    assert!(!it.is_empty());
    it.pass(LEASE);
    assert!(it.is_empty());
}

#[test]
fn no_more_results_are_kept_than_allowed() {
    let mut it = Fixture::new(true);
    let most = MAX_KEPT_RESULTS as u128;
    let leases: Vec<_> = (0..=most).map(|number| it.deliver(number)).collect();
    it.table.disconnected(it.now);
    for lease in &leases {
        it.settle(lease, Settlement::Ack);
    }
    it.table.connected(it.now);
    assert_eq!(it.table.kept.len(), MAX_KEPT_RESULTS);
    assert!(matches!(it.arrived(0), Arrival::New(_)), "the oldest result was dropped");
    assert!(matches!(it.arrived(most), Arrival::Resend { .. }));
}

#[test]
fn queued_deliveries_are_dropped_with_the_connection() {
    let mut it = Fixture::new(true);
    let (taken, queued) = (it.deliver(1), it.queue(2));
    it.reconnect();
    assert!(!queued.take(it.now));
    assert!(matches!(it.arrived(2), Arrival::New(_)));
    assert!(!taken.is_lost());
}

#[test]
fn a_redelivery_after_a_nack_is_new_even_before_the_nacks_response() {
    let mut it = Fixture::new(true);
    let first = it.deliver(1);
    it.settle(&first, nack());
    let second = it.deliver(1);
    it.table.answered(first.serial());
    assert_eq!(it.settle(&second, Settlement::Ack), Settling::Send(Uuid::from_u128(1)));
    assert!(matches!(it.arrived(1), Arrival::Ignored), "an ack in flight settles the new lease, too");
}

#[test]
fn leases_are_extended_halfway_and_lost_when_that_fails() {
    let mut it = Fixture::new(true);
    let lease = it.deliver(1);
    assert_eq!(it.pass(LEASE / 2 - Duration::from_millis(1)), NONE);
    assert_eq!(it.pass(Duration::from_millis(1)), [lease.serial()]);
    it.extended(lease.serial());
    assert_eq!(lease.deadline(), it.now + LEASE);
    assert_eq!(it.pass(LEASE / 2), [lease.serial()]);
    assert_eq!(it.pass(LEASE / 2), NONE, "the extension got no response");
    assert!(lease.is_lost());
    assert!(matches!(it.arrived(1), Arrival::Adopted), "the event is still being handled");
    assert!(!lease.is_lost(), "the delivery has a lease again");
}

#[test]
fn leases_are_extended_for_a_limited_time() {
    let mut it = Fixture::new(true);
    let lease = it.deliver(1);
    let mut extensions = 0;
    while !lease.is_lost() {
        for serial in it.pass(LEASE / 2) {
            it.extended(serial);
            extensions += 1;
        }
    }
    assert_eq!(extensions, 9, "halfway through each lease, for less than five leases");
}

#[test]
fn an_ack_that_may_have_arrived_does_not_settle_an_event_of_a_group_that_was_moved() {
    let mut it = Fixture::new(true);
    let (sent, unsent) = (it.deliver(1), it.deliver(2));
    it.settle(&sent, Settlement::Ack);
    it.reconnect();
    it.settle(&unsent, Settlement::Ack);
    assert!(matches!(it.arrived_because(1, None), Arrival::New(_)));
    assert!(matches!(it.arrived_because(2, None), Arrival::Resend { .. }));
}

#[test]
fn a_nack_is_not_repeated_for_an_event_that_was_nacked_since() {
    let mut it = Fixture::new(true);
    let lease = it.deliver(1);
    it.reconnect();
    it.settle(&lease, nack());
    assert!(matches!(it.arrived_because(1, Some(RedeliveryReason::Nacked)), Arrival::New(_)));
    assert_eq!(it.table.entries.len(), 1);
}

#[test]
fn without_extension_a_lease_ends_and_a_queued_delivery_is_dropped() {
    let mut it = Fixture::new(false);
    let (taken, queued) = (it.deliver(1), it.queue(2));
    assert_eq!(it.pass(LEASE), NONE);
    assert!(taken.is_lost() && !queued.take(it.now));
    assert!(matches!(it.arrived(2), Arrival::New(_)));
}

#[test]
fn while_disconnected_nothing_is_extended_and_leases_expire() {
    let mut it = Fixture::new(true);
    let lease = it.deliver(1);
    it.table.disconnected(it.now);
    assert_eq!(it.pass(LEASE - Duration::from_millis(1)), NONE);
    assert!(!lease.is_lost());
    assert_eq!(it.pass(Duration::from_millis(1)), NONE);
    assert!(lease.is_lost());
}

#[test]
fn the_limit_of_extensions_counts_from_the_start_of_handling_and_again_from_an_adoption() {
    let mut it = Fixture::new(true);
    let lease = it.queue(1);
    assert_eq!(it.pass_extended(20 * LEASE), 40, "unlimited while the delivery waits");
    assert!(lease.take(it.now));
    it.pass_extended(4 * LEASE);
    it.reconnect();
    assert!(matches!(it.arrived(1), Arrival::Adopted));
    it.pass_extended(4 * LEASE);
    assert!(!lease.is_lost());
    it.pass_extended(3 * LEASE);
    assert!(lease.is_lost());
}

#[test]
fn a_refused_extension_does_not_end_a_lease_that_was_adopted_since() {
    let mut it = Fixture::new(true);
    let lease = it.deliver(1);
    let refused = it.table.extendable(lease.serial()).unwrap();
    assert!(matches!(it.arrived_because(1, Some(RedeliveryReason::LeaseExpired)), Arrival::Adopted));
    let deadline = lease.deadline();
    it.table.not_extended(refused);
    it.table.extended(refused, 9 * LEASE, it.now);
    assert!(!lease.is_lost() && lease.deadline() == deadline);
    it.table.not_extended(it.table.extendable(lease.serial()).unwrap());
    assert!(lease.is_lost());
}

#[test]
fn no_kept_result_is_forgotten_during_a_second_outage_or_while_paused() {
    let mut it = Fixture::new(true);
    let lease = it.deliver(1);
    it.table.disconnected(it.now);
    it.settle(&lease, Settlement::Ack);
    it.table.connected(it.now);
    it.table.disconnected(it.now);
    it.pass(10 * KEEP_MARGIN);
    it.table.set_paused(true, it.now);
    it.table.connected(it.now);
    it.pass(10 * KEEP_MARGIN);
    assert_eq!(it.table.kept_count(), 1);
    it.table.set_paused(false, it.now);
    it.pass(LEASE + KEEP_MARGIN);
    assert!(it.is_empty());
}

#[test]
fn after_a_drain_only_deliveries_of_the_consumer_are_extended() {
    let mut it = Fixture::new(true);
    let (taken, queued) = (it.deliver(1), it.queue(2));
    it.table.drain();
    assert!(!queued.take(it.now));
    assert_eq!(it.table.take_discarded(), 1);
    assert!(matches!(it.arrived(3), Arrival::Ignored), "the event was sent before the drain");
    assert_eq!(it.pass(LEASE / 2), [taken.serial()]);
    it.settle(&taken, Settlement::Ack);
    it.table.answered(taken.serial());
    assert!(it.is_empty());
}
