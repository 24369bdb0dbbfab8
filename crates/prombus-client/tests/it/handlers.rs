//! Handlers over the real gateway: what their results do, how many run, and how they stop.

use crate::gateway::Gateway;
use prombus_client::{
    AfterFailure, Client, ClientError, DeadLetter, ErrorCode, HandlerError, PublishError, RedeliveryReason,
    Uuid, topic,
};
use prombus_server::ServerOptions;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};

async fn start() -> (Gateway, Client) {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    (gateway, client)
}

/// What a handler saw: payload, attempt, reason, last error.
type Seen = (String, u32, Option<RedeliveryReason>, Option<String>);

/// Publishes one event, whose handler returns `first` at the first attempt and Ok at the second.
async fn second_attempt_after(first: fn() -> Result<(), HandlerError>) -> Seen {
    let (gateway, client) = start().await;
    let (seen, mut attempts) = mpsc::unbounded_channel::<Seen>();
    let worker = client.subscribe("orders", "billing").from_earliest().handler(move |event, context| {
        let last_error = context.last_error.clone();
        seen.send((event.payload.to_string(), context.attempt, context.reason, last_error)).unwrap();
        async move { if context.attempt == 1 { first() } else { Ok(()) } }
    });
    let worker = worker.await.unwrap();
    assert!(worker.created());
    client.publish("orders", "one").await.unwrap();
    assert_eq!(attempts.recv().await.unwrap(), ("\"one\"".to_owned(), 1, None, None));
    let second = attempts.recv().await.unwrap();
    worker.stop().await.unwrap();
    assert!(attempts.recv().await.is_none(), "the second attempt was acked");
    let group: serde_json::Value = client.get_json("/groups/orders/billing").await.unwrap();
    assert_eq!((&group["lag"], &group["counters"]["acked"]), (&0.into(), &1.into()), "{group}");
    gateway.stop().await;
    second
}

#[tokio::test]
async fn an_error_nacks_with_its_text_and_ok_acks() {
    let (_, attempt, reason, last_error) =
        second_attempt_after(|| Err("x".parse::<u32>().unwrap_err().into())).await;
    assert_eq!((attempt, reason), (2, Some(RedeliveryReason::Nacked)));
    assert_eq!(last_error.as_deref(), Some("invalid digit found in string"));
}

#[tokio::test]
async fn failures_are_reported_with_what_happens_next() {
    let (gateway, client) = start().await;
    let (sender, mut failures) = mpsc::unbounded_channel();
    let worker = client.subscribe("orders", "billing").max_attempts(2).on_error(move |failure| {
        let event = failure.event.clone().unwrap();
        sender.send((event.seq, event.attempt, failure.error.clone(), failure.next)).unwrap();
    });
    let worker = worker.handler(|event, _| async move {
        match event.seq {
            1 => Err(HandlerError::retry_after(Duration::ZERO, "not yet")),
            _ => Err(HandlerError::reject("never")),
        }
    });
    let worker = worker.await.unwrap();
    assert_eq!(worker.last_error(), None);
    client.publish("orders", "one").await.unwrap();
    let failure = |seq, attempt, error: &str, next| Some((seq, attempt, error.to_owned(), next));
    assert_eq!(failures.recv().await, failure(1, 1, "not yet", AfterFailure::Retry));
    assert_eq!(failures.recv().await, failure(1, 2, "not yet", AfterFailure::DeadLetter));
    client.publish("orders", "two").await.unwrap();
    assert_eq!(failures.recv().await, failure(2, 1, "never", AfterFailure::DeadLetter));
    let last = worker.last_error().unwrap();
    assert_eq!(last.to_string(), "orders seq 2 (attempt 1 of 2): never; it becomes a dead letter");
    worker.stop().await.unwrap();
    gateway.stop().await;
}

#[tokio::test]
async fn a_panic_nacks_with_its_message() {
    let (_, attempt, reason, last_error) = second_attempt_after(|| panic!("lost my head")).await;
    assert_eq!((attempt, reason), (2, Some(RedeliveryReason::Nacked)));
    assert_eq!(last_error.as_deref(), Some("the handler panicked: lost my head"));
}

#[tokio::test]
async fn an_error_with_a_delay_is_retried_after_it() {
    let started = Instant::now();
    // The server's own backoff would be at most 120 ms.
    let delay = Duration::from_millis(400);
    let (_, attempt, _, last_error) =
        second_attempt_after(|| Err(HandlerError::retry_after(Duration::from_millis(400), "later"))).await;
    assert!(started.elapsed() >= delay, "{:?}", started.elapsed());
    assert_eq!((attempt, last_error.as_deref()), (2, Some("later")));
}

