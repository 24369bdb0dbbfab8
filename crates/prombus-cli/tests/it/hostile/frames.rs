//! Tests of invalid WebSocket frames and invalid JSON.

use super::raw::{Raw, masked};
use super::{check_is_responsive, start};
use crate::long_form::{Random, alone};
use crate::support::TempFolder;
use crate::ws_client::Client;
use serde_json::json;

#[test]
fn garbage_after_the_upgrade_closes_its_connection_and_no_other() {
    alone(async {
        let folder = TempFolder::new();
        let serving = start(&folder, &[]);
        let mut honest = Client::connect(serving.address()).await;
        let garbage: [&[u8]; 6] = [
            b"GET / HTTP/1.1\r\n\r\n",
            &[0xff; 64],
            // Not masked.
            b"\x81\x02{}",
            // A reserved opcode.
            &masked(0x83, b"{}"),
            // A fragmented ping.
            &masked(0x09, b"x"),
            // A continuation without a first fragment.
            &masked(0x80, b"x"),
        ];
        for bytes in garbage {
            let mut raw = Raw::upgraded(serving.address()).await;
            raw.send(bytes).await;
            assert_eq!(raw.close_code().await, 1002, "{bytes:?}");
            raw.until_closed().await;
            honest.publish("a", json!(1)).await;
        }
        let mut random = Random::from_environment("hostile");
        for _ in 0..100 {
            let bytes: Vec<u8> = (0..random.below(20_000)).map(|_| random.next() as u8).collect();
            let mut raw = Raw::upgraded(serving.address()).await;
            raw.send(&bytes).await;
            let mut raw = Raw::connect(serving.address()).await;
            raw.send(&bytes).await;
        }
        honest.publish("a", json!(2)).await;
        check_is_responsive(&serving).await;
    });
}

#[test]
fn text_that_is_not_utf8_closes_only_its_own_connection() {
    alone(async {
        let folder = TempFolder::new();
        let serving = start(&folder, &[]);
        let frames: [&[u8]; 2] =
            [b"\xff\xfe", b"{\"op\":\"PUBLISH\",\"topic\":\"a\",\"payload\":\"\xc3\x28\"}"];
        for frame in frames {
            let mut raw = Raw::upgraded(serving.address()).await;
            raw.send(&masked(0x81, frame)).await;
            assert_eq!(raw.close_code().await, 1007);
        }
    });
}

#[test]
fn invalid_json_gets_one_err_and_the_connection_stays_open() {
    alone(async {
        let folder = TempFolder::new();
        let serving = start(&folder, &[]);
        let mut raw = Raw::upgraded(serving.address()).await;
        let deep = "[".repeat(100_000);
        let deep_and_closed = format!("{deep}{}", "]".repeat(100_000));
        let deep_payload = format!(r#"{{"op":"PUBLISH","topic":"a","corr":7,"payload":{deep_and_closed}}}"#);
        let deep_objects = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
        let frames: [(&[u8], &[&str]); 7] = [
            (deep.as_bytes(), &["bad_json", "bad_request"]),
            (deep_and_closed.as_bytes(), &["bad_json", "bad_request"]),
            (deep_payload.as_bytes(), &["bad_request"]),
            (deep_objects.as_bytes(), &["bad_json", "bad_request"]),
            (b"", &["bad_json"]),
            (b"{\"op\":", &["bad_json"]),
            (b"null", &["bad_request"]),
        ];
        for (frame, codes) in frames {
            raw.send(&masked(0x81, frame)).await;
            let answer = raw.text().await;
            let start = String::from_utf8_lossy(&frame[..frame.len().min(40)]);
            let is_expected = codes.iter().any(|code| answer.contains(&format!("\"code\":\"{code}\"")));
            assert!(answer.contains("\"op\":\"ERR\"") && is_expected, "{start}: {answer}");
            raw.send(&masked(0x81, br#"{"op":"PUBLISH","topic":"a","corr":1,"payload":1}"#)).await;
            assert!(raw.text().await.contains("\"op\":\"OK\""), "after {start}");
        }
    });
}
