//! Test of a leader that is suspended for 20 seconds, then resumed.

use super::gateways::{Store, role, wait_for_role};
use super::load::{World, member, publisher};
use super::servers::{open_database, shared_url};
use futures_util::TryStreamExt as _;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, doc};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn key(topic: u32, seq: u64) -> Bson {
    let mut bytes = topic.to_be_bytes().to_vec();
    bytes.extend_from_slice(&seq.to_be_bytes());
    Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_resumes_after_20_seconds_writes_nothing_and_follows() {
    let store = Store::new(shared_url());
    let first = store.gateway();
    wait_for_role(first.address(), "leader");
    let second = store.gateway();
    let world = World::new(vec![first.address(), second.address()]);
    let load = [0, 1].map(|index| {
        let numbers = index * 10_000_000..(index + 1) * 10_000_000;
        tokio::spawn(publisher(Arc::clone(&world), index as usize, numbers))
    });
    let members = [0, 1].map(|index| tokio::spawn(member(Arc::clone(&world), index)));
    world.wait_for_answers(2_000).await;
    first.signal(Signal::STOP);
    wait_for_role(second.address(), "leader");
    tokio::time::sleep(Duration::from_secs(14)).await;
    first.signal(Signal::CONT);
    wait_for_role(first.address(), "follower");
    let before = world.answered_count.load(Ordering::SeqCst);
    world.wait_for_answers(before + 1_000).await;
    world.is_over.store(true, Ordering::SeqCst);
    for task in load {
        task.await.unwrap();
    }
    for task in members {
        task.await.unwrap();
    }
    assert_eq!(role(second.address()).as_deref(), Some("leader"));
    assert!(
        world.close_codes.lock().unwrap().contains(&Some(1012)),
        "{:?}",
        world.close_codes.lock().unwrap()
    );
    // In the database: terms never decrease from one fence to the next, and the old leader committed nothing after it resumed.
    let events = open_database(shared_url(), &store.database).await.collection::<Document>("events");
    let fences = doc! { "_id": { "$gte": key(0, 0), "$lt": key(1, 0) } };
    let fences: Vec<Document> =
        events.find(fences).sort(doc! { "_id": 1 }).await.unwrap().try_collect().await.unwrap();
    let terms: Vec<i64> = fences.iter().map(|fence| fence.get_i64("term").unwrap()).collect();
    assert!(terms.is_sorted(), "a fence of an older term follows one of a newer term: {terms:?}");
    let takeovers = terms.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!(takeovers, 1, "{terms:?}");
    let last_of_first = terms.iter().rposition(|term| *term == terms[0]).unwrap();
    let number = |fence: &Document| {
        u64::from_be_bytes(fence.get_binary_generic("_id").unwrap()[4..].try_into().unwrap()) as i64
    };
    let boundary = number(&fences[last_of_first]);
    let late = doc! { "_id": { "$gte": key(2, 0) }, "commit": { "$lte": boundary }, "committed_at": { "$gt": fences[last_of_first + 2].get_datetime("at").unwrap() } };
    assert_eq!(events.count_documents(late).await.unwrap(), 0, "the old leader wrote after it resumed");
    println!("fences of term {}: up to {boundary}, then term {}", terms[0], terms[last_of_first + 1]);
    first.stop();
    second.stop();
}
