//! NATS with JetStream.

use super::description::{Description, Durability, Tuning};
use crate::wire::{Delivery, NatsTarget};
use prombus_bench::process::{Process, first_line, free_address};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// NATS with or without a sync before each answer.
#[derive(Clone, Debug)]
pub struct NatsPeer {
    program: PathBuf,
    is_synced: bool,
    delivery: Delivery,
    pub(super) description: Description,
}

impl NatsPeer {
    /// NATS with its default setting, or with a sync before each answer.
    ///
    /// # Errors
    /// If the program does not print its version.
    pub fn new(program: &Path, is_synced: bool, tuning: Tuning) -> anyhow::Result<Self> {
        let said = first_line(program, &["--version"])?;
        let version = said.rsplit('v').next().unwrap_or(&said);
        let (name, durability, promise) = if is_synced {
            ("nats-always", Durability::Synced, "synced before the answer")
        } else {
            ("nats", Durability::NotSynced, "synced every two minutes; answers do not wait")
        };
        let sync = if is_synced { ", sync_interval: always" } else { "" };
        let delivery = tuning.nats_delivery;
        let settings = vec![
            format!("jetstream {{ max_file_store: 32GB{sync} }}"),
            target(([127, 0, 0, 1], 0).into(), delivery).settings(),
        ];
        let description = Description {
            name: name.into(),
            version: version.into(),
            durability,
            promise: promise.into(),
            settings,
        };
        Ok(Self { program: program.to_owned(), is_synced, delivery, description })
    }

    /// Whether this version can sync before each answer.
    #[must_use]
    pub fn has_sync_always(&self) -> bool {
        let mut parts = self.description.version.split('.').map_while(|part| part.parse::<u32>().ok());
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        version >= (2, 10)
    }

    pub(super) fn start(&self, folder: &Path) -> anyhow::Result<(Process, NatsTarget)> {
        let address = free_address()?;
        let sync = if self.is_synced { "  sync_interval: always\n" } else { "" };
        let config = format!(
            "listen: \"{address}\"\njetstream {{\n  store_dir: \"{}\"\n  max_file_store: 32GB\n{sync}}}\n",
            folder.join("data").display()
        );
        std::fs::write(folder.join("nats.conf"), config)?;
        let mut command = Command::new(&self.program);
        let mut process = Process::start("nats-server", folder, command.args(["--config", "nats.conf"]))?;
        process.wait_for(address)?;
        let target = target(address, self.delivery);
        target.create_stream()?;
        Ok((process, target))
    }
}

/// More than the other servers get: NATS 2.9 was faster with it than with 1,000. With 2.10, or with 50,000, the difference was within
/// the noise.
const MAX_ACK_PENDING: usize = 10_000;

fn target(address: SocketAddr, delivery: Delivery) -> NatsTarget {
    NatsTarget { address, stream: "BENCH".into(), max_ack_pending: MAX_ACK_PENDING, delivery }
}
