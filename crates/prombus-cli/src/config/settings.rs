//! Settings as validated: what the file, the environment and the flags say together, in the types of those who use them.

use super::access;
use super::checker::Checker;
use super::file::FileConfig;
use prombus::{Limits, TopicOptions, TopicRule};
use prombus_log::Options as LogOptions;
use prombus_server::{ServerOptions, TlsOptions};
use std::net::SocketAddr;
use std::path::PathBuf;
use tracing_subscriber::EnvFilter;

const DATA: &str = "./prombus-data";
const MEMORY_BYTES: u64 = 4 << 30;

/// Everything that `serve` needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The gateway's.
    pub server: ServerOptions,
    /// The bus's.
    pub bus: BusSettings,
    /// How to log.
    pub log: LogSettings,
}

/// Where events live, and its bounds.
#[derive(Clone, Debug)]
pub struct BusSettings {
    /// Which store.
    pub store: StoreChoice,
    /// Bounds of any store.
    pub limits: Limits,
    /// For the log.
    pub log: LogOptions,
    /// For the memory.
    pub memory_bytes: u64,
    /// What counts for topics.
    pub topics: Vec<TopicRule>,
}

/// Which store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// The log in a folder.
    Log(PathBuf),
    /// Memory.
    Memory,
}

/// How to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// What, in the syntax of tracing's filters.
    pub filter: String,
    /// As what.
    pub format: LogFormat,
}

/// What log lines look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// Checks a config and makes settings of it. What is wrong is in the checker then, and the settings are of no use.
pub fn settings(checker: &mut Checker, file: &FileConfig) -> Settings {
    let mut server = ServerOptions::default();
    if let Some(listen) = &file.listen {
        server.listen = addresses(checker, listen);
    }
    server.is_insecure = file.insecure.unwrap_or(server.is_insecure);
    server.tls = tls(checker, file);
    server.auth = access::auth(checker, &file.auth);
    http(checker, file, &mut server);
    connections(checker, file, &mut server);
    rates(checker, file, &mut server);
    checker.number(
        "metrics.max_labels",
        file.metrics.max_labels,
        1..=1_000_000,
        &mut server.metrics_labels_max,
    );
    let bus = bus(checker, file);
    server.max_payload_bytes = bus.limits.max_payload_bytes;
    Settings { server, bus, log: log(checker, file) }
}

fn addresses(checker: &mut Checker, listen: &[String]) -> Vec<SocketAddr> {
    if listen.is_empty() {
        checker.refuse("listen", "no address is given; e.g. 127.0.0.1:8090");
    }
    let mut addresses = Vec::new();
    for (at, text) in listen.iter().enumerate() {
        // Names are not resolved: what a name means may change, and with it who gets in.
        let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        match numeric.as_deref().unwrap_or(text).parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 && addresses.contains(&address) => {
                checker.refuse(format!("listen[{at}]"), format!("{text} is given twice"));
            }
            Ok(address) => addresses.push(address),
            Err(_) => {
                let how =
                    "expected an IP address and a port, e.g. 127.0.0.1:8090, 0.0.0.0:8090 or [::1]:8090";
                checker.refuse(format!("listen[{at}]"), format!("{text:?} is no address; {how}"));
            }
        }
    }
    addresses
}

fn tls(checker: &mut Checker, file: &FileConfig) -> Option<TlsOptions> {
    match (&file.tls.cert, &file.tls.key) {
        (Some(cert), Some(key)) => {
            checker.file("tls.cert", cert);
            checker.file("tls.key", key);
            let tls = TlsOptions { cert: PathBuf::from(cert), key: PathBuf::from(key) };
            if checker.problems.is_empty()
                && let Err(error) = prombus_server::check_tls(&tls)
            {
                checker.refuse("tls.cert", crate::one_line(&error.into()));
            }
            Some(tls)
        }
        (Some(_), None) => {
            checker.refuse("tls.cert", "the certificate's key is missing: give tls.key (--tls-key) too");
            None
        }
        (None, Some(_)) => {
            checker.refuse("tls.key", "the key's certificate is missing: give tls.cert (--tls-cert) too");
            None
        }
        (None, None) => None,
    }
}

