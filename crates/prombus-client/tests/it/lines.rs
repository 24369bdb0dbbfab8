//! Lines of a response, wherever its chunks are cut.

use crate::scripted::{Answer, Scripted};
use prombus_client::{Client, ClientError};

async fn lines_of(server: &Scripted) -> (Vec<String>, Result<(), ClientError>) {
    let client = Client::new(&server.url, None).unwrap();
    let mut lines = client.lines("/export").await.unwrap();
    let mut found = Vec::new();
    loop {
        match lines.next().await {
            Ok(Some(line)) => found.push(String::from_utf8(line.to_vec()).unwrap()),
            Ok(None) => return (found, Ok(())),
            Err(error) => return (found, Err(error)),
        }
    }
}

#[tokio::test]
async fn lines_are_whole_wherever_the_chunks_are_cut() {
    let text = "{\"id\":1}\n\n  \r\n{\"ü\":\"€\"}\n{\"last\":true}";
    for size in [1, 2, 3, 7, 64] {
        let server = Scripted::start(vec![Answer::chunks(text.as_bytes().chunks(size), true)]).await;
        let (lines, end) = lines_of(&server).await;
        assert_eq!(lines, ["{\"id\":1}", "{\"ü\":\"€\"}", "{\"last\":true}"], "in chunks of {size}");
        end.unwrap();
    }
}

#[tokio::test]
async fn a_response_that_breaks_off_is_an_error_after_its_whole_lines() {
    let chunks = [&b"one\ntw"[..], b"o\nhal"];
    let server = Scripted::start(vec![Answer::chunks(chunks, false)]).await;
    let (lines, end) = lines_of(&server).await;
    assert_eq!(lines, ["one", "two"]);
    assert!(matches!(end, Err(ClientError::Lost { .. })), "{end:?}");
}
