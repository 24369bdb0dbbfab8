//! Groups that expire.

use super::{in_memory, member};
use crate::folder::Folder;
use crate::rig::poll;
use prombus::engine::LogEngine;
use prombus::{Bus, Clock, Limits, LocalBackend, ManualClock, MemberOptions};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

#[test]
fn groups_may_expire_after_any_time() {
    let clock = ManualClock::new(1_700_000_000_000);
    clock.advance_ms(1_000);
    let backend = in_memory(&clock, Limits { group_expire_ms: Some(u64::MAX), ..Limits::default() });
    let member = member(&backend, "orders", MemberOptions::default());
    drop(member.leave());
    backend.tick();
}

/// A group without members is deleted after the configured time, and not before; time with members does not count.
#[test]
fn a_group_without_members_is_deleted_after_its_time() {
    let clock = ManualClock::new(1_700_000_000_000);
    let limits = Limits { group_expire_ms: Some(10_000), ..Limits::default() };
    let backend = in_memory(&clock, limits);
    let bus = Bus::with_backend(Arc::new(backend.clone()));
    let groups = || {
        backend.tick();
        let Poll::Ready(Ok(groups)) = poll(&mut Box::pin(bus.groups())) else { panic!("lists groups") };
        groups.len()
    };
    let join = || {
        let Poll::Ready(Ok(member)) = poll(&mut bus.subscribe("orders", "billing").into_future()) else {
            panic!("joins")
        };
        member
    };
    let member = join();
    clock.advance_ms(60_000);
    assert_eq!(groups(), 1, "it has a member");
    drop(member);
    clock.advance_ms(9_000);
    assert_eq!(groups(), 1);
    let member = join();
    assert!(!member.created());
    clock.advance_ms(5_000);
    assert_eq!(groups(), 1, "a member joined in time");
    drop(member);
    clock.advance_ms(9_999);
    assert_eq!(groups(), 1);
    clock.advance_ms(2);
    assert_eq!(groups(), 0);
    assert!(join().created());
}

/// A group with its own expiry expires independently of the limit for other groups; only its creator can set the expiry.
#[test]
fn a_group_expires_after_the_time_that_its_creator_set() {
    let clock = ManualClock::new(1_700_000_000_000);
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let store = Arc::new(LogEngine::in_memory(1 << 20, Arc::clone(&shared)).expect("opens"));
    let backend = LocalBackend::open_without_timer(store, shared, Limits::default()).expect("opens");
    let bus = Bus::with_backend(Arc::new(backend.clone()));
    let names = || {
        backend.tick();
        let Poll::Ready(Ok(groups)) = poll(&mut Box::pin(bus.groups())) else { panic!("lists groups") };
        let mut names: Vec<_> = groups.into_iter().map(|it| (it.group, it.expire_ms)).collect();
        names.sort();
        names
    };
    let join = |group: &str, expire_ms: Option<u64>| {
        let mut subscribe = bus.subscribe("orders", group);
        if let Some(ms) = expire_ms {
            subscribe = subscribe.expire(Duration::from_millis(ms));
        }
        let Poll::Ready(Ok(member)) = poll(&mut subscribe.into_future()) else { panic!("joins") };
        member
    };
    let (short, long) = (join("short", Some(5_000)), join("long", None));
    let expected = vec![("long".to_owned(), None), ("short".to_owned(), Some(5_000))];
    clock.advance_ms(60_000);
    assert_eq!(names(), expected, "it has a member");
    drop((short, long));
    clock.advance_ms(4_000);
    // A member that joins an existing group does not change its expiry.
    drop((join("short", Some(1)), join("long", Some(1))));
    clock.advance_ms(4_999);
    assert_eq!(names(), expected);
    clock.advance_ms(2);
    assert_eq!(names(), expected[..1]);
}

#[tokio::test]
async fn a_group_with_an_expiry_expires_after_a_restart() {
    let folder = Folder::new();
    let bus = Bus::open(folder.path()).await.expect("opens");
    let member = bus.subscribe("orders", "short").expire(Duration::from_millis(300)).await.expect("joins");
    drop(member);
    bus.close().await.expect("closes");
    let bus = Bus::open(folder.path()).await.expect("opens again");
    assert_eq!(bus.groups().await.expect("lists groups")[0].expire_ms, Some(300));
    for _ in 0..1_000 {
        if bus.groups().await.expect("lists groups").is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the group is still there");
}
