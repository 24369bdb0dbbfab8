//! SIGHUP: what the configuration says about topics counts from then on, and a mistake in it changes nothing.

use crate::remote::{Server, lines};
use crate::serving::{Serving, serve};
use crate::support::TempFolder;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// A round of housekeeping comes every 5 s.
const PATIENCE: Duration = Duration::from_secs(30);

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_hangup_reads_the_topics_again_and_a_mistake_changes_nothing() {
    let folder = TempFolder::new();
    let config = folder.path().join("prombus.toml");
    std::fs::write(&config, "[[topic]]\nname = \"orders\"\nmax_attempts = 7\n").unwrap();
    let serving = Serving::start(serve(&folder, &["--config", config.to_str().unwrap()]));
    let server = Server { serving, folder };
    server.import(&lines("orders", 0..50));
    server.import(&lines("kept", 0..50));
    let shows =
        |what: &str| server.ok(&["topic", "show", "orders", "--json"]).replace(' ', "").contains(what);
    assert!(shows("\"max_attempts\":7"), "the file counts from the start");

    std::fs::write(&config, "[[topic]]\nname = \"orders\"\nmax_atempts = 9\n").unwrap();
    server.serving.signal(Signal::HUP);
    // Nothing tells from outside that it was read; the log does at the end.
    std::thread::sleep(Duration::from_secs(1));
    assert!(shows("\"max_attempts\":7"), "a mistake changes nothing");
    std::fs::write(&config, "[[topic]]\nname = \"orders\"\nretention_ms = 1\n").unwrap();
    server.serving.signal(Signal::HUP);
    until("retention counts", || server.count("orders") == 0);
    assert_eq!(server.count("kept"), 50);
    assert!(shows("\"max_attempts\":null"), "the rule is another one now, whole");

    server.serving.signal(Signal::TERM);
    let (code, log) = server.serving.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("max_atempts: unknown key; did you mean topic.max_attempts?"), "{log}");
    assert!(log.contains("SIGHUP: applied 1 topic rules"), "{log}");
}
