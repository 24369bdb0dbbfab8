//! RabbitMQ, with a separate port mapper (epmd): one that RabbitMQ starts by itself would keep running after it.

use super::description::{Description, Durability, Tuning};
use crate::wire::{AmqpTarget, QueueType};
use anyhow::Context;
use prombus_bench::process::{Process, find_program, free_address};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// RabbitMQ with one type of queue.
#[derive(Clone, Debug)]
pub struct RabbitPeer {
    program: PathBuf,
    port_mapper: PathBuf,
    queue_type: QueueType,
    pub(super) description: Description,
}

/// Maximum number of unacked deliveries per consumer.
const PREFETCH: u16 = 1_000;

impl RabbitPeer {
    /// The script that starts RabbitMQ. Prefers the script inside the package: the wrapper on the PATH may switch to another user.
    #[must_use]
    pub fn find() -> Option<PathBuf> {
        let packaged = PathBuf::from("/usr/lib/rabbitmq/bin/rabbitmq-server");
        if std::env::var_os("RABBITMQ_SERVER").is_none() && packaged.is_file() {
            return Some(packaged);
        }
        find_program("RABBITMQ_SERVER", "rabbitmq-server")
    }

    /// RabbitMQ with queues of this type.
    ///
    /// # Errors
    /// If there is no `epmd`, or the version of RabbitMQ cannot be found.
    pub fn new(program: &Path, tuning: Tuning) -> anyhow::Result<Self> {
        let queue_type = tuning.rabbitmq_queue;
        let port_mapper =
            find_program("EPMD", "epmd").context("RabbitMQ needs epmd, which is not on the PATH")?;
        let description = Description {
            name: "rabbitmq".into(),
            version: version(program).context("cannot find the version of RabbitMQ in its folders")?,
            durability: Durability::Synced,
            promise: "synced before the answer".into(),
            settings: vec![target(([127, 0, 0, 1], 0).into(), queue_type).settings()],
        };
        Ok(Self { program: program.to_owned(), port_mapper, queue_type, description })
    }

    /// Starts it and its port mapper, which must be stopped after it.
    pub(super) fn start(&self, folder: &Path) -> anyhow::Result<(Process, Process, AmqpTarget)> {
        let (address, between, mapper) = (free_address()?, free_address()?, free_address()?);
        let mapper_folder = folder.join("mapper");
        std::fs::create_dir(&mapper_folder)?;
        let mapper_port = mapper.port().to_string();
        let mut command = Command::new(&self.port_mapper);
        let mut port_mapper = Process::start(
            "epmd",
            &mapper_folder,
            command.args(["-port", &mapper_port, "-address", "127.0.0.1"]),
        )?;
        port_mapper.wait_for(mapper)?;

        std::fs::write(folder.join("enabled_plugins"), "[].\n")?;
        let mut command = Command::new(&self.program);
        command
            // Makes the script replace itself with the server, so that the started process is the server.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env("HOME", folder)
            .env("ERL_EPMD_PORT", mapper_port)
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", "compare@localhost")
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", address.port().to_string())
            .env("RABBITMQ_DIST_PORT", between.port().to_string())
            .env("RABBITMQ_MNESIA_BASE", folder.join("data"))
            .env("RABBITMQ_LOG_BASE", folder.join("log"))
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("enabled_plugins"))
            .env("RABBITMQ_CONF_ENV_FILE", folder.join("no-environment"))
            .env("RABBITMQ_CONFIG_FILE", folder.join("no-config"));
        let mut process = Process::start("rabbitmq-server", folder, &mut command)?;
        process.wait_for(address)?;
        let target = target(address, self.queue_type);
        target.create()?;
        Ok((process, port_mapper, target))
    }
}

/// The version, from the names of files next to the program. Running RabbitMQ's own tools would start a port mapper.
fn version(program: &Path) -> Option<String> {
    let home = program.parent()?.parent()?;
    let places = [(home.join("lib"), "rabbitmq_server-"), (home.join("plugins"), "rabbit-")];
    places.iter().find_map(|(folder, prefix)| {
        std::fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(name.strip_prefix(prefix)?.trim_end_matches(".ez").to_owned())
        })
    })
}

fn target(address: SocketAddr, queue_type: QueueType) -> AmqpTarget {
    AmqpTarget { address, exchange: "bench".into(), queue_type, prefetch: PREFETCH }
}