fn http(checker: &mut Checker, file: &FileConfig, server: &mut ServerOptions) {
    for (at, host) in file.http.allowed_hosts.iter().enumerate() {
        let is_address = host.parse::<std::net::Ipv6Addr>().is_ok() || host.starts_with('[');
        if host.is_empty() || host.contains('/') || (host.contains(':') && !is_address) {
            let path = format!("http.allowed_hosts[{at}]");
            checker.refuse(
                path,
                format!("{host:?}: expected a name without scheme and port, e.g. bus.example.com"),
            );
        }
    }
    for (at, origin) in file.http.cors_origins.iter().enumerate() {
        let is_origin = origin
            .split_once("://")
            .is_some_and(|(scheme, host)| !scheme.is_empty() && !host.is_empty() && !host.contains('/'));
        if origin != "*" && !is_origin {
            let path = format!("http.cors_origins[{at}]");
            checker.refuse(
                path,
                format!("{origin:?}: expected an origin, e.g. https://app.example.com, or \"*\""),
            );
        }
    }
    server.allowed_hosts.clone_from(&file.http.allowed_hosts);
    server.cors_origins.clone_from(&file.http.cors_origins);
    server.has_permessage_deflate = file.http.permessage_deflate.unwrap_or(server.has_permessage_deflate);
    let body = &mut server.connections.max_body_bytes;
    checker.number("http.max_body_bytes", file.http.max_body_bytes, 1..=1 << 32, body);
    let rate = &mut server.connections.min_body_bytes_per_second;
    checker.number("http.min_body_bytes_per_second", file.http.min_body_bytes_per_second, 0..=1 << 20, rate);
    checker.duration("http.keep_alive_ms", file.http.keep_alive_ms, &mut server.connections.keep_alive);
}

fn connections(checker: &mut Checker, file: &FileConfig, server: &mut ServerOptions) {
    let (said, limits) = (&file.limits, &mut server.connections);
    let at_least_one = 1..=u64::from(u32::MAX);
    let bytes = 4096..=1 << 40;
    checker.number(
        "limits.max_connections",
        said.max_connections,
        at_least_one.clone(),
        &mut limits.max_connections,
    );
    checker.number(
        "limits.max_subscriptions",
        said.max_subscriptions,
        at_least_one,
        &mut limits.max_subscriptions,
    );
    checker.number(
        "limits.max_queued_bytes",
        said.max_queued_bytes,
        bytes.clone(),
        &mut limits.max_queued_bytes,
    );
    checker.number(
        "limits.max_buffered_bytes",
        said.max_buffered_bytes,
        bytes,
        &mut limits.max_buffered_bytes,
    );
    checker.duration("limits.auth_timeout_ms", said.auth_timeout_ms, &mut limits.auth_timeout);
    checker.duration("limits.ping_interval_ms", said.ping_interval_ms, &mut limits.ping_interval);
    checker.duration("limits.stall_timeout_ms", said.stall_timeout_ms, &mut limits.stall_timeout);
    checker.duration("limits.head_timeout_ms", said.head_timeout_ms, &mut limits.head_timeout);
    checker.duration("limits.drain_timeout_ms", said.drain_timeout_ms, &mut limits.drain_timeout);
}

fn rates(checker: &mut Checker, file: &FileConfig, server: &mut ServerOptions) {
    let said = &file.rate;
    server.rates.connection_publish = checker.rate(
        ("rate.connection_publish_per_second", said.connection_publish_per_second),
        ("rate.connection_publish_burst", said.connection_publish_burst),
    );
    server.rates.connection_deliver = checker.rate(
        ("rate.connection_deliver_per_second", said.connection_deliver_per_second),
        ("rate.connection_deliver_burst", said.connection_deliver_burst),
    );
}

/// `[[topic]]`: what counts for topics, the first that fits first.
fn topics(checker: &mut Checker, file: &FileConfig) -> Vec<TopicRule> {
    let mut rules = Vec::new();
    for (number, topic) in file.topic.iter().enumerate() {
        let path = format!("topic[{number}]");
        let Some(name) = checker.required(&path, "name", topic.name.as_ref()) else { continue };
        let options: TopicOptions = match topic.options.clone().try_into() {
            Ok(options) => options,
            Err(error) => {
                checker.refuse(path, error.message());
                continue;
            }
        };
        match TopicRule::new(name, options) {
            Ok(rule) => rules.push(rule),
            Err(error) => checker.refuse(format!("{path}.{}", error.name), error.why),
        }
    }
    rules
}

