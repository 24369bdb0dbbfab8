//! Members of groups over the real gateway.

use crate::gateway::Gateway;
use prombus_client::{Client, ClientError, ErrorCode, Record, Start, SubscribeOptions};
use prombus_server::ServerOptions;

#[tokio::test]
async fn deliveries_are_settled_and_come_again_when_they_are_not() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    let options = SubscribeOptions { from: Start::Earliest, ..SubscribeOptions::default() };
    let mut member = client.subscribe("orders", "billing", options.clone()).await.unwrap();
    for number in 0..3 {
        client.publish(&Record::new("orders", &number).unwrap()).await.unwrap();
    }
    let first = member.next().await.unwrap().unwrap();
    assert_eq!((first.event.payload.get(), first.context.attempt), ("0", 1));
    assert!(first.ack().await.unwrap());
    let held = member.next().await.unwrap().unwrap();
    assert_eq!(held.event.payload.get(), "1");
    // Without its connection the member is gone, and what it held goes to the next one.
    drop((held, member));
    let mut member = client.subscribe("orders", "billing", options).await.unwrap();
    let again = member.next().await.unwrap().unwrap();
    assert_eq!(again.event.payload.get(), "1");
    assert!(again.ack().await.unwrap());
    gateway.stop().await;
}

#[tokio::test]
async fn a_subscription_tells_once_that_its_connection_ended() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    let refused = client.subscribe("a b", "billing", SubscribeOptions::default()).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::BadTopic));
    let mut member = client.subscribe("orders", "billing", SubscribeOptions::default()).await.unwrap();
    gateway.stop().await;
    let end = member.next().await;
    assert!(matches!(end, Some(Err(ClientError::Lost { .. }))), "{end:?}");
    assert!(member.next().await.is_none());
}
