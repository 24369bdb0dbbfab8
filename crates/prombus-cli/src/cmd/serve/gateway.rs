//! Startup steps that do not depend on the store: building the bus, announcing the server, explaining failures.

use super::banner;
use crate::args::ServeArgs;
use crate::config::{BusSettings, Settings};
use crate::messages::{io_reason, one_line};
use prombus::engine::LogEngineOptions;
use prombus::{Bus, BusBuilder, OpenError, TopicRule};
use prombus_server::{ServeError, Server, raise_descriptor_limit};
use std::io::{ErrorKind, Write, stdout};
use std::time::Duration;

/// How long a store that has served no client may take to close.
pub const CLOSE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// A bus builder with the configured options.
pub fn builder(settings: &BusSettings, rules: Vec<TopicRule>) -> BusBuilder {
    Bus::builder()
        .limits(settings.limits)
        .memory_bytes(settings.memory_bytes)
        .topics(rules)
        .log(LogEngineOptions { log: settings.log.clone() })
}

/// Prints the banner. Call this when the server accepts connections.
pub fn announce(args: &ServeArgs, settings: &Settings, server: &Server) {
    let text = banner::text(settings, server.local_addrs(), args.demo);
    // A closed stdout must not stop the server.
    let _ = stdout().write_all(text.as_bytes()).and_then(|()| stdout().flush());
    let addresses: Vec<String> = server.local_addrs().iter().map(ToString::to_string).collect();
    tracing::info!("serving on {}", addresses.join(", "));
}

/// Raises the limit of open files. Warns if it is too low for `limits.max_connections`.
pub fn raise_descriptors(server: &Server) {
    let wanted = server.descriptors_wanted();
    match raise_descriptor_limit() {
        Ok(limit) if limit < wanted => tracing::warn!(
            "this process may open only {limit} files, but limits.max_connections needs {wanted}: raise the limit \
             (ulimit -Hn, LimitNOFILE) or lower the setting"
        ),
        Ok(limit) => tracing::debug!(limit, "file descriptors"),
        Err(error) => tracing::warn!("cannot raise the limit of open files: {error}"),
    }
}

/// Why the bus cannot be opened, and what to do.
pub fn open_failure(error: OpenError) -> String {
    match error {
        OpenError::Log(prombus_log::OpenError::Locked { folder }) => format!(
            "{folder} is in use by another prombus process; stop it, or choose another folder with --data"
        ),
        OpenError::Log(prombus_log::OpenError::Io { folder, action, source }) => format!(
            "cannot use {folder} as the data folder ({action}: {}); choose another with --data",
            io_reason(&source)
        ),
        other => one_line(&anyhow::Error::from(other)),
    }
}

/// Why the server cannot listen, and what to do.
pub fn listen_failure(error: ServeError) -> String {
    let ServeError::Listen { address, source } = &error else {
        return one_line(&anyhow::Error::from(error));
    };
    let why = match source.kind() {
        ErrorKind::AddrInUse => {
            "another program uses it; stop that program, or choose another address with --listen"
        }
        ErrorKind::AddrNotAvailable => "this machine does not have the address; choose another with --listen",
        ErrorKind::PermissionDenied => "permission denied; choose a port above 1023 with --listen",
        _ => return one_line(&anyhow::Error::from(error)),
    };
    format!("cannot listen on {address}: {why}")
}
