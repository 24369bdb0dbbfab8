//! Loads whose instructions are counted. `scripts/instructions` runs each under callgrind and compares the count with a limit.
//!
//! ```text
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*count_instructions_of*' \
//!     target/release/examples/instructions publish 20000
//! ```
//!
//! Everything runs on one thread, over the real log in a folder that is removed afterwards. The load decides when sessions run,
//! when the log commits and when the clock of the bus advances, so every run does the same. Only the work of the server is
//! counted; the work of the clients happens in between. Not included: the kernel, tokio's sockets, the wake-ups of threads, and
//! the maintenance of the log.

#![allow(clippy::print_stdout, reason = "the result is printed")]

mod log;
mod server;

use std::path::Path;

type Failure = Box<dyn std::error::Error>;

/// Messages that are sent together.
const BATCH: usize = 256;

/// Batches before the first counted one. After them the topics exist, buffers have their final size, and the log's tail is full,
/// so that its buffers are reused.
const WARM_UP_BATCHES: usize = 4;

/// The size of the log's tail in loads that fill it.
const SMALL_TAIL_BYTES: usize = 256 << 10;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [load, messages] = arguments.as_slice() else {
        return Err("usage: instructions <load> <messages>".into());
    };
    let messages = messages.parse().map_err(|_| format!("{messages:?} is not a number"))?;
    let folder = std::env::temp_dir().join(format!("prombus-instructions-{}", std::process::id()));
    // The timers of sessions need a runtime, but nothing runs on it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _inside = runtime.enter();
    let counted = run(load, messages, &folder);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    println!("{load}: {} messages", counted?);
    Ok(())
}

/// Runs a load of at least this many messages. Returns how many were counted.
fn run(load: &str, messages: usize, folder: &Path) -> Result<usize, Failure> {
    match load {
        "publish" => server::publish(folder, messages, false),
        "publish-ids" => server::publish(folder, messages, true),
        "deliver" => server::deliver(folder, messages),
        "fan-out" => server::fan_out(folder, messages),
        "deliver-topics" => server::deliver_topics(folder, messages),
        "log-append" => log::append(folder, messages),
        "log-read" => log::read(folder, messages),
        other => Err(format!("unknown load {other:?}").into()),
    }
}

/// Instructions in this function are counted. Callgrind matches its name, so it must not contain a closure, whose name would
/// contain this one.
#[inline(never)]
fn count_instructions_of(work: &mut dyn FnMut()) {
    work();
}
