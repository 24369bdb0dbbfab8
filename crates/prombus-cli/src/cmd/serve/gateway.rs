//! What all gateways have in common at their start, whatever their store.

use super::banner;
use crate::args::ServeArgs;
use crate::config::{BusSettings, Settings};
use crate::messages::{io_reason, one_line};
use prombus::engine::LogEngineOptions;
use prombus::{Bus, BusBuilder, OpenError, TopicRule};
use prombus_server::{ServeError, Server, raise_descriptor_limit};
use std::io::{ErrorKind, Write, stdout};
use std::time::Duration;

/// How long a store may take to close that has served nobody.
pub const CLOSE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// A bus as it is configured.
pub fn builder(settings: &BusSettings, rules: Vec<TopicRule>) -> BusBuilder {
    Bus::builder()
        .limits(settings.limits)
        .memory_bytes(settings.memory_bytes)
        .topics(rules)
        .log(LogEngineOptions { log: settings.log.clone() })
}

/// Says where it serves: from now on it does.
pub fn announce(args: &ServeArgs, settings: &Settings, server: &Server) {
    let text = banner::text(settings, server.local_addrs(), args.demo);
    // A server whose stdout is closed serves all the same.
    let _ = stdout().write_all(text.as_bytes()).and_then(|()| stdout().flush());
    let addresses: Vec<String> = server.local_addrs().iter().map(ToString::to_string).collect();
    tracing::info!("serving on {}", addresses.join(", "));
}

/// Warns if the system does not allow as many open files as connections may need.
pub fn raise_descriptors(server: &Server) {
    let wanted = server.descriptors_wanted();
    match raise_descriptor_limit() {
        Ok(limit) if limit < wanted => tracing::warn!(
            "the system lets this process open {limit} files; {wanted} are needed for limits.max_connections: \
             raise the limit (ulimit -Hn, LimitNOFILE) or lower the setting"
        ),
        Ok(limit) => tracing::debug!(limit, "file descriptors"),
        Err(error) => tracing::warn!("cannot raise the limit of open files: {error}"),
    }
}

/// Why there is no bus, and what to do.
pub fn why_not_open(error: OpenError) -> String {
    match error {
        OpenError::Log(prombus_log::OpenError::Locked { folder }) => format!(
            "{folder} is in use by another prombus; stop that one, or name another folder with --data"
        ),
        OpenError::Log(prombus_log::OpenError::Io { folder, action, source }) => format!(
            "cannot use {folder} as the data folder ({action}: {}); name another with --data",
            io_reason(&source)
        ),
        other => one_line(&anyhow::Error::from(other)),
    }
}

/// Why it cannot listen, and what to do.
pub fn why_not_listen(error: ServeError) -> String {
    let ServeError::Listen { address, source } = &error else {
        return one_line(&anyhow::Error::from(error));
    };
    let why = match source.kind() {
        ErrorKind::AddrInUse => "another program does; stop it, or name another address with --listen",
        ErrorKind::AddrNotAvailable => "this machine has no such address; name another with --listen",
        ErrorKind::PermissionDenied => "the system refuses; name a port above 1023 with --listen",
        _ => return one_line(&anyhow::Error::from(error)),
    };
    format!("cannot listen on {address}: {why}")
}
