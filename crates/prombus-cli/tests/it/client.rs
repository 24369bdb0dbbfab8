//! Tests of the Rust client with a real server.

use crate::remote::{Server, id_of, lines};
use crate::serving::{Serving, serve};
use crate::support::{TempFolder, prombus};
use prombus_client::{After, Client, ErrorCode, HistoryQuery, Record, Start};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

#[test]
fn each_record_of_a_batch_has_its_own_answer() {
    let server = Server::start();
    block_on(async {
        let client = Client::connect(&server.url(), None).await.unwrap();
        let record = |topic: &str, number: u64| Record::new(topic, &json!({ "number": number })).unwrap();
        let mut batch: Vec<Record> = (0..500).map(|number| record("orders", number)).collect();
        batch[7].topic = "no topic".to_owned();
        batch[9] = Record::new("orders", &"x".repeat(1_100_000)).unwrap();
        for (number, record) in batch.iter_mut().enumerate() {
            record.options.id = Some(id_of("orders", number as u64).parse().unwrap());
        }
        batch[20] = batch[19].clone();
        let answers = client.publish_batch(&batch).await;
        assert_eq!(answers.len(), batch.len());
        assert_eq!(answers[7].as_ref().unwrap_err().code(), Some(ErrorCode::BadTopic));
        assert_eq!(answers[9].as_ref().unwrap_err().code(), Some(ErrorCode::TooLarge));
        let (first, again) = (answers[19].clone().unwrap(), answers[20].clone().unwrap());
        assert!(!first.duplicate && again.duplicate && first.seq == again.seq);
        let seqs: Vec<u64> = answers.iter().flatten().filter(|it| !it.duplicate).map(|it| it.seq).collect();
        assert_eq!(seqs, (1..=497).collect::<Vec<_>>());
        assert_eq!(answers[499].as_ref().unwrap().id, batch[499].options.id.unwrap());
    });
}

#[test]
fn loaded_state_has_the_position_to_continue_from() {
    let server = Server::start();
    block_on(async {
        let client = Client::connect(&server.url(), None).await.unwrap();
        let empty = client.load_state("prices").await.unwrap();
        assert_eq!((empty.events.len(), empty.start()), (0, Start::Earliest));
        let price = |key: &str, value: serde_json::Value| Record::new("prices", &value).unwrap().key(key);
        let records =
            [price("a", json!(1)), price("b", json!(2)), price("a", json!(3)), price("b", json!(null))];
        let published = client.publish_batch(&records).await;
        let last = published.last().unwrap().clone().unwrap();
        let state = client.load_state("prices").await.unwrap();
        let payloads: Vec<(&str, &str)> =
            state.events.iter().map(|(key, event)| (key.as_str(), event.payload.get())).collect();
        assert_eq!(payloads, [("a", "3")]);
        assert_eq!(state.start(), Start::AfterId(last.id));
        assert_eq!(state.position.unwrap().seq, 4);
        let next = client.publish_record(&price("c", json!(4))).await.unwrap();
        let after = Some(After { id: state.position.unwrap().id, seq: None });
        let mut history = client.history("prices", HistoryQuery { after, ..HistoryQuery::default() });
        assert_eq!(history.next().await.unwrap().unwrap().event.id, next.id);
        assert!(history.next().await.unwrap().is_none());
    });
}

#[test]
fn a_wss_url_uses_tls() {
    let folder = TempFolder::new();
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = folder.file("cert.pem", &certified.cert.pem());
    let key = folder.file("key.pem", &certified.signing_key.serialize_pem());
    let serving = Serving::start(serve(&folder, &["--tls-cert", &cert, "--tls-key", &key]));
    let url = format!("wss://localhost:{}", serving.address().port());
    let file = folder.file("orders.ndjson", &lines("orders", 0..50).join("\n"));
    let run = |arguments: &[&str], trusted: &str| {
        let output = prombus(arguments).env("SSL_CERT_FILE", trusted).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned(), output.stdout)
    };
    let (code, said, _) = run(&["import", &file, "--url", &url], &cert);
    assert_eq!(code, Some(0), "{said}");
    let (code, said, lines) = run(&["export", "orders", "--url", &url], &cert);
    assert_eq!((code, lines.iter().filter(|byte| **byte == b'\n').count()), (Some(0), 50), "{said}");
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let other = folder.file("other.pem", &other.cert.pem());
    let (code, said, _) = run(&["topic", "list", "--url", &url], &other);
    assert!(code == Some(1) && said.contains("is not trusted"), "{said}");
}

#[test]
fn a_subscription_delivers_settles_and_survives_a_kill_of_the_server() {
    let server = Server::start();
    block_on(async {
        let client = Client::connect(&server.url(), None).await.unwrap();
        let subscribe =
            |topic: &str, group: &str| client.subscribe(topic, group).from_earliest().max_attempts(2);
        let mut orders = subscribe("orders.*", "billing").await.unwrap();
        let records: Vec<Record> =
            (0..300).map(|number| Record::new("orders.new", &number).unwrap()).collect();
        client.publish_batch(&records).await;
        let mut numbers = Vec::new();
        while numbers.len() < 299 {
            let delivery = orders.next().await.unwrap().unwrap();
            let number: u64 = delivery.json().unwrap();
            if number == 7 {
                assert!(!delivery.nack("not this one").await.unwrap().stale);
            } else {
                numbers.push(number);
                assert!(!delivery.ack().await.unwrap().stale);
            }
        }
        assert_eq!(numbers, (0..300).filter(|number| *number != 7).collect::<Vec<_>>());
        // The loop above may have nacked the second attempt already, which was the last one.
        let mut dead_letters = subscribe("dlq.orders.new", "repair").await.unwrap();
        if server.count("dlq.orders.new") == 0 {
            let again = orders.next().await.unwrap().unwrap();
            assert_eq!((again.event.payload.get(), again.context.attempt), ("7", 2));
            again.nack("not this one").await.unwrap();
        }
        let letter = dead_letters.next().await.unwrap().unwrap();
        assert!(letter.event.payload.get().contains("not this one"), "{:?}", letter.event);
        letter.ack().await.unwrap();

        let refused = subscribe("a b", "billing").await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::BadTopic));
        let restart = std::thread::spawn(move || server.kill_and_start_again(Duration::from_millis(300)));
        for number in 300..310 {
            client.publish("orders.new", &number).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut rest = BTreeSet::new();
        while rest.len() < 10 {
            let delivery = orders.next().await.unwrap().unwrap();
            rest.insert(delivery.json::<u64>().unwrap());
            // An ack that was lost with the connection fails here; the client sends it again when the event is redelivered.
            let _ = delivery.ack().await;
        }
        assert_eq!(rest, (300..310).collect());
        drop(restart.join().unwrap());
    });
}
