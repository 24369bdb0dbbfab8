//! Servers that hang. The tests advance the clock instead of waiting.

use crate::clock::pass_seconds;
use crate::fake_server::{FakeServer, event_id};
use prombus_client::{Client, ClientError, PublishError, Record};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn a_server_that_never_responds_to_the_upgrade_is_given_up() {
    // The operating system accepts the connection, but no program reads from it.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::time::pause();
    let error = Client::connect(&url, None).await.unwrap_err();
    assert!(matches!(&error, ClientError::Connect { why, .. } if why == "no answer in 10 s"), "{error}");
}

#[tokio::test]
async fn a_server_that_never_responds_to_a_request_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
    tokio::time::pause();
    let error = client.get_json::<serde_json::Value>("/topics").await.unwrap_err();
    assert!(matches!(&error, ClientError::Lost { why, .. } if why == "no answer in 60 s"), "{error}");
}

#[tokio::test]
async fn a_server_that_falls_silent_in_a_response_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
    let serving = tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap().0;
        let mut request = [0; 512];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}").await.unwrap();
        while stream.read(&mut request).await.is_ok_and(|count| count > 0) {}
    });
    tokio::time::pause();
    let error = client.get_json::<serde_json::Value>("/topics").await.unwrap_err();
    assert!(matches!(&error, ClientError::Lost { why, .. } if why == "no answer in 60 s"), "{error}");
    serving.abort();
}

/// Responds to the upgrade and to the first frame, which finds out whether a token is required, and then to nothing.
async fn accept_and_fall_silent(mut stream: TcpStream) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_buf(&mut request).await.unwrap();
    }
    let head = String::from_utf8(request).unwrap();
    let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
    let accept = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.as_bytes());
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {accept}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
    let mut frame = [0; 512];
    assert!(stream.read(&mut frame).await.unwrap() > 0);
    let ok = br#"{"op":"OK","corr":"0"}"#;
    let length = u8::try_from(ok.len()).unwrap();
    stream.write_all(&[&[0x81, length], &ok[..]].concat()).await.unwrap();
    // The client's frames are read, so that only the response is missing.
    while stream.read(&mut frame).await.is_ok_and(|count| count > 0) {}
}

#[tokio::test]
async fn a_server_that_never_responds_is_given_up_and_no_publish_is_reported_as_stored() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving =
        tokio::spawn(async move { accept_and_fall_silent(listener.accept().await.unwrap().0).await });
    let client = Client::connect(&url, None).await.unwrap();
    tokio::time::pause();
    let outcomes =
        client.publish_batch(&[Record::new("a", &1).unwrap(), Record::new("a", &2).unwrap()]).await;
    assert_eq!(outcomes.len(), 2);
    for outcome in outcomes {
        assert_eq!(outcome, Err(PublishError::Lost("no answer in 60 s".to_owned())));
    }
    serving.abort();
}

#[tokio::test]
async fn a_connection_is_given_up_only_if_no_request_gets_a_response() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap().patience(Duration::from_secs(600));
    let publish = |number: u32| {
        let client = client.clone();
        tokio::spawn(async move { client.publish("orders", &number).await })
    };
    let _unanswered = publish(1);
    let mut peer = server.accept().await;
    peer.expect("PUBLISH").await;
    // Other responses show that the server does not hang.
    for number in 2..5 {
        pass_seconds(40).await;
        let publishing = publish(number);
        let frame = peer.expect("PUBLISH").await;
        peer.ok(&frame, json!({"id": event_id(number), "seq": number})).await;
        publishing.await.unwrap().unwrap();
    }
    let (mut again, ()) = tokio::join!(server.accept(), pass_seconds(65));
    assert_eq!(again.expect("PUBLISH").await["payload"], 1);
}
