//! Publishes that are resent: after lost connections, rate limits and `unavailable`.

use crate::clock::pass_seconds;
use crate::fake_server::{FakeServer, event_id};
use prombus_client::{Client, ClientError, PublishError, Publisher, Record, Uuid};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test]
async fn a_publish_whose_ok_was_lost_is_resent_with_the_same_id() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let publishing = tokio::spawn(async move { client.publish("orders", &1).key("k").await });
    let mut peer = server.accept().await;
    let first = peer.expect("PUBLISH").await;
    let id: Uuid = first["opts"]["id"].as_str().unwrap().parse().unwrap();
    drop(peer);
    let mut peer = server.accept().await;
    let second = peer.expect("PUBLISH").await;
    assert_eq!((&second["opts"], &second["payload"]), (&first["opts"], &first["payload"]));
    peer.ok(&second, json!({"id": id, "seq": 1, "duplicate": true})).await;
    let published = publishing.await.unwrap().unwrap();
    assert!(published.id == id && published.duplicate);
}

#[tokio::test]
async fn a_rate_limit_an_unavailable_server_and_a_full_disk_are_waited_out() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let publishing = tokio::spawn(async move { client.publish("orders", &1).await });
    let mut peer = server.accept().await;
    let frame = peer.expect("PUBLISH").await;
    let limited = json!({"op": "ERR", "corr": frame["corr"], "code": "rate_limited", "msg": "", "retry_after_ms": 7000});
    peer.send(limited).await;
    tokio::select! {
        _ = peer.expect("PUBLISH") => panic!("sent too early"),
        () = pass_seconds(6) => {}
    }
    let (frame, ()) = tokio::join!(peer.expect("PUBLISH"), pass_seconds(2));
    peer.err(&frame, "unavailable").await;
    let frame = peer.expect("PUBLISH").await;
    peer.err(&frame, "storage_full").await;
    let frame = peer.expect("PUBLISH").await;
    peer.ok(&frame, json!({"id": event_id(1), "seq": 1})).await;
    assert_eq!(publishing.await.unwrap().unwrap().seq, 1);
}

#[tokio::test]
async fn other_refusals_are_not_retried() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let publishing = tokio::spawn(async move { client.publish("orders", &1).await });
    let mut peer = server.accept().await;
    let frame = peer.expect("PUBLISH").await;
    peer.err(&frame, "forbidden").await;
    let error = publishing.await.unwrap().unwrap_err();
    assert!(matches!(error, PublishError::Refused { .. }), "{error}");
}

#[tokio::test]
async fn a_publish_gives_up_when_its_patience_ends() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Client::new(&format!("http://{address}"), None).unwrap();
    tokio::time::pause();
    for (client, seconds) in [(client.clone(), 60), (client.patience(Duration::from_secs(5)), 5)] {
        let started = Instant::now();
        let error = client.publish("orders", &1).await.unwrap_err();
        assert!(matches!(error, PublishError::Lost(_)), "{error}");
        let waited = started.elapsed().as_secs();
        assert!((seconds..seconds + 7).contains(&waited), "{waited} s instead of {seconds}");
    }
}

#[tokio::test]
async fn a_publish_gives_up_on_a_silent_server_and_the_connection_remains() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap().patience(Duration::from_secs(5));
    let other = client.clone().patience(Duration::from_secs(50));
    let publishing = tokio::spawn(async move { client.publish("orders", &1).await });
    let mut peer = server.accept().await;
    peer.expect("PUBLISH").await;
    let waiting = tokio::spawn(async move { other.publish("orders", &2).await });
    let frame = peer.expect("PUBLISH").await;
    pass_seconds(6).await;
    let error = publishing.await.unwrap().unwrap_err();
    assert_eq!(error, PublishError::Lost("no answer in 5 s".to_owned()));
    peer.ok(&frame, json!({"id": event_id(2), "seq": 2})).await;
    assert_eq!(waiting.await.unwrap().unwrap().seq, 2);
}

#[tokio::test]
async fn the_patience_restarts_with_every_response() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap().patience(Duration::from_secs(5));
    let records = [Record::new("orders", &1).unwrap(), Record::new("orders", &2).unwrap()];
    let publishing = tokio::spawn(async move { client.publish_batch(&records).await });
    let mut peer = server.accept().await;
    let frames = [peer.expect("PUBLISH").await, peer.expect("PUBLISH").await];
    for frame in frames {
        pass_seconds(4).await;
        peer.ok(&frame, json!({"id": event_id(1), "seq": 1})).await;
    }
    assert!(publishing.await.unwrap().iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_publish_gives_up_while_another_one_opens_the_connection() {
    // The operating system accepts the connection, but no program reads from it.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = Client::new(&url, None).unwrap();
    let (first, second) = (client.clone(), client.patience(Duration::from_secs(2)));
    let first = tokio::spawn(async move { first.publish("orders", &1).await });
    tokio::task::yield_now().await;
    tokio::time::pause();
    let started = Instant::now();
    let error = Publisher::new(second).publish(&mut [Record::new("orders", &2).unwrap()]).await.unwrap_err();
    assert!(matches!(error, ClientError::Lost { .. }), "{error}");
    let waited = started.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(3)).contains(&waited), "{waited:?}");
    first.abort();
}

#[tokio::test]
async fn a_publish_gives_up_on_a_server_that_remains_unavailable() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap().patience(Duration::from_millis(300));
    let publishing = tokio::spawn(client.publish("orders", &1).into_future());
    let mut peer = server.accept().await;
    let refusing = async {
        loop {
            let frame = peer.expect("PUBLISH").await;
            peer.err(&frame, "unavailable").await;
        }
    };
    tokio::select! {
        () = refusing => {}
        outcome = publishing => assert!(matches!(outcome.unwrap(), Err(PublishError::Lost(_)))),
    }
}

#[tokio::test]
async fn the_results_before_an_outage_are_kept() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap().patience(Duration::from_secs(5));
    let publishing = tokio::spawn(async move {
        let mut records = [1, 2, 3].map(|number| Record::new("orders", &number).unwrap());
        Publisher::new(client).publish_each(&mut records).await
    });
    let mut peer = server.accept().await;
    let frame = peer.expect("PUBLISH").await;
    peer.ok(&frame, json!({"id": event_id(1), "seq": 1})).await;
    let frame = peer.expect("PUBLISH").await;
    peer.err(&frame, "too_large").await;
    peer.expect("PUBLISH").await;
    pass_seconds(6).await;
    let outcomes = publishing.await.unwrap();
    assert_eq!(outcomes[0].as_ref().unwrap().seq, 1);
    assert!(matches!(outcomes[1], Err(PublishError::Refused { .. })), "{outcomes:?}");
    assert!(matches!(outcomes[2], Err(PublishError::Lost(_))), "{outcomes:?}");
}
