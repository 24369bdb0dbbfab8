//! Servers that send nothing for a long time. The tests advance the clock instead of waiting.

use crate::clock::pass_seconds;
use crate::fake_server::FakeServer;
use prombus_client::Client;
use tokio_tungstenite::tungstenite::Message;

#[tokio::test]
async fn a_silent_server_is_given_up_after_75_seconds() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    // The first peer is not polled, so it does not answer pings.
    let (orders, _silent) =
        tokio::join!(async { client.subscribe("orders", "billing").await }, server.accept_member());
    let mut orders = orders.unwrap();
    tokio::select! {
        _ = server.accept() => panic!("reconnected too early"),
        () = pass_seconds(74) => {}
    }
    let (mut peer, ()) = tokio::join!(server.accept_member(), pass_seconds(2));
    peer.deliver(1, 1).await;
    assert_eq!(orders.next().await.unwrap().unwrap().json::<u32>().unwrap(), 1);
}

#[tokio::test]
async fn a_server_that_answers_pings_is_kept() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let (orders, mut peer) =
        tokio::join!(async { client.subscribe("orders", "billing").await }, server.accept_member());
    let mut orders = orders.unwrap();
    let mut pings = 0;
    let answering = async {
        // Reading a ping sends the pong.
        while let Some(message) = peer.message().await {
            assert!(matches!(message, Message::Ping(_)), "{message:?}");
            pings += 1;
        }
    };
    tokio::select! {
        () = answering => panic!("the connection ended"),
        () = pass_seconds(200) => {}
    }
    assert!(pings >= 5, "{pings}");
    peer.deliver(1, 1).await;
    assert_eq!(orders.next().await.unwrap().unwrap().json::<u32>().unwrap(), 1);
}
