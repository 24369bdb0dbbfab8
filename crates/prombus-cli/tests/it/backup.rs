//! Test of `prombus backup` under load.

use crate::http_client::Poster;
use crate::remote::Server;
use crate::serving::Serving;
use crate::support::{TempFolder, prombus, run};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn a_backup_under_load_has_every_acknowledged_event_and_can_be_served() {
    let server = Server::start();
    let (answered, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let folder = TempFolder::new();
    let copy = folder.path().join("copy");
    let (before, said) = std::thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let mut poster = Poster::connect(&server.address());
            while !is_over.load(Ordering::SeqCst) {
                let first = answered.load(Ordering::SeqCst);
                let lines: String =
                    (first..first + 100).map(|number| format!("{{\"number\": {number}}}\n")).collect();
                let (status, answer) = poster.publish_lines("orders", lines.as_bytes());
                assert_eq!(status, 200, "{answer}");
                answered.fetch_add(100, Ordering::SeqCst);
            }
        });
        while answered.load(Ordering::SeqCst) < 2_000 {
            assert!(!publisher.is_finished(), "the publisher failed");
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = answered.load(Ordering::SeqCst);
        // A relative path is relative to the folder in which the command runs.
        let ran = server.command(&["backup", "copy"]).current_dir(folder.path()).output().unwrap();
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
        (before, String::from_utf8(ran.stdout).unwrap())
    });
    let shown = copy.to_str().unwrap();
    assert!(said.contains(&format!("prombus verify --data {shown}")), "{said}");
    let verified = run(&["verify", "--data", shown]);
    assert_eq!(verified.code, Some(0), "{verified:?}");

    let serving = Serving::start(prombus(&["serve", "--data", shown, "--listen", "127.0.0.1:0"]));
    let opened = Server { serving, folder };
    let events = opened.events("orders");
    println!("{before} answered before, {} in the backup, {} in total", events.len(), answered.into_inner());
    assert!(events.len() as u64 >= before, "{} of {before}", events.len());
    for (number, event) in events.iter().enumerate() {
        assert_eq!(
            (event["seq"].as_u64(), &event["payload"]["number"]),
            (Some(number as u64 + 1), &number.into())
        );
    }
    // A folder that is not empty is not overwritten.
    let refused = server.run(&["backup", shown]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
}
