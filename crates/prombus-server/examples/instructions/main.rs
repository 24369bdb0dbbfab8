//! Loads whose instructions are counted: `scripts/instructions` runs each under callgrind and holds it against a limit.
//!
//! ```text
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*count_instructions_of*' \
//!     target/release/examples/instructions publish 20000
//! ```
//!
//! Everything runs on one thread, over the real log in a folder that is removed afterwards: sessions have their turns, the log
//! its commits and the bus its clock when the load says so. So each run does the same, and only the server is counted: what a
//! client would do comes between. Not in it: the kernel, the sockets of tokio, the wake-ups of threads, and the housekeeping of
//! the log.

#![allow(clippy::print_stdout, reason = "what was counted is what it is for")]

mod log;
mod server;

use std::path::Path;

type Failure = Box<dyn std::error::Error>;

/// Messages that come together.
const BATCH: usize = 256;

/// Batches before the first that is counted: by then topics are made, buffers are as large as they need to be, and the log's
/// tail is full, so that its buffers are used again.
const WARM_UP_BATCHES: usize = 4;

/// The log's tail where it is to be full.
const SMALL_TAIL_BYTES: usize = 256 << 10;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [load, messages] = arguments.as_slice() else {
        return Err("usage: instructions <load> <messages>".into());
    };
    let messages = messages.parse().map_err(|_| format!("{messages:?} is not a number"))?;
    let folder = std::env::temp_dir().join(format!("prombus-instructions-{}", std::process::id()));
    // The timers of sessions need a runtime; nothing runs on it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _inside = runtime.enter();
    let counted = run(load, messages, &folder);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    println!("{load}: {} messages", counted?);
    Ok(())
}

/// Runs a load of at least so many messages. Answers how many were counted.
fn run(load: &str, messages: usize, folder: &Path) -> Result<usize, Failure> {
    match load {
        "publish" => server::publish(folder, messages, false),
        "publish-ids" => server::publish(folder, messages, true),
        "deliver" => server::deliver(folder, messages),
        "fan-out" => server::fan_out(folder, messages),
        "deliver-topics" => server::deliver_topics(folder, messages),
        "log-append" => log::append(folder, messages),
        "log-read" => log::read(folder, messages),
        other => Err(format!("there is no load {other:?}").into()),
    }
}

/// What happens in here is counted: callgrind knows it by its name, so it holds nothing that would have the name in its own.
#[inline(never)]
fn count_instructions_of(work: &mut dyn FnMut()) {
    work();
}