fn bus(checker: &mut Checker, file: &FileConfig) -> BusSettings {
    let mut limits = Limits::default();
    let said = &file.limits;
    let many = 1..=10_000_000;
    checker.number(
        "limits.max_payload_bytes",
        said.max_payload_bytes,
        1..=16 << 20,
        &mut limits.max_payload_bytes,
    );
    checker.number("limits.max_topics", said.max_topics, many.clone(), &mut limits.max_topics);
    checker.number("limits.max_groups", said.max_groups, many, &mut limits.max_groups);
    if said.group_expire_ms.is_some() {
        let mut after_ms = 0_u64;
        checker.number(
            "limits.group_expire_ms",
            said.group_expire_ms,
            1_000..=365 * 24 * 3_600_000,
            &mut after_ms,
        );
        limits.group_expire_ms = Some(after_ms);
    }
    let mut memory_bytes = MEMORY_BYTES;
    checker.number("storage.memory_bytes", file.storage.memory_bytes, 64 << 10..=u64::MAX, &mut memory_bytes);
    let state = &mut limits.state_memory_bytes;
    checker.number("limits.state_memory_bytes", said.state_memory_bytes, 1 << 20..=1 << 40, state);
    let topics = topics(checker, file);
    BusSettings { store: store(checker, file), limits, log: log_options(checker, file), memory_bytes, topics }
}

fn log_options(checker: &mut Checker, file: &FileConfig) -> LogOptions {
    let mut options = LogOptions::default();
    let said = &file.storage;
    let segment = 8 << 10..=1 << 31;
    let cache = 0..=1 << 40;
    checker.number("storage.segment_bytes", said.segment_bytes, segment.clone(), &mut options.segment_bytes);
    checker.number("storage.reserve_bytes", said.reserve_bytes, segment, &mut options.reserve_bytes);
    checker.number(
        "storage.prepared_segments",
        said.prepared_segments,
        1..=1_000,
        &mut options.prepared_segments,
    );
    checker.number("storage.tail_cache_bytes", said.tail_cache_bytes, cache.clone(), &mut options.tail_bytes);
    checker.number(
        "storage.index_cache_bytes",
        said.index_cache_bytes,
        cache,
        &mut options.index_cache_bytes,
    );
    let mut dedupe_ms = options.dedupe_ms.unsigned_abs();
    checker.number("storage.dedupe_ms", said.dedupe_ms, 0..=36_500 * 24 * 3_600_000, &mut dedupe_ms);
    options.dedupe_ms = i64::try_from(dedupe_ms).unwrap_or(i64::MAX);
    checker.number(
        "storage.checkpoint_bytes",
        said.checkpoint_bytes,
        1_024..=1 << 40,
        &mut options.checkpoint_bytes,
    );
    options
}

fn store(checker: &mut Checker, file: &FileConfig) -> StoreChoice {
    let data = file.data.as_deref().unwrap_or(DATA);
    if data.is_empty() {
        checker.refuse("data", "is empty");
    }
    // The rest of the URL may hold a password: it is not shown.
    match file.store.as_deref().unwrap_or("log:").split_once(':') {
        Some(("log", "")) => {}
        Some(("memory", "")) => return StoreChoice::Memory,
        Some((scheme @ ("mongodb" | "mongodb+srv" | "nats" | "tls"), _)) => {
            checker.refuse(
                "store",
                format!("this build has no store for {scheme}:; log: and memory: are there"),
            );
        }
        _ => checker.refuse("store", "there is no such store; expected log: or memory:"),
    }
    StoreChoice::Log(PathBuf::from(data))
}

fn log(checker: &mut Checker, file: &FileConfig) -> LogSettings {
    let filter = file.log.clone().unwrap_or_else(|| "info".to_owned());
    if let Err(error) = EnvFilter::builder().parse(&filter) {
        let how = "expected error, warn, info, debug, trace, or a filter like info,prombus_server=debug";
        checker.refuse("log", format!("{filter:?} is no filter ({error}); {how}"));
    }
    let format = match file.log_format.as_deref() {
        None | Some("text") => LogFormat::Text,
        Some("json") => LogFormat::Json,
        Some(other) => {
            checker.refuse("log_format", format!("{other:?}: text or json is allowed"));
            LogFormat::Text
        }
    };
    LogSettings { filter, format }
}
