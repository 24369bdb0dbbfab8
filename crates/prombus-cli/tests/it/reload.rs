//! Test of SIGHUP: settings of topics are reloaded, and a mistake in the file changes nothing.

use crate::remote::{Server, lines};
use crate::serving::{Serving, serve};
use crate::support::TempFolder;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Generous: maintenance applies retention every 5 s.
const PATIENCE: Duration = Duration::from_secs(30);

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn sighup_reloads_topic_settings_and_a_mistake_changes_nothing() {
    let folder = TempFolder::new();
    let config = folder.path().join("prombus.toml");
    std::fs::write(&config, "[[topic]]\nname = \"orders\"\nmax_attempts = 7\n").unwrap();
    let serving = Serving::start(serve(&folder, &["--config", config.to_str().unwrap()]));
    let server = Server { serving, folder };
    server.import(&lines("orders", 0..50));
    server.import(&lines("kept", 0..50));
    let shows =
        |what: &str| server.ok(&["topic", "show", "orders", "--json"]).replace(' ', "").contains(what);
    assert!(shows("\"max_attempts\":7"), "the file applies from the start");

    std::fs::write(&config, "[[topic]]\nname = \"orders\"\nmax_atempts = 9\n").unwrap();
    server.serving.signal(Signal::HUP);
    // The reload is not visible from outside; the log is checked at the end.
    std::thread::sleep(Duration::from_secs(1));
    assert!(shows("\"max_attempts\":7"), "a mistake changes nothing");
    std::fs::write(&config, "[[topic]]\nname = \"orders\"\nretention_ms = 1\n").unwrap();
    server.serving.signal(Signal::HUP);
    until("retention applies", || server.count("orders") == 0);
    assert_eq!(server.count("kept"), 50);
    assert!(shows("\"max_attempts\":null"), "the new rule replaces the old one completely");

    server.serving.signal(Signal::TERM);
    let (code, log) = server.serving.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("max_atempts: unknown key; did you mean topic.max_attempts?"), "{log}");
    assert!(log.contains("SIGHUP: applied 1 topic rules"), "{log}");
}
