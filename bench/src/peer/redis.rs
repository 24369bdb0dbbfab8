//! Redis with an append-only file.

use super::description::{CONSUMER_WINDOW, Description, Durability, Tuning};
use crate::wire::RedisTarget;
use prombus_bench::process::{Process, first_line, free_address};
use std::path::{Path, PathBuf};
use std::process::Command;

/// When Redis syncs its append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendFsync {
    /// Once a second, in the background.
    Everysec,
    /// Before each answer.
    Always,
}

/// Redis with one `appendfsync` setting.
#[derive(Clone, Debug)]
pub struct RedisPeer {
    program: PathBuf,
    pub(super) description: Description,
}

impl RedisPeer {
    /// Redis with this setting.
    ///
    /// # Errors
    /// If the program does not print its version.
    pub fn new(program: &Path, fsync: AppendFsync, tuning: Tuning) -> anyhow::Result<Self> {
        let said = first_line(program, &["--version"])?;
        let version = said.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or(&said);
        let (name, durability, promise, value) = match fsync {
            AppendFsync::Everysec => (
                "redis-everysec",
                Durability::NotSynced,
                "synced once per second; answers do not wait",
                "everysec",
            ),
            AppendFsync::Always => ("redis-always", Durability::Synced, "synced before the answer", "always"),
        };
        let settings = [
            "appendonly yes",
            &format!("appendfsync {value}"),
            // No snapshots and no rewrites during a run.
            "save \"\"",
            "auto-aof-rewrite-percentage 0",
            &format!("io-threads {}", tuning.redis_io_threads),
        ];
        let description = Description {
            name: name.into(),
            version: version.into(),
            durability,
            promise: promise.into(),
            settings: settings.map(str::to_owned).to_vec(),
        };
        Ok(Self { program: program.to_owned(), description })
    }

    pub(super) fn start(&self, folder: &Path) -> anyhow::Result<(Process, RedisTarget)> {
        let address = free_address()?;
        let mut config = self.description.settings.join("\n");
        config
            .push_str(&format!("\nbind 127.0.0.1\nport {}\nunixsocket \"\"\ndaemonize no\n", address.port()));
        std::fs::write(folder.join("redis.conf"), config)?;
        let mut process =
            Process::start("redis-server", folder, Command::new(&self.program).arg("redis.conf"))?;
        process.wait_for(address)?;
        Ok((process, RedisTarget { address, stream: "bench".into(), batch: CONSUMER_WINDOW }))
    }
}
