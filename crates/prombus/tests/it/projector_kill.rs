//! Kills (kill -9) a process that runs a projector, 50 times in a row: every input changes the states exactly once.

use crate::child::{Child, open_bus, say, sum_of};
use crate::folder::Folder;
use crate::projector::{Sums, latest, sums_options};
use crate::support::{Random, setting};
use prombus::consume::projector::Projector;
use prombus::{Bus, PullLimit, Topic};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FOLDER: &str = "PROMBUS_PROJECTOR_FOLDER";

/// Not a test: the process that the test kills.
#[test]
fn the_process_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let bus = open_bus(&folder).await;
        let projector = Projector::open(&bus, sums_options(5), Sums).await.expect("it opens").spawn();
        let mut skipped = 0;
        for number in 0_i64.. {
            let key = format!("key-{}", number % 7);
            bus.publish("numbers", &(1 + number % 3)).key(key).await.expect("it publishes");
            say("PUB 1");
            let now = projector.figures().skipped;
            if now > skipped {
                say(&format!("SKIPPED {}", now - skipped));
                skipped = now;
            }
        }
    });
}

#[test]
fn kill_9_fifty_times_and_every_input_changed_the_states_once() {
    let seed = setting("PROMBUS_SEED", 1);
    println!("PROMBUS_SEED={seed}");
    let mut random = Random::new(seed);
    let folder = Folder::new();
    let mut output = Vec::new();
    for _ in 0..50 {
        let child = Child::start("projector_kill::the_process_that_is_killed", &[(FOLDER, folder.path())]);
        std::thread::sleep(Duration::from_millis(random.between(60, 350)));
        output.extend(child.kill());
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let inputs = runtime.block_on(check(folder.path()));
    let (published, skipped) = (sum_of(&output, "PUB "), sum_of(&output, "SKIPPED "));
    println!("{published} confirmed, {inputs} inputs, {skipped} redelivered");
    assert!(inputs >= published, "a confirmed event is lost");
    assert!(published > 500 && skipped > 0, "too few cases were tested");
}

/// Folds the remaining inputs, compares the states with the sums of the inputs, and returns the number of inputs.
async fn check(folder: &Path) -> u64 {
    let bus = open_bus(folder).await;
    let mut projector = Projector::open(&bus, sums_options(5), Sums).await.expect("it opens");
    loop {
        let group = bus.backend().group("numbers", "sums-projector").await.expect("succeeds");
        if group.expect("the group exists").lag == 0 {
            break;
        }
        projector.next().await.expect("it folds");
    }
    let (expected, inputs) = sums_of(&bus).await;
    assert_eq!(latest(&bus, "sums").await, expected);
    let states = projector.states().iter().map(|(key, sum)| (key.to_owned(), sum.to_string()));
    assert_eq!(states.collect::<BTreeMap<_, _>>(), expected);
    bus.close().await.expect("it closes");
    inputs
}

/// The expected sums, computed directly from the inputs.
async fn sums_of(bus: &Bus) -> (BTreeMap<String, String>, u64) {
    let topic = Topic::new("numbers").expect("a topic");
    let (mut sums, mut from, mut inputs) = (BTreeMap::<String, i64>::new(), 1, 0);
    loop {
        let page = bus.read_from(&topic, from, PullLimit::default()).await.expect("it reads");
        for event in &page.events {
            let number: i64 = event.json().expect("a number");
            for key in ["all", event.key().expect("a key")] {
                *sums.entry(key.to_owned()).or_default() += number;
            }
            inputs += 1;
        }
        if page.next_seq <= from {
            return (sums.into_iter().map(|(key, sum)| (key, sum.to_string())).collect(), inputs);
        }
        from = page.next_seq;
    }
}
