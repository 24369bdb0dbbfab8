//! Following without a group: from stored events to new ones, and over lost connections.

use crate::gateway::{Gateway, TempFolder};
use crate::scripted::{Answer, Scripted};
use prombus_client::{After, Client, Filter, Follow, Record, Start};
use prombus_server::ServerOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

async fn publish(client: &Client, topic: &str, numbers: std::ops::RangeInclusive<u64>) {
    let records: Vec<Record> = numbers.map(|number| Record::new(topic, &number).unwrap()).collect();
    for published in client.publish_batch(&records).await {
        published.unwrap();
    }
}

async fn next(follow: &mut Follow, count: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        numbers.push(follow.next().await.unwrap().event.json().unwrap());
    }
    numbers
}

#[tokio::test]
async fn stored_events_are_followed_by_new_ones_over_a_restart() {
    let folder = TempFolder::new();
    let mut gateway = Gateway::in_folder(&folder).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    publish(&client, "orders.a", 1..=3).await;
    let none = Filter::default;
    let mut latest = client.follow("orders.*", Start::Latest, none()).await.unwrap();
    let lost = Arc::new(AtomicU32::new(0));
    let mut topic = client.follow("orders.a", Start::Earliest, none()).await.unwrap().on_lost({
        let lost = Arc::clone(&lost);
        move |_| {
            lost.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut pattern = client.follow("orders.*", Start::Earliest, none()).await.unwrap();
    assert_eq!(next(&mut topic, 2).await, [1, 2]);
    assert_eq!(next(&mut pattern, 3).await, [1, 2, 3]);
    for round in 1..=2 {
        gateway = gateway.stop().await.restart_in(&folder).await;
        // A topic that is created while the connections are lost belongs to the pattern, too.
        publish(&client, &format!("orders.new{round}"), round * 10..=round * 10 + 1).await;
        // Events of a pattern that were committed in the same millisecond are ordered by topic.
        tokio::time::sleep(Duration::from_millis(3)).await;
        publish(&client, "orders.a", round * 10 + 2..=round * 10 + 3).await;
    }
    assert_eq!(next(&mut topic, 5).await, [3, 12, 13, 22, 23]);
    assert!(lost.load(Ordering::Relaxed) >= 1);
    let all = [10, 11, 12, 13, 20, 21, 22, 23];
    assert_eq!(next(&mut pattern, 8).await, all);
    assert_eq!(next(&mut latest, 8).await, all);
}

#[tokio::test]
async fn only_events_that_match_the_filter_are_returned() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    for number in 1..=6_u64 {
        client.publish("orders", &number).key(format!("k{}", number % 2)).await.unwrap();
    }
    let filter = Filter { key: Some("k0".to_owned()), ..Filter::default() };
    let mut follow = client.follow("orders", Start::Earliest, filter).await.unwrap();
    assert_eq!(next(&mut follow, 3).await, [2, 4, 6]);
}

fn event(seq: u64) -> String {
    let id = format!("0196f1d0-0000-7000-8000-{seq:012}");
    format!(
        "id: {id}\ndata: {{\"id\":\"{id}\",\"seq\":{seq},\"ts\":5,\"topic\":\"a\",\"payload\":{seq}}}\n\n"
    )
}

fn stream(position: &str, seqs: &[u64], rest: &str) -> Answer {
    let events: String = seqs.iter().map(|seq| event(*seq)).collect();
    let text = format!("retry: 1000\nid: {position}\n: connected\n\n{events}{rest}");
    Answer::chunks([text.as_bytes()], false)
}

#[tokio::test]
async fn an_incomplete_event_is_requested_again_and_a_removed_event_is_no_end() {
    let cut = &event(3)[..70];
    let unknown = Answer::json("404 Not Found", r#"{"error":"no such event","code":"unknown_id"}"#);
    let unavailable = "event: error\ndata: {\"error\":\"cannot be read\",\"code\":\"unavailable\"}\n\n";
    let answers = vec![
        stream("p0", &[1, 2], cut),
        stream("p2", &[3], unavailable),
        unknown,
        Answer::json("200 OK", r#"{"topic":"a","last_seq":4}"#),
        stream("p0", &[2, 3, 4], ""),
        Answer::json("403 Forbidden", r#"{"error":"not yours","code":"forbidden"}"#),
    ];
    let server = Scripted::start(answers).await;
    let client = Client::new(&server.url, None).unwrap();
    let mut follow = client.follow("a", Start::Latest, Filter::default()).await.unwrap();
    assert_eq!(next(&mut follow, 4).await, [1, 2, 3, 4]);
    let error = follow.next().await.unwrap_err();
    assert!(error.to_string().contains("not yours"), "{error}");
    let requests = server.requests();
    let wanted = [
        "from=latest",
        "lastEventId=0196f1d0-0000-7000-8000-000000000002",
        "lastEventId=0196f1d0-0000-7000-8000-000000000003",
        "GET /topics/a ",
        "from=earliest",
        "lastEventId=0196f1d0-0000-7000-8000-000000000004",
    ];
    assert_eq!(requests.len(), wanted.len(), "{requests:?}");
    for (request, wanted) in requests.iter().zip(wanted) {
        assert!(request.contains(wanted), "{request} has no {wanted}");
    }
}

#[tokio::test]
async fn a_topic_that_is_deleted_and_created_again_during_a_stream_is_followed_from_its_first_event() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    publish(&client, "a", 1..=5).await;
    let mut follow = client.follow("a", Start::Earliest, Filter::default()).await.unwrap();
    assert_eq!(next(&mut follow, 5).await, [1, 2, 3, 4, 5]);
    let topic = "a".parse().unwrap();
    // The new topic is shorter at first, then as long as the deleted one, then longer.
    for new in [11..=12, 21..=22, 31..=39] {
        gateway.bus().delete_topic(&topic).await.unwrap();
        publish(&client, "a", new.clone()).await;
        let received = tokio::time::timeout(Duration::from_secs(10), next(&mut follow, new.clone().count()));
        assert_eq!(received.await.expect("without a reconnect"), new.collect::<Vec<_>>());
    }
}

const UNKNOWN_ID: &str = r#"{"error":"no such event","code":"unknown_id"}"#;

#[tokio::test]
async fn a_topic_that_was_deleted_and_created_again_is_followed_from_its_first_event() {
    let answers = vec![
        stream("p0", &[7, 8], ""),
        Answer::json("404 Not Found", UNKNOWN_ID),
        Answer::json("200 OK", r#"{"topic":"a","last_seq":2}"#),
        stream("p0", &[1, 2, 3], ""),
    ];
    let server = Scripted::start(answers).await;
    let client = Client::new(&server.url, None).unwrap();
    let mut follow = client.follow("a", Start::Latest, Filter::default()).await.unwrap();
    assert_eq!(next(&mut follow, 5).await, [7, 8, 1, 2, 3]);
}

#[tokio::test]
async fn following_after_an_event_that_compaction_removed_starts_after_its_seq() {
    let answers = vec![
        Answer::json("404 Not Found", UNKNOWN_ID),
        Answer::json("200 OK", r#"{"topic":"a","last_seq":9}"#),
        stream("p0", &[2, 7, 9], ""),
    ];
    let server = Scripted::start(answers).await;
    let client = Client::new(&server.url, None).unwrap();
    let id = "0196f1d0-0000-7000-8000-000000000005".parse().unwrap();
    let after = After { id, seq: Some(5) };
    let mut follow = client.follow_after("a", after, Filter::default()).await.unwrap();
    assert_eq!(next(&mut follow, 2).await, [7, 9]);
}
