//! Test of a full disk: publishes are refused, consumers continue, and the server keeps running.

use crate::http_client::get_json;
use crate::long_form::{alone, wait_until};
use crate::serving::Serving;
use crate::support::{TempFolder, prombus, run};
use crate::ws_client::{Client, PATIENCE, ack_text};
use futures_util::SinkExt;
use serde_json::json;
use std::path::Path;
use std::process::Command;
use tokio::task::block_in_place;
use tokio_tungstenite::tungstenite::Message;

/// A small file system, unmounted when it is dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// Mounts it; `None` if this user may not mount.
    fn mount(path: &'a Path) -> Option<Self> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=48m", "tmpfs"]).arg(path);
        let is_mounted = command.output().is_ok_and(|output| output.status.success());
        is_mounted.then_some(Self(path))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn on_a_full_disk_publishes_are_refused_and_consumers_continue() {
    let folder = TempFolder::new();
    let Some(disk) = SmallDisk::mount(folder.path()) else {
        println!(
            "SKIPPED: on_a_full_disk_publishes_are_refused_and_consumers_continue: this user may not mount a tmpfs"
        );
        return;
    };
    alone(fill_the_disk(disk.0));
}

async fn fill_the_disk(disk: &Path) {
    let data = disk.join("data");
    let arguments = ["serve", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0", "--log", "warn"];
    let mut command = prombus(&arguments);
    command.env("PROMBUS_STORAGE_SEGMENT_BYTES", (8 << 20).to_string());
    let serving = block_in_place(|| Serving::start(command));
    let address = serving.address();
    let mut publisher = Client::connect(address).await;
    let payload = json!("x".repeat(20_000));
    let mut ok_count = 0;
    let refused = loop {
        let answer = publisher.ask(json!({"op": "PUBLISH", "topic": "full", "payload": payload})).await;
        if !answer.is_ok() {
            break answer;
        }
        ok_count += 1;
        assert!(ok_count < 10_000, "the disk does not become full");
    };
    println!("full disk: after {ok_count} events of 20 kB: {} ({})", refused.code, refused.msg);
    assert_eq!(refused.code, "storage_full", "{refused:?}");

    // A new group consumes and acks on the full disk.
    let mut consumer = Client::connect(address).await;
    consumer.subscribe("full", "work", json!({"from": "earliest"})).await;
    for seq in 1..=ok_count {
        let event = loop {
            if let Some(event) = consumer.frame().await.event {
                break event;
            }
        };
        assert_eq!(event.seq, seq);
        let ack = ack_text("full", "work", &event.id, (seq % 50 == 0).then_some(seq));
        consumer.socket.send(Message::text(ack)).await.unwrap();
    }
    wait_until("everything is acked", PATIENCE, async || {
        let group = block_in_place(|| get_json(&address.to_string(), "/groups/full/work"));
        group["lag"] == 0
    })
    .await;
    let again = publisher.ask(json!({"op": "PUBLISH", "topic": "full", "payload": payload})).await;
    assert_eq!(again.code, "storage_full", "{again:?}");
    block_in_place(|| serving.stop());

    let ran = run(&["verify", "--data", data.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // The acks survive the restart.
    let serving = block_in_place(|| Serving::start(prombus(&arguments)));
    let address = serving.address().to_string();
    let group = block_in_place(|| get_json(&address, "/groups/full/work"));
    assert_eq!((&group["lag"], &group["counters"]["delivered"]), (&json!(0), &json!(0)), "{group}");
    let topics = block_in_place(|| get_json(&address, "/topics"));
    assert_eq!(topics["topics"][0]["count"], json!(ok_count), "{topics}");
}