#[tokio::test]
async fn a_rejected_event_is_a_dead_letter_after_its_first_attempt() {
    let (gateway, client) = start().await;
    let mut letters = client.subscribe("dlq.orders", "repair").from_earliest().await.unwrap();
    let worker = client
        .subscribe("orders", "billing")
        .handler(|_, _| async { Err(HandlerError::reject("no such customer")) });
    let worker = worker.await.unwrap();
    client.publish("orders", &1).await.unwrap();
    let letter = letters.next().await.unwrap().unwrap();
    let content: DeadLetter = letter.json().unwrap();
    assert_eq!((content.err.as_str(), content.attempts), ("no such customer", 1));
    letter.ack().await.unwrap();
    worker.stop().await.unwrap();
    gateway.stop().await;
}

#[tokio::test]
async fn any_text_is_an_error_too() {
    let (gateway, client) = start().await;
    let mut letters = client.subscribe("dlq.orders", "repair").from_earliest().await.unwrap();
    let worker = client.subscribe("orders", "billing").max_attempts(1);
    let worker = worker.handler(|_, _| async { Err("out of paper") }).await.unwrap();
    client.publish("orders", &1).await.unwrap();
    let content: DeadLetter = letters.next().await.unwrap().unwrap().json().unwrap();
    assert_eq!(content.err, "out of paper");
    worker.stop().await.unwrap();
    gateway.stop().await;
}

