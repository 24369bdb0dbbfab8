//! Runs the suite `prombus::conformance` over the engines that need no server.

/// A bus in memory.
mod memory {
    use prombus::Bus;
    use prombus::conformance::Subject;

    async fn make_bus() -> Subject {
        Subject::new(Bus::memory())
    }

    prombus::conformance_suite!(make_bus);
}

/// A bus in a folder.
mod log {
    use crate::folder::Folder;
    use prombus::Bus;
    use prombus::conformance::Subject;
    use prombus::engine::LogEngineOptions;

    async fn make_bus() -> Subject {
        let folder = Folder::new();
        // Small, because every test fills a segment with zeros first.
        let mut options = LogEngineOptions::default();
        options.log.segment_bytes = 1 << 20;
        options.log.reserve_bytes = 1 << 16;
        let bus = Bus::builder().log(options).open(folder.path()).await.expect("opens");
        Subject::with_guard(bus, folder)
    }

    prombus::conformance_suite!(make_bus);
}

/// A bus on a backend that another crate implements.
mod outside_backend {
    use crate::outside_backend::Outside;
    use prombus::conformance::Subject;

    async fn make_bus() -> Subject {
        Subject::new(Outside::bus())
    }

    prombus::conformance_suite!(make_bus);
}

/// A bus on an engine that is reached over a simulated network.
mod simulated_network {
    use crate::simulated_network::seed;
    use prombus::conformance::Subject;
    use prombus::engine::simulated::{Database, NetworkOptions, SimulatedEngine};
    use prombus::{Bus, SystemClock};
    use std::sync::Arc;

    async fn make_bus() -> Subject {
        bus(NetworkOptions { seed: seed(), ..NetworkOptions::default() })
    }

    pub(super) fn bus(network: NetworkOptions) -> Subject {
        let clock = Arc::new(SystemClock::default());
        let engine = SimulatedEngine::open(&Database::new(), network, clock).expect("opens");
        Subject::new(Bus::builder().over_engine(Arc::new(engine)).expect("opens"))
    }

    prombus::conformance_suite!(make_bus);
}

/// The same, on a network that loses requests and responses, and has short outages.
mod simulated_bad_network {
    use super::simulated_network::bus;
    use crate::simulated_network::seed;
    use prombus::conformance::Subject;
    use prombus::engine::simulated::NetworkOptions;

    async fn make_bus() -> Subject {
        bus(NetworkOptions {
            seed: seed(),
            lost_answers: 0.1,
            lost_requests: 0.05,
            late_requests: 0.05,
            outages: 0.03,
            tail_bytes: 1_000,
            ..NetworkOptions::default()
        })
    }

    prombus::conformance_suite!(make_bus);
}

/// A rule that is not in the list would never run.
#[test]
fn every_rule_is_in_the_suite() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let list = std::fs::read_to_string(source.join("conformance.rs")).expect("the list");
    let mut rules = 0;
    for file in std::fs::read_dir(source.join("conformance")).expect("the rules") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("a text");
        for rule in text.lines().filter_map(|line| line.strip_prefix("pub async fn ")) {
            let name = rule.split('(').next().expect("a name");
            assert!(list.contains(&format!(" {name},")), "{name} is not in the list");
            rules += 1;
        }
    }
    assert!(rules > 80, "{rules} rules");
}
