//! Test of a server that is suspended (SIGSTOP) for longer than a lease, then resumed: acks that wait in its sockets apply.

use crate::http_client::get_json;
use crate::serving::Serving;
use crate::support::TempFolder;
use crate::ws_client::{Client, ack_text, publish_text};
use futures_util::SinkExt;
use rustix::process::Signal;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

/// Many sockets: by the time the server reads the acks of the last ones, members of the first ones can take new events.
const MEMBERS: usize = 30;
const EVENTS_EACH: usize = 50;
const LEASE_MS: u64 = 2_000;

#[tokio::test]
async fn acks_that_arrive_while_the_server_is_suspended_apply_and_nothing_is_redelivered() {
    let folder = TempFolder::new();
    let server = Serving::in_folder(&folder, &[]);
    let mut members = Vec::new();
    for _ in 0..MEMBERS {
        let mut member = Client::connect(server.address()).await;
        let opts = json!({"ackTimeoutMs": LEASE_MS, "maxInFlight": EVENTS_EACH});
        member.subscribe("orders", "billing", opts).await;
        members.push(member);
    }
    let mut publisher = Client::connect(server.address()).await;
    for corr in 0..(MEMBERS * EVENTS_EACH) as u64 {
        let text = publish_text("orders", corr, None, &corr.to_string());
        publisher.socket.feed(Message::text(text)).await.unwrap();
    }
    publisher.socket.flush().await.unwrap();
    let mut ids = Vec::new();
    for member in &mut members {
        let mut received = Vec::new();
        while received.len() < EVENTS_EACH {
            received.extend(member.frame().await.event.map(|event| event.id));
        }
        ids.push(received);
    }

    server.signal(Signal::STOP);
    for (member, ids) in members.iter_mut().zip(&ids) {
        for (corr, id) in (1_000..).zip(ids) {
            let text = ack_text("orders", "billing", id, Some(corr));
            member.socket.feed(Message::text(text)).await.unwrap();
        }
        member.socket.flush().await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(LEASE_MS + 500)).await;
    server.signal(Signal::CONT);

    for member in &mut members {
        let mut answered = BTreeSet::new();
        while answered.len() < EVENTS_EACH {
            let frame = member.frame().await;
            assert!(frame.event.is_none(), "an acked event is redelivered: {frame:?}");
            assert!(frame.is_ok() && !frame.stale, "{frame:?}");
            answered.insert(frame.corr);
        }
    }
    let group = get_json(&server.address().to_string(), "/groups/orders/billing");
    let counters = &group["counters"];
    let found =
        (&counters["acked"], &counters["expired"], &counters["redelivered_expired"], &counters["stale"]);
    assert_eq!(found, (&json!(MEMBERS * EVENTS_EACH), &json!(0), &json!(0), &json!(0)));
    drop((members, publisher));
    server.stop();
}