#[tokio::test]
async fn at_most_the_allowed_number_of_handlers_run_at_once_and_all_events_are_handled() {
    let (gateway, client) = start().await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (permits, ended) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (started, mut starts) = mpsc::unbounded_channel();
    let worker = client.subscribe("orders", "billing").from_earliest().concurrency(3).handler({
        let (most, permits, ended) = (Arc::clone(&most), Arc::clone(&permits), Arc::clone(&ended));
        move |event, _| {
            let (running, permits, ended) = (Arc::clone(&running), Arc::clone(&permits), Arc::clone(&ended));
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            started.send(event.json::<u32>().unwrap()).unwrap();
            async move {
                permits.acquire().await.unwrap().forget();
                running.fetch_sub(1, Ordering::SeqCst);
                ended.add_permits(1);
                Ok::<(), HandlerError>(())
            }
        }
    });
    let worker = worker.await.unwrap();
    for number in 0..12 {
        client.publish("orders", &number).await.unwrap();
    }
    let mut order = Vec::new();
    for _ in 0..3 {
        order.push(starts.recv().await.unwrap());
    }
    permits.add_permits(12);
    let _ = ended.acquire_many(12).await.unwrap();
    while order.len() < 12 {
        order.push(starts.recv().await.unwrap());
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
    assert_eq!(order, (0..12).collect::<Vec<_>>(), "they start in the order of events");
    worker.stop().await.unwrap();
    gateway.stop().await;
}

#[tokio::test]
async fn a_lease_is_extended_while_its_handler_runs_for_several_ack_timeouts() {
    let (gateway, client) = start().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let (done, mut lost) = mpsc::unbounded_channel();
    let worker = client.subscribe("orders", "billing").ack_timeout(Duration::from_millis(400)).handler({
        let calls = Arc::clone(&calls);
        move |_, context| {
            calls.fetch_add(1, Ordering::SeqCst);
            let done = done.clone();
            async move {
                // The server's clock decides, and the test cannot advance it.
                tokio::time::sleep(Duration::from_millis(2200)).await;
                done.send(context.is_lease_lost()).unwrap();
                Ok::<(), HandlerError>(())
            }
        }
    });
    let worker = worker.await.unwrap();
    client.publish("orders", &1).await.unwrap();
    assert_eq!(lost.recv().await, Some(false));
    worker.stop().await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let group: serde_json::Value = client.get_json("/groups/orders/billing").await.unwrap();
    let counters = &group["counters"];
    assert_eq!((&counters["acked"], &counters["expired"]), (&1.into(), &0.into()), "{group}");
    gateway.stop().await;
}

#[tokio::test]
async fn without_extension_the_handler_learns_that_its_lease_is_lost() {
    let (gateway, client) = start().await;
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let (lost, mut losses) = mpsc::unbounded_channel();
    let subscribe = client.subscribe("orders", "billing").ack_timeout(Duration::from_millis(200));
    let worker = subscribe.max_attempts(1000).auto_extend(false).handler({
        let attempts = Arc::clone(&attempts);
        move |_, context| {
            let is_first = attempts.lock().unwrap().is_empty();
            attempts.lock().unwrap().push(context.attempt);
            let lost = lost.clone();
            async move {
                if !is_first {
                    lost.send(None).unwrap();
                    return Ok(());
                }
                context.lease_lost().await;
                lost.send(Some(context.lease_deadline())).unwrap();
                // Not Ok: the event was not handled.
                Err(HandlerError::retry("the lease was lost"))
            }
        }
    });
    let worker = worker.await.unwrap();
    client.publish("orders", &1).await.unwrap();
    assert!(losses.recv().await.unwrap().unwrap() <= tokio::time::Instant::now());
    assert_eq!(losses.recv().await, Some(None), "the event is handled again");
    worker.stop().await.unwrap();
    let attempts = attempts.lock().unwrap().clone();
    assert!(matches!(attempts[..], [1, second, ..] if second > 1), "{attempts:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn stop_waits_for_running_handlers_and_returns_the_rest_without_an_attempt() {
    let (gateway, client) = start().await;
    for number in 0..5 {
        client.publish("orders", &number).await.unwrap();
    }
    let permits = Arc::new(Semaphore::new(0));
    let (started, mut starts) = mpsc::unbounded_channel();
    let subscribe = client.subscribe("orders", "billing").from_earliest().concurrency(1).max_in_flight(5);
    let worker = subscribe.handler({
        let permits = Arc::clone(&permits);
        move |event, _| {
            started.send(event.json::<u32>().unwrap()).unwrap();
            let permits = Arc::clone(&permits);
            async move {
                permits.acquire().await.unwrap().forget();
                Ok::<(), HandlerError>(())
            }
        }
    });
    let worker = worker.await.unwrap();
    assert_eq!(starts.recv().await, Some(0));
    let mut stopping = tokio::spawn(worker.stop());
    tokio::select! {
        _ = &mut stopping => panic!("stop() returned before the handler did"),
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
    }
    permits.add_permits(5);
    stopping.await.unwrap().unwrap();
    assert_eq!(starts.recv().await, None, "no other event was handled");
    let mut next = client.subscribe("orders", "billing").await.unwrap();
    for number in 1..5 {
        let delivery = next.next().await.unwrap().unwrap();
        assert_eq!((delivery.json::<u32>().unwrap(), delivery.context.attempt), (number, 1));
        assert!(!delivery.ack().await.unwrap().stale);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_group_that_is_deleted_ends_its_handler_with_the_error() {
    let (gateway, client) = start().await;
    let worker = client.subscribe("orders", "billing").handler(|_, _| async { Ok::<(), HandlerError>(()) });
    let mut worker = worker.await.unwrap();
    gateway.bus().delete_group("orders", "billing").await.unwrap();
    let error = worker.ended().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotSubscribed), "{error}");
    worker.ended().await.unwrap();
    worker.stop().await.unwrap();
    gateway.stop().await;
}

#[tokio::test]
async fn a_handler_is_not_started_if_the_server_cannot_be_reached() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Client::new(&format!("http://{address}"), None).unwrap();
    let worker = client.subscribe("a", "b").handler(|_, _| async { Ok::<(), HandlerError>(()) });
    assert!(matches!(worker.await, Err(ClientError::Connect { .. })));
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    id: Uuid,
    total: u32,
}

topic! {
    ORDERS: Order = "orders.new";
    NOTES: str = "notes";
}

#[tokio::test]
async fn typed_topics_name_the_topic_of_publishers_and_subscribers() {
    let (gateway, client) = start().await;
    let mut orders = client.subscribe(ORDERS, "billing").topics([NOTES]).await.unwrap();
    let order = Order { id: Uuid::from_u128(7), total: 12 };
    let published =
        client.publish(ORDERS, &order).key("customer-7").header("source", "shop").tag("new").await.unwrap();
    let delivery = orders.next().await.unwrap().unwrap();
    assert_eq!(delivery.event.id, published.id);
    assert_eq!(
        (delivery.event.topic.as_ref(), delivery.event.key.as_deref()),
        ("orders.new", Some("customer-7"))
    );
    assert_eq!((delivery.event.headers["source"].as_str(), delivery.event.tags[0].as_str()), ("shop", "new"));
    assert_eq!(delivery.json::<Order>().unwrap(), order);
    delivery.ack().await.unwrap();
    for key in [String::new(), "k".repeat(256)] {
        let refused = client.publish(NOTES, "short").idempotency_key(key).await.unwrap_err();
        assert!(matches!(refused, PublishError::Refused { code: ErrorCode::BadRequest, .. }), "{refused}");
    }
    client.publish(NOTES, "short").idempotency_key("note 1").await.unwrap();
    let again = client.publish(NOTES, "short").idempotency_key("note 1").await.unwrap();
    assert!(again.duplicate);
    let delivery = orders.next().await.unwrap().unwrap();
    assert_eq!(delivery.json::<String>().unwrap(), "short");
    delivery.ack().await.unwrap();
    let refused = client.publish("not a topic", &1).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::BadTopic));
    gateway.stop().await;
}
