//! Lost connections: idle connections that the server closed, publishers that reconnect, rate limits that are waited out.

use crate::gateway::Gateway;
use crate::scripted::{Answer, Scripted};
use prombus_client::{Client, ClientError, HistoryQuery, PublishError, Publisher, Record, Setback};
use prombus_server::{Rate, RateOptions, ServerOptions};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn records(numbers: std::ops::Range<u64>) -> Vec<Record> {
    numbers.map(|number| Record::new("orders", &number).unwrap()).collect()
}

async fn payloads(client: &Client) -> Vec<u64> {
    let mut history = client.history("orders", HistoryQuery::default());
    let mut found = Vec::new();
    while let Some(event) = history.next().await.unwrap() {
        found.push(event.event.payload.get().parse().unwrap());
    }
    found
}

#[tokio::test]
async fn a_closed_idle_connection_is_replaced_only_for_requests_without_side_effects() {
    let good = || Answer::json("200 OK", "{}");
    let server = Scripted::start(vec![good().then_close(), good().then_close(), good()]).await;
    let client = Client::new(&server.url, None).unwrap();
    client.get_json::<Value>("/one").await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.get_json::<Value>("/two").await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let error = client.put_json::<Value>("/three", &json!({})).await.unwrap_err();
    assert!(matches!(error, ClientError::Lost { .. }), "{error}");
    assert_eq!(server.requests(), ["GET /one HTTP/1.1", "GET /two HTTP/1.1"]);
    client.put_json::<Value>("/four", &json!({})).await.unwrap();
    assert_eq!(server.requests().last().unwrap(), "PUT /four HTTP/1.1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_continues_after_a_restart_of_the_gateway() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    let setbacks = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&setbacks);
    let mut publisher =
        Publisher::new(client.clone()).on_setback(move |setback| told.lock().unwrap().push(setback.clone()));
    let mut first = records(0..50);
    assert!(publisher.publish(&mut first).await.unwrap().iter().all(Result::is_ok));
    let stopped = gateway.stop().await;
    let restart = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(250)).await;
        stopped.start_again().await
    });
    // The last record before the restart is resent with its id, and is stored once.
    let mut second = [vec![first[49].clone()], records(50..100)].concat();
    let outcomes = publisher.publish(&mut second).await.unwrap();
    assert!(outcomes[0].as_ref().is_ok_and(|published| published.duplicate), "{:?}", outcomes[0]);
    assert!(outcomes[1..].iter().all(|outcome| outcome.as_ref().is_ok_and(|it| !it.duplicate)));
    let setbacks = setbacks.lock().unwrap().clone();
    assert!(matches!(setbacks.first(), Some(Setback::Unavailable(_))), "{setbacks:?}");
    let gateway = restart.await.unwrap();
    assert_eq!(payloads(&client).await, (0..100).collect::<Vec<_>>());
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_patience_reports_a_lost_server_and_reconnects_at_the_next_publish() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap().patience(Duration::ZERO);
    client.publish("orders", &0).await.unwrap();
    let stopped = gateway.stop().await;
    let error = client.publish("orders", &1).await.unwrap_err();
    assert!(matches!(error, PublishError::Lost(_)), "{error}");
    let gateway = stopped.start_again().await;
    assert_eq!(client.publish("orders", &2).await.unwrap().seq, 2);
    gateway.stop().await;
}

#[tokio::test]
async fn a_publisher_gives_up_when_its_patience_ends() {
    // A port that was free a moment ago.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Client::new(&format!("http://{address}"), None).unwrap();
    let mut publisher = Publisher::new(client).patience(Duration::from_millis(250));
    let started = Instant::now();
    let error = publisher.publish(&mut records(0..2)).await.unwrap_err();
    assert!(matches!(&error, ClientError::Lost { .. }) && error.is_passing(), "{error}");
    assert!(started.elapsed() >= Duration::from_millis(250));
}

#[tokio::test]
async fn a_rate_limit_is_waited_out_in_order() {
    let rate = Rate { per_second: 100.0, burst: 10.0 };
    let rates = RateOptions { connection_publish: Some(rate), ..RateOptions::default() };
    let gateway = Gateway::start(ServerOptions { rates, ..ServerOptions::default() }).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    let limited = Arc::new(Mutex::new(0));
    let told = Arc::clone(&limited);
    let mut publisher = Publisher::new(client.clone()).on_setback(move |setback| {
        assert_eq!(*setback, Setback::RateLimited);
        *told.lock().unwrap() += 1;
    });
    let outcomes = publisher.publish(&mut records(0..30)).await.unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_ok_and(|it| !it.duplicate)), "{outcomes:?}");
    assert!(*limited.lock().unwrap() > 0, "the rate limit was never reached");
    let mut kept = payloads(&client).await;
    // In the first batch, the gateway may accept a record after one that it refused; from then on, records are sent one by one.
    assert_eq!(kept[..10], (0..10).collect::<Vec<_>>());
    kept.sort_unstable();
    assert_eq!(kept, (0..30).collect::<Vec<_>>());
    gateway.stop().await;
}
