//! prombus with default settings.

use super::description::{CONSUMER_WINDOW, Description, Durability};
use anyhow::Context;
use prombus_bench::process::{Process, first_line, free_address, prombus_serve};
use prombus_bench::wire::{From, PrombusTarget};
use std::path::{Path, PathBuf};

/// prombus with default settings.
#[derive(Clone, Debug)]
pub struct PrombusPeer {
    program: PathBuf,
    pub(super) description: Description,
}

impl PrombusPeer {
    /// The binary at this path.
    ///
    /// # Errors
    /// If it does not exist or does not print its version.
    pub fn new(program: &Path) -> anyhow::Result<Self> {
        let program =
            program.canonicalize().with_context(|| format!("no prombus at {}", program.display()))?;
        let said = first_line(&program, &["--version"])?;
        let description = Description {
            name: "prombus".into(),
            version: said.rsplit(' ').next().unwrap_or(&said).into(),
            durability: Durability::Synced,
            promise: "synced before the answer".into(),
            settings: vec![
                "prombus serve --log warn, all else default".into(),
                format!("subscriptions with maxInFlight={CONSUMER_WINDOW} batchSize={CONSUMER_WINDOW}"),
            ],
        };
        Ok(Self { program, description })
    }

    /// Starts it with its data in this folder, which may contain data already. Returns when the server accepts connections, so it has
    /// opened its data.
    ///
    /// # Errors
    /// If it does not start in time.
    pub fn start(&self, folder: &Path, has_client_ids: bool) -> anyhow::Result<(Process, PrombusTarget)> {
        let address = free_address()?;
        let mut command = prombus_serve(&self.program, address);
        let mut process = Process::start("prombus", folder, &mut command)?;
        process.wait_for(address)?;
        let target = PrombusTarget {
            address,
            host: address.to_string(),
            token: None,
            topic: "bench".into(),
            topics: 1,
            group: "g".into(),
            from: From::Earliest,
            max_in_flight: CONSUMER_WINDOW,
            has_client_ids,
        };
        Ok((process, target))
    }
}
