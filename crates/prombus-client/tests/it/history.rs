//! Pages of history: split into chunks, several in a row, and incomplete ones.

use crate::gateway::Gateway;
use crate::scripted::{Answer, Scripted};
use prombus_client::{Client, ClientError, HistoryQuery, Record};
use prombus_server::ServerOptions;

fn event(number: u32) -> String {
    format!(
        r#"{{"id":"0196f1d0-0000-7000-8000-{number:012}","seq":{number},"ts":5,"topic":"a","payload":{{"text":"]}}\"{number}"}}}}"#
    )
}

fn page(numbers: std::ops::RangeInclusive<u32>, next: &str) -> String {
    let events: Vec<String> = numbers.map(event).collect();
    format!(r#"{{"topic":"a","events":[{}],"count":{},"next":{next}}}"#, events.join(","), events.len())
}

#[tokio::test]
async fn events_are_whole_wherever_the_chunks_of_pages_are_cut() {
    let (first, second) = (page(1..=3, "\"place-of-3\""), page(4..=5, "null"));
    for size in [1, 5, 50] {
        let pages = [&first, &second].map(|page| Answer::chunks(page.as_bytes().chunks(size), true));
        let server = Scripted::start(pages.to_vec()).await;
        let client = Client::new(&server.url, None).unwrap();
        let mut history = client.history("a", HistoryQuery::default());
        let mut seqs = Vec::new();
        while let Some(found) = history.next().await.unwrap() {
            assert_eq!(String::from_utf8_lossy(&found.json), event(found.event.seq as u32));
            seqs.push(found.event.seq);
        }
        assert_eq!(seqs, [1, 2, 3, 4, 5], "in chunks of {size}");
        let requests = server.requests();
        assert!(requests[0].contains("from=earliest"), "{requests:?}");
        assert!(requests[1].contains("from=afterId&afterId=place-of-3"), "{requests:?}");
        assert_eq!(requests.len(), 2);
    }
}

#[tokio::test]
async fn an_incomplete_page_is_an_error_and_not_the_end() {
    let text = page(1..=2, "null");
    let cut = &text.as_bytes()[..text.len() - 60];
    let server = Scripted::start(vec![Answer::chunks([cut], true)]).await;
    let client = Client::new(&server.url, None).unwrap();
    let mut history = client.history("a", HistoryQuery::default());
    assert_eq!(history.next().await.unwrap().unwrap().event.seq, 1);
    let error = history.next().await.unwrap_err();
    assert!(matches!(error, ClientError::Answer { .. }), "{error}");
}

#[tokio::test]
async fn the_last_events_are_read_in_both_orders() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    let records: Vec<Record> = (1..=20).map(|number| Record::new("orders", &number).unwrap()).collect();
    assert!(client.publish_batch(&records).await.iter().all(Result::is_ok));
    for (is_descending, expected) in [(false, ["18", "19", "20"]), (true, ["20", "19", "18"])] {
        let query = HistoryQuery { last: Some(3), is_descending, ..HistoryQuery::default() };
        let mut history = client.history("orders", query);
        let mut payloads = Vec::new();
        while let Some(found) = history.next().await.unwrap() {
            payloads.push(found.event.payload.get().to_owned());
        }
        assert_eq!(payloads, expected);
    }
    // The topic has grown since its last seq was read: the newest events are those at the time of the read.
    let query = HistoryQuery { last: Some(1), to_seq: Some(5), ..HistoryQuery::default() };
    let mut history = client.history("orders", query);
    assert_eq!(history.next().await.unwrap().unwrap().event.seq, 20);
    assert!(history.next().await.unwrap().is_none());
    gateway.stop().await;
}
