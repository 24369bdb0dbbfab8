//! The folder for the servers' data. It is deleted when the program ends, also by a signal.

use crate::progress::say;
use anyhow::Context;
use prombus_bench::process;
use std::path::{Path, PathBuf};

/// The folder for the servers' data. Dropping it deletes the folder.
#[derive(Debug)]
pub struct Data(PathBuf);

impl Data {
    /// Creates a new folder inside another one.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new(inside: &Path) -> anyhow::Result<Self> {
        let folder = inside.join(format!("compare-data-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self(folder.canonicalize()?))
    }

    /// Its path.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// On Ctrl-C and SIGTERM, stops the running servers, deletes their data and exits.
///
/// # Errors
/// If signal handlers cannot be installed.
pub fn stop_on_signals(data: &Data) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let data = data.0.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        process::stop_all();
        let _ = std::fs::remove_dir_all(&data);
        say("stopped; nothing was written");
        std::process::exit(130);
    });
    Ok(())
}
