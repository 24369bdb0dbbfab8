//! Tests when a session gives up events that are still being read for it, so that they can go to other members of the group.

use super::super::delivery_rate::DeliveryRate;
use super::Subscriptions;
use crate::gateway::Gateway;
use crate::live::LiveOptions;
use crate::options::{Rate, ServerOptions};
use crate::rate_limit::{DeliveryBucket, TokenBucket};
use crate::shutdown::Stopping;
use crate::ws::send_buffer::SendBuffer;
use parking_lot::Mutex;
use prombus::delivery::{MemberSettings, Millis, Position};
use prombus::{
    BoxFuture, Bus, CursorPosition, DeliveryBatch, DeliveryItem, DurableTicket, GroupError, GroupName,
    GroupSpec, Joined, Membership, Pattern, PullLimit, SettleOutcome, Start, Verdict,
};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A member whose reads are pending.
#[derive(Default)]
struct Reading {
    waker: Mutex<Option<Waker>>,
    /// The calls that it got, in order.
    calls: Mutex<Vec<&'static str>>,
}

impl Reading {
    fn wake(&self) {
        self.waker.lock().take().into_iter().for_each(Waker::wake);
    }

    fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().clone()
    }
}

impl Membership for Reading {
    fn poll_pull(
        &self,
        _limit: PullLimit,
        _into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), GroupError>> {
        *self.waker.lock() = Some(context.waker().clone());
        Poll::Pending
    }

    fn stop_waiting(&self) {
        self.calls.lock().push("stop_waiting");
    }

    fn settle(&self, _: &[(Position, Verdict<'_>)], _: &mut Vec<SettleOutcome>) -> DurableTicket {
        DurableTicket::done()
    }

    fn count_stale(&self) {}

    fn now_ms(&self) -> Millis {
        0
    }

    fn is_live(&self, _: &DeliveryItem, _: &DeliveryBatch) -> bool {
        true
    }

    fn cursor(&self) -> BoxFuture<'_, Option<CursorPosition>> {
        Box::pin(async { None })
    }

    fn pause(&self, _: bool) {}

    fn hold(&self, _: bool) {}

    fn take_over(&self) -> BoxFuture<'_, Result<(), GroupError>> {
        Box::pin(async { Ok(()) })
    }

    fn leave(&self) -> DurableTicket {
        self.calls.lock().push("leave");
        DurableTicket::done()
    }

    fn lose(&self) {
        self.calls.lock().push("lose");
    }
}

/// A session with one subscription, whose pull is pending.
struct Waiting {
    gateway: Gateway,
    subscriptions: Subscriptions,
    member: Arc<Reading>,
    out: SendBuffer,
}

impl Waiting {
    fn new() -> Self {
        let options = ServerOptions::default();
        let live = LiveOptions::new(&options, None).expect("an empty configuration is valid");
        let (_stop, stopping) = Stopping::new();
        let gateway = Gateway::new(Arc::clone(Bus::memory().backend()), live, options, stopping);
        let spec = GroupSpec {
            subscription: Pattern::new("orders").expect("a good pattern"),
            group: GroupName::new("billing").expect("a good name"),
            topics: Vec::new(),
            filter: None,
            from: Start::Earliest,
            expire_ms: None,
        };
        let member = Arc::<Reading>::default();
        let joined = Joined { membership: Arc::clone(&member) as Arc<_>, created: true };
        let mut subscriptions = Subscriptions::new();
        subscriptions.add(&gateway, &spec, MemberSettings::default(), joined);
        let mut waiting = Self { gateway, subscriptions, member, out: SendBuffer::new(None) };
        waiting.pull(&mut DeliveryRate::new(DeliveryBucket::of(None)));
        assert_eq!(waiting.member.calls(), [""; 0]);
        waiting
    }

    fn pull(&mut self, rate: &mut DeliveryRate) {
        self.subscriptions.pull(&self.gateway, rate, &mut self.out);
    }
}

#[test]
fn events_that_are_being_read_go_to_other_members_if_there_is_no_room() {
    let mut it = Waiting::new();
    let most = it.gateway.options.connections.max_queued_bytes;
    it.out.put_binary(&vec![0; most]);
    it.member.wake();
    for _ in 0..3 {
        it.pull(&mut DeliveryRate::new(DeliveryBucket::of(None)));
    }
    assert_eq!(it.member.calls(), ["stop_waiting"], "it is called only once");
    // When there is room, the session pulls again. When the room is used up again, it calls `stop_waiting` once more.
    it.out = SendBuffer::new(None);
    it.pull(&mut DeliveryRate::new(DeliveryBucket::of(None)));
    it.out.put_binary(&vec![0; most]);
    it.member.wake();
    it.pull(&mut DeliveryRate::new(DeliveryBucket::of(None)));
    assert_eq!(it.member.calls(), ["stop_waiting"; 2]);
}

#[test]
fn events_that_are_being_read_go_to_other_members_if_the_rate_is_exceeded() {
    let mut it = Waiting::new();
    it.member.wake();
    let now = crate::clock::steady_ms();
    let mut bucket = TokenBucket::new(Rate { per_second: 0.001, burst: 1.0 }, now);
    bucket.take(1, now);
    let mut rate = DeliveryRate::new(DeliveryBucket::of(Some(bucket)));
    it.pull(&mut rate);
    assert!(rate.paused_until_ms().is_some());
    assert_eq!(it.member.calls(), ["stop_waiting"]);
}

#[test]
fn a_broken_connection_returns_events_that_are_being_read_before_its_member_is_lost() {
    let mut it = Waiting::new();
    it.subscriptions.lose(0);
    assert_eq!(it.member.calls(), ["stop_waiting", "lose"]);
}
