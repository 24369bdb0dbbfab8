//! How the client reports refusals: by a prombus server, and by servers of another kind.

use crate::gateway::Gateway;
use crate::scripted::{Answer, Scripted};
use prombus_client::{Client, ClientError, ErrorCode, Publisher, Record};
use prombus_server::{AuthOptions, Scope, ServerOptions, TokenHash, TokenOptions};
use serde_json::Value;

async fn error_of(answer: Answer) -> ClientError {
    let server = Scripted::start(vec![answer]).await;
    let client = Client::new(&server.url, None).unwrap();
    client.get_json::<Value>("/topics").await.unwrap_err()
}

#[tokio::test]
async fn an_error_body_becomes_a_code_a_message_and_a_time_to_wait() {
    let body = r#"{"error":"too many","code":"rate_limited","retry_after_ms":250}"#;
    match error_of(Answer::json("429 Too Many Requests", body)).await {
        ClientError::Refused { status, code, message, retry_after_ms } => {
            assert_eq!((status, code), (Some(429), ErrorCode::RateLimited));
            assert_eq!((message.as_str(), retry_after_ms), ("too many", Some(250)));
        }
        other => panic!("{other:?}"),
    }
    let error =
        error_of(Answer::json("409 Conflict", r#"{"error":"new","code":"of_a_later_version"}"#)).await;
    assert_eq!(error.code(), Some(ErrorCode::Internal));
    let error = error_of(Answer::json("401 Unauthorized", r#"{"error":"who are you?"}"#)).await;
    assert!(matches!(&error, ClientError::Unauthorized { why, .. } if why == "who are you?"), "{error}");
}

#[tokio::test]
async fn a_response_that_is_not_from_prombus_is_shown_in_part() {
    let page = "x".repeat(10_000);
    let error = error_of(Answer::json("502 Bad Gateway", &page)).await;
    let text = error.to_string();
    assert!(matches!(error, ClientError::Answer { .. }), "{text}");
    assert!(text.contains("status 502: xxx") && text.len() < 400, "{}", text.len());
    let error = error_of(Answer::json("200 OK", "<html>")).await;
    assert!(matches!(error, ClientError::Answer { .. }), "{error}");
}

#[tokio::test]
async fn the_gateway_refuses_by_code_and_by_status() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    match client.get_json::<Value>("/replay?topic=a%20b").await.unwrap_err() {
        ClientError::Refused { status: Some(400), code: ErrorCode::BadTopic, .. } => {}
        other => panic!("{other:?}"),
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_token_is_needed_over_http_and_over_a_web_socket() {
    let secret = TokenHash::of("right");
    let token = TokenOptions { name: "t".to_owned(), secret, scopes: Scope::all() };
    let auth = AuthOptions { tokens: vec![token], ..AuthOptions::default() };
    let gateway = Gateway::start(ServerOptions { auth, ..ServerOptions::default() }).await;
    for token in [None, Some("wrong")] {
        let client = Client::new(&gateway.url(), token).unwrap();
        let error = client.open().await.unwrap_err();
        assert!(matches!(error, ClientError::Unauthorized { .. }), "{token:?}: {error}");
        let error = client.get_json::<Value>("/topics").await.unwrap_err();
        assert!(matches!(error, ClientError::Unauthorized { .. }), "{token:?}: {error}");
        let published = client.publish_record(&Record::new("a", &1).unwrap()).await;
        assert_eq!(published.unwrap_err().code(), Some(ErrorCode::Unauthorized));
    }
    let client = Client::connect(&gateway.url(), Some("right")).await.unwrap();
    assert_eq!(client.publish_record(&Record::new("a", &1).unwrap()).await.unwrap().seq, 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_record_that_is_too_large_is_refused_and_the_others_are_published() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    let record = |bytes: usize| Record::new("a", &"x".repeat(bytes)).unwrap();
    // The first is over the payload limit. The second is over the frame limit, which ends the connection.
    for bytes in [1 << 20, 24 << 20] {
        let mut records = [record(10), record(bytes), record(20)];
        let outcomes = Publisher::new(client.clone()).publish(&mut records).await.unwrap();
        assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{bytes}: {outcomes:?}");
        assert_eq!(outcomes[1].as_ref().unwrap_err().code(), Some(ErrorCode::TooLarge), "{bytes}");
    }
    let topic: Value = client.get_json("/topics/a").await.unwrap();
    assert_eq!(topic["count"], 4, "{topic}");
    gateway.stop().await;
}
