//! Tests of `/dead-letters`, and of publishing to a single group.

use super::{Answer, Rig, request};
use prombus::Event;
use serde_json::{Value, json};

const TOKENS: &[(&str, &[&str])] = &[
    ("admin", &["admin", "publish:**", "subscribe:**"]),
    ("publisher", &["publish:**", "subscribe:**"]),
    ("letters", &["subscribe:dlq.**"]),
    ("orders", &["subscribe:dlq.orders"]),
    ("bills", &["subscribe:dlq.bills"]),
];

async fn send(rig: &Rig, method: &str, path: &str, token: &str, body: &Value) -> Answer {
    let request = request(method, path).header("authorization", format!("Bearer {token}"));
    rig.send(request.body(body.to_string().into()).expect("a request")).await
}

async fn get(rig: &Rig, path: &str, token: &str) -> Answer {
    send(rig, "GET", path, token, &Value::Null).await
}

/// A rig with three letters in `dlq.orders`, and their ids.
async fn with_letters() -> (Rig, Vec<String>) {
    let rig = Rig::with_tokens(TOKENS);
    let group = rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1);
    let mut group = group.await.expect("joined");
    rig.fill("orders", 0..3).await;
    for _ in 0..3 {
        group.next().await.expect("an event").expect("reads").nack("boom").await.expect("nacked");
    }
    let topic = prombus::Topic::new("dlq.orders").expect("a topic");
    rig.bus.backend().arrival(&topic, 3).await.expect("the letters are written");
    let page = rig.bus.read_from(&topic, 1, prombus::PullLimit::default()).await.expect("reads");
    let ids = page.events.iter().map(Event::id).map(|id| id.to_string()).collect();
    (rig, ids)
}

#[tokio::test]
async fn a_token_that_may_not_read_dead_letters_gets_the_name_of_the_scope() {
    let (rig, _) = with_letters().await;
    let message = get(&rig, "/dead-letters", "publisher").await.error(403, "forbidden");
    assert!(message.contains("\"subscribe:dlq.**\""), "{message}");
    for path in ["/dead-letters/orders", "/dead-letters/dlq.orders"] {
        let message = get(&rig, path, "bills").await.error(403, "forbidden");
        assert!(message.contains("\"subscribe:dlq.orders\""), "{message}");
    }
    let row = json!({"topic": "dlq.orders", "open": 3, "redriven": 0, "discarded": 0});
    for (token, topics, restricted) in [
        ("admin", vec![&row], false),
        ("letters", vec![&row], false),
        ("orders", vec![&row], true),
        ("bills", vec![], true),
    ] {
        let listed = get(&rig, "/dead-letters", token).await.ok();
        assert_eq!(listed, json!({"topics": topics, "restricted": restricted}), "{token}");
    }
    get(&rig, "/dead-letters/none", "letters").await.error(404, "not_found");
}

#[tokio::test]
async fn letters_are_closed_by_id() {
    let (rig, ids) = with_letters().await;
    let close =
        async |token: &str, body: Value| send(&rig, "POST", "/dead-letters/orders/close", token, &body).await;
    close("letters", json!({"ids": ids, "state": "redriven"})).await.error(403, "forbidden");
    let unknown = "0196f1d0-0000-7000-8000-000000000001";
    let closed = close("admin", json!({"ids": [ids[0], unknown], "state": "redriven"})).await.ok();
    assert_eq!(closed, json!({"closed": 1, "unknown": 1}));
    let closed = close("admin", json!({"ids": ids[..2], "state": "discarded"})).await.ok();
    assert_eq!(closed, json!({"closed": 1, "unknown": 0}));
    let detail = get(&rig, "/dead-letters/orders", "letters").await.ok();
    let expected = json!({"topic": "dlq.orders", "first_seq": 1, "last_seq": 3, "open": 1, "redriven": [[1, 1]],
        "discarded": [[2, 2]], "next": null});
    assert_eq!(detail, expected);
    let page = get(&rig, "/dead-letters/orders?limit=1", "letters").await.ok();
    assert_eq!(
        (&page["redriven"], &page["discarded"], &page["next"]),
        (&json!([[1, 1]]), &json!([]), &json!(2))
    );
    let page = get(&rig, "/dead-letters/orders?limit=1&from_seq=2", "letters").await.ok();
    assert_eq!((&page["redriven"], &page["discarded"]), (&json!([]), &json!([[2, 2]])));
    assert_eq!(page["next"], Value::Null);
    for bad in ["limit=0", "limit=10001", "fromSeq=0", "from_seq=x"] {
        get(&rig, &format!("/dead-letters/orders?{bad}"), "letters").await.error(400, "bad_request");
    }
    let text = get(&rig, "/metrics", "admin").await;
    let text = String::from_utf8_lossy(&text.body).into_owned();
    assert!(text.contains("prombus_dead_letters_open{topic=\"dlq.orders\"} 1\n"), "{text}");
    for body in
        [json!({"ids": ["x"], "state": "redriven"}), json!({"ids": [], "state": "open"}), json!({"ids": []})]
    {
        close("admin", body).await.error(400, "bad_request");
    }
    close("admin", json!({"ids": vec![unknown; 1_001], "state": "redriven"})).await.error(400, "bad_request");
}

#[tokio::test]
async fn only_an_admin_publishes_to_a_single_group() {
    let rig = Rig::with_tokens(TOKENS);
    drop(rig.bus.subscribe("orders", "billing").await.expect("joined"));
    let addressee = json!({"subscription": "orders", "group": "billing"});
    let record = json!({"payload": 1, "addressee": addressee});
    let in_query =
        "/publish/orders?addressee=%7B%22subscription%22%3A%22orders%22%2C%22group%22%3A%22billing%22%7D";
    for (path, body) in [("/publish/orders?envelope=1", &record), (in_query, &json!(1))] {
        let message = send(&rig, "POST", path, "publisher", body).await.error(403, "forbidden");
        assert!(message.contains("\"admin\""), "{message}");
        send(&rig, "POST", path, "admin", body).await.ok();
    }
    let record = json!({"payload": 1, "addressee": {"subscription": "orders", "group": "none"}});
    send(&rig, "POST", "/publish/orders?envelope=1", "admin", &record).await.error(404, "not_found");
    send(&rig, "POST", "/publish/orders?addressee=5", "admin", &json!(1)).await.error(400, "bad_request");
    // Replay and export contain the addressee.
    let replay = get(&rig, "/replay?topic=orders", "publisher").await.ok();
    assert_eq!(replay["events"].as_array().expect("a list").len(), 2);
    assert_eq!(replay["events"][0]["addressee"], addressee);
    let export = get(&rig, "/export?topic=orders", "publisher").await;
    assert_eq!(String::from_utf8_lossy(&export.body).matches("\"addressee\"").count(), 2);
}
