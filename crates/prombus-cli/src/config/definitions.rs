//! Defines every setting once. The config file is checked against these tables. The environment variables, the flags of `serve`,
//! `prombus config default` and the reference in docs/operating.md are generated from them or compared with them.
//!
//! The default of a setting is the default of its field. The ranges of `[[topic]]` are checked by
//! [`prombus::TopicOptions::check`], which also checks the settings of `prombus topic set`. The rows are formatted by hand.

use super::setting::{CHECKED_BY_SECTION, Field, Kind, Number, Setting};
use super::settings::Settings;
use std::ops::RangeInclusive;

/// A table of the config file.
pub struct Section {
    /// Its path. Empty for the keys above all tables; ends with `[]` for a list of tables.
    pub path: &'static str,
    /// A comment on the whole table, above its keys in `prombus.toml`.
    pub doc: &'static str,
    /// Set for a table whose mere presence has an effect: `prombus.toml` shows it as a commented-out example, with these lines.
    pub example: Option<&'static str>,
    /// Whether SIGHUP reloads all of its keys.
    pub is_reloaded: bool,
    /// Its keys.
    pub settings: &'static [Setting],
}

/// All settings.
pub fn all() -> impl Iterator<Item = &'static Setting> {
    SECTIONS.iter().flat_map(|section| section.settings)
}

/// All settings, each with whether SIGHUP reloads it.
pub fn all_with_reload() -> impl Iterator<Item = (&'static Setting, bool)> {
    SECTIONS.iter().flat_map(|section| {
        section.settings.iter().map(|setting| (setting, section.is_reloaded || setting.is_reloaded))
    })
}

/// The tables, in the order of `prombus.toml`.
pub const SECTIONS: &[Section] = &[
    table("", "", SERVER),
    Section { is_reloaded: true, ..table("tls", "", TLS) },
    table("http", "", HTTP),
    table("limits", "", LIMITS),
    Section { is_reloaded: true, ..table("rate", RATE_DOC, RATE) },
    Section { path: "topic[]", doc: TOPIC_DOC, example: Some(""), is_reloaded: true, settings: TOPIC },
    Section {
        path: "topic[]",
        doc: "",
        example: Some("name = \"process.state\""),
        is_reloaded: true,
        settings: COMPACTED_TOPIC,
    },
    table("storage", "", STORAGE),
    table("engine", "", ENGINE),
    table("mongodb", "Used only with store = \"mongodb://…\".", MONGODB),
    table("metrics", "", METRICS),
    Section { path: "auth.token[]", doc: TOKEN_DOC, example: Some(""), is_reloaded: true, settings: TOKEN },
    Section { path: "auth.jwt", doc: JWT_DOC, example: Some(""), is_reloaded: true, settings: JWT },
    Section { path: "auth.rule[]", doc: RULE_DOC, example: Some(""), is_reloaded: true, settings: RULE },
];

const RATE_DOC: &str = "Rate limits, for each connection separately. A burst is the number of publishes or events that are \
    allowed at once.";
const TOPIC_DOC: &str = "Settings of a topic, or of all topics that match a pattern. Only the first entry that matches a topic \
    applies. `prombus topic set` changes settings of a single topic, \
    which take precedence.";
const TOKEN_DOC: &str = "Tokens, stored as hashes: `prombus token new` creates one. If any token (WS_TOKEN included) or \
    [auth.jwt] is configured, every client needs a token.";
const JWT_DOC: &str = "JSON Web Tokens: HS256 with a secret; RS256, ES256 and EdDSA with PEM files or a JWKS file. At least \
    one of these keys is required. Scopes come from the claim scope or scopes.";
const RULE_DOC: &str = "Rules restrict publishing and reading further than scopes do. The first rule that matches applies; if \
    there are rules and none matches, access is denied. An empty list matches anything. Rules do not restrict the scope \
    admin.";

const DAY_MS: u64 = 24 * 3_600_000;
const SOME: RangeInclusive<u64> = 1..=u32::MAX as u64;
const MANY: RangeInclusive<u64> = 1..=10_000_000;
const BUFFER: RangeInclusive<u64> = 4096..=1 << 40;
const CACHE: RangeInclusive<u64> = 0..=1 << 40;
const SEGMENT: RangeInclusive<u64> = 8 << 10..=1 << 31;
const PER_SECOND: RangeInclusive<f64> = f64::MIN_POSITIVE..=1e9;
/// A burst below 1 would let nothing pass.
const BURST: RangeInclusive<f64> = 1.0..=1e9;
const ANY_NUMBER: RangeInclusive<f64> = f64::NEG_INFINITY..=f64::INFINITY;

#[rustfmt::skip]
const SERVER: &[Setting] = &[
    texts("listen",
        "Addresses to listen on, for WebSocket and HTTP. Addresses other than loopback need auth, or insecure = true.")
            .default("[\"127.0.0.1:8090\"]").flag("listen", "ADDR"),
    text("data", "Folder for events and group state.").default("\"./prombus-data\"").flag("data", "DIR"),
    text("store",
        "Where events are stored: \"log:\" (in the data folder), \"memory:\" (lost at exit), or a MongoDB database, \
         which several servers, called gateways, can share: \"mongodb://…\" or \"mongodb+srv://…\".")
            .default("\"log:\"").flag("store", "URL"),
    text("advertise",
        "With MongoDB: the address (host:port) at which other gateways reach this one. Required if the server listens on \
         all addresses of the machine.").example("\"10.0.0.5:8090\"", "the first listen address").flag("advertise", "ADDR"),
    switch("relay_insecure", |s| &mut s.server.relay_insecure,
        "With MongoDB: relay connections to a leader on another machine even if that leader has no TLS. Anyone on the \
         network between them can then read events and tokens.").flag("relay-insecure", ""),
    text("log", "What to log to stderr: error, warn, info, debug, trace, or a filter such as \"info,prombus_server=debug\".")
            .default("\"info\"").flag("log", "FILTER"),
    text("log_format", "Format of log lines: \"text\" or \"json\".").default("\"text\"").flag("log-format", "FORMAT"),
    switch("insecure", |s| &mut s.server.is_insecure,
        "Allow other machines to connect although no auth is configured.").flag("insecure", ""),
];

#[rustfmt::skip]
const TLS: &[Setting] = &[
    text("tls.cert", "File with the certificate chain, in PEM. If set, the server accepts only wss and https.")
        .example("\"cert.pem\"", "no TLS").flag("tls-cert", "FILE"),
    text("tls.key",
        "File with the private key of the certificate, in PEM. May be the same file as tls.cert.")
            .example("\"key.pem\"", "no TLS").flag("tls-key", "FILE"),
];

#[rustfmt::skip]
const HTTP: &[Setting] = &[
    Setting::new("http.allowed_hosts", Kind::Texts, Field::Texts(|s| &mut s.server.allowed_hosts, is_host),
        "Host names, besides loopback, that the Host header of a request may contain while no auth is configured; \
         without scheme and port.").reloaded(),
    Setting::new("http.cors_origins", Kind::Texts, Field::Texts(|s| &mut s.server.cors_origins, is_origin),
        "Origins of web pages that may use the server, e.g. \"https://app.example.com\"; \"*\" allows any.").reloaded(),
    switch("http.permessage_deflate", |s| &mut s.server.has_permessage_deflate,
        "Offer compression (permessage-deflate) to WebSocket clients. Saves bandwidth, costs CPU for each message."),
    whole("http.max_body_bytes", 1..=1 << 32, |s| &mut s.server.connections.max_body_bytes,
        "Maximum size of a request body, before and after decompression."),
    whole("http.min_body_bytes_per_second", 0..=1 << 20, |s| &mut s.server.connections.min_body_bytes_per_second,
        "Minimum rate at which a request body must arrive, averaged over 10 s; time in which the server does not read is \
         not counted. A slower body is refused with HTTP 408. 0 disables the limit."),
    time("http.keep_alive_ms", |s| &mut s.server.connections.keep_alive,
        "How long a connection may be idle between two requests. Must be longer than the idle timeout of a proxy in \
         front of the server."),
];

#[rustfmt::skip]
const LIMITS: &[Setting] = &[
    whole("limits.max_connections", SOME, |s| &mut s.server.connections.max_connections,
        "Maximum number of open connections. Further ones are closed at once."),
    whole("limits.max_subscriptions", SOME, |s| &mut s.server.connections.max_subscriptions,
        "Maximum number of subscriptions per connection. Further ones are refused with limit_reached."),
    whole("limits.max_queued_bytes", BUFFER, |s| &mut s.server.connections.max_queued_bytes,
        "Maximum bytes queued for sending on one WebSocket. When half of it is queued, the server sends no more events \
         to the client; when all of it is queued, the server also stops reading from the client."),
    whole("limits.max_buffered_bytes", BUFFER, |s| &mut s.server.connections.max_buffered_bytes,
        "Maximum bytes in the buffers of all connections together. At the limit, the server reads from and sends to \
         WebSockets more slowly. A request body over 64 KiB waits for 2 s, then is refused with unavailable."),
    whole("limits.max_payload_bytes", 1..=16 << 20, |s| &mut s.bus.limits.max_payload_bytes,
        "Maximum size of an event's payload; the highest value is 16 MiB. Larger payloads are refused with too_large."),
    whole("limits.max_topics", MANY, |s| &mut s.bus.limits.max_topics,
        "Maximum number of topics. Further ones are refused with limit_reached."),
    whole("limits.max_groups", MANY, |s| &mut s.bus.limits.max_groups,
        "Maximum number of groups. Further ones are refused with limit_reached."),
    whole("limits.group_expire_ms", 1_000..=365 * DAY_MS, |s| &mut s.bus.limits.group_expire_ms,
        "Delete a group that has had no members for this long.").example("604_800_000", "never"),
    whole("limits.state_memory_bytes", 1 << 20..=1 << 40, |s| &mut s.bus.limits.state_memory_bytes,
        "Maximum memory for the state by key of all topics together: the keys, and the positions of their newest events. \
         A topic whose keys would exceed it is not compacted, and requests for its state are refused with limit_reached."),
    time("limits.auth_timeout_ms", |s| &mut s.server.connections.auth_timeout,
        "How long a WebSocket client has to authenticate. Then its connection is closed."),
    time("limits.ping_interval_ms", |s| &mut s.server.connections.ping_interval,
        "Interval at which the server pings a WebSocket client. If the client sends nothing from one ping to the next, its \
         connection is closed."),
    time("limits.stall_timeout_ms", |s| &mut s.server.connections.stall_timeout,
        "A client's connection is closed if the client reads nothing for this long while data is waiting, or if it does not \
         complete a WebSocket frame within this time."),
    time("limits.head_timeout_ms", |s| &mut s.server.connections.head_timeout,
        "How long a request's head or a TLS handshake may take before the connection is closed, and how long the next piece \
         of a request body may take before the request is refused with HTTP 408."),
    time("limits.drain_timeout_ms", |s| &mut s.server.connections.drain_timeout,
        "How long clients have to disconnect when the server stops. Then their connections are dropped."),
];

#[rustfmt::skip]
const RATE: &[Setting] = &[
    number("rate.connection_publish_per_second", PER_SECOND,
        "Publishes per second. Further publishes are refused with rate_limited and a time to wait.").example("200", "no limit"),
    number("rate.connection_publish_burst", BURST, "Publishes allowed at once.")
        .example("200", "as many as the rate allows in one second"),
    number("rate.connection_deliver_per_second", PER_SECOND,
        "Events sent per second. Further events wait; none is dropped.").example("200", "no limit"),
    number("rate.connection_deliver_burst", BURST, "Events that may be sent at once.")
        .example("200", "as many as the rate allows in one second"),
];

#[rustfmt::skip]
const TOPIC: &[Setting] = &[
    text("topic[].name", "A topic or a pattern.").example("\"orders.*\"", "required"),
    number("topic[].retention_days", ANY_NUMBER,
        "How many days events are kept, counted from their commit.").example("3", "indefinitely"),
    section_whole("topic[].retention_bytes", CHECKED_BY_SECTION,
        "Approximate maximum size of the events on disk. The oldest are deleted first.").example("1_073_741_824", "no limit"),
    section_whole("topic[].max_attempts", CHECKED_BY_SECTION,
        "Failed delivery attempts after which a group gives up an event and publishes a dead letter. Members can set \
         another number when they subscribe.").example("5", "5"),
    number("topic[].publish_rate", ANY_NUMBER,
        "Publishes per second to the topic, from all clients together. Further publishes are refused with rate_limited. Each \
         topic that matches a pattern has its own limit.").example("1000", "no limit"),
    number("topic[].publish_burst", ANY_NUMBER, "Publishes allowed at once.")
        .example("1000", "as many as the rate allows in one second"),
];

#[rustfmt::skip]
const COMPACTED_TOPIC: &[Setting] = &[
    Setting::new("topic[].compaction", Kind::Switch, Field::Section,
        "Keep only the newest event of each key. An event whose payload is null deletes its key.").example("true", "false"),
    section_whole("topic[].tombstone_ms", CHECKED_BY_SECTION,
        "How long a tombstone, the event that deletes a key, is kept.").example("86_400_000", "a day"),
    section_whole("topic[].snapshot_interval_ms", CHECKED_BY_SECTION,
        "How often the changed keys of a compacted topic are published to its snapshot topic; 0 disables snapshots.")
            .example("30_000", "30 s"),
    text("topic[].snapshot_topic", "The snapshot topic.").example("\"process.state.snapshot\"", "`<name>.snapshot`"),
    section_whole("topic[].retention_ms", CHECKED_BY_SECTION,
        "Retention in milliseconds, instead of retention_days.").example("31_536_000_000", "indefinitely"),
];

#[rustfmt::skip]
const STORAGE: &[Setting] = &[
    whole("storage.segment_bytes", SEGMENT, |s| &mut s.bus.log.segment_bytes,
        "Size of a log file (segment). A new log starts with 2 MiB, and each file is twice as large as the one before, up to \
         this size. A change applies to new files."),
    whole("storage.dedupe_ms", 0..=36_500 * DAY_MS, |s| &mut s.bus.log.dedupe_ms,
        "How long an id that a publisher chose is remembered after retention or compaction deleted its event. A publish \
         with a remembered id adds nothing."),
    whole("storage.reserve_bytes", SEGMENT, |s| &mut s.bus.log.reserve_bytes,
        "Size of each of the two log files that are reserved for acks and other group state on a full disk."),
    whole("storage.prepared_segments", 1..=1_000, |s| &mut s.bus.log.prepared_segments,
        "Number of log files that are prepared ahead of need. Increase it for long bursts."),
    whole("storage.tail_cache_bytes", CACHE, |s| &mut s.bus.log.tail_bytes,
        "Memory for the newest events of all topics together, from which live consumers read."),
    whole("storage.index_cache_bytes", CACHE, |s| &mut s.bus.log.index_cache_bytes,
        "Memory for the index tables of older log files."),
    whole("storage.checkpoint_bytes", 1_024..=1 << 40, |s| &mut s.bus.log.checkpoint_bytes,
        "Write a checkpoint (the state of topics and groups) after this many bytes of log. A smaller value shortens the start \
         after a crash."),
    whole("storage.memory_bytes", 64 << 10..=u64::MAX, |s| &mut s.bus.memory_bytes,
        "Maximum memory for events with store = \"memory:\". At the limit, publishes are refused with \
         storage_full. Indexes, remembered ids, compaction and a reserve for group state need additional memory, which the \
         limit does not include: up to 80 MiB plus an eighth of the limit. A single publish may take at most an \
         eighth of the limit and at most 64 MiB (more than an eighth if the limit is below 16 MiB)."),
];

#[rustfmt::skip]
const ENGINE: &[Setting] = &[
    time("engine.wait_ms", |s| &mut s.bus.limits.engine_wait_ms,
        "With MongoDB: how long publishers, and new connections to a follower, wait while the database cannot be reached \
         or no gateway leads. Then they are refused with unavailable."),
];

#[rustfmt::skip]
const MONGODB: &[Setting] = &[
    text("mongodb.database", "Name of the database.").example("\"prombus\"", "the one in the URL, or prombus"),
    text("mongodb.prefix", "Prefix of the names of collections.").default("\"\""),
    switch("mongodb.readable", |s| &mut s.bus.mongodb.readable,
        "Also store payloads as BSON, so that queries can use their fields. Costs space and some throughput."),
    text("mongodb.write_concern",
        "How many replica set members must have a commit before it counts as durable: \"majority\", a number in quotes, such \
         as \"2\", or the name of a custom write concern.")
            .default("\"majority\""),
];

#[rustfmt::skip]
const METRICS: &[Setting] = &[
    whole("metrics.max_labels", 1..=1_000_000, |s| &mut s.server.metrics_labels_max,
        "Maximum number of topics, of groups and of members that have their own labels in metrics. The others are summed \
         under \"_other\"."),
];

#[rustfmt::skip]
const TOKEN: &[Setting] = &[
    text("auth.token[].name", "Name of the token in logs, rules and metrics.").example("\"billing\"", "required"),
    text("auth.token[].hash", "Hash of the token, as `prombus token new` or `prombus token hash` prints it.")
        .example("\"sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\"", "required"),
    texts("auth.token[].scopes",
        "What the token allows: publish:<pattern>, subscribe:<pattern>, admin. Dead letters (topics dlq.…) need a \
         pattern that begins with dlq.").example("[\"publish:invoices.**\", \"subscribe:orders.**\"]", "required"),
];

#[rustfmt::skip]
const JWT: &[Setting] = &[
    text("auth.jwt.secret",
        "Secret for HS256, at least 32 bytes.").example("\"change me: at least 32 bytes, from a random source\"", "none"),
    texts("auth.jwt.pem_files", "Files with public keys, in PEM.").example("[\"issuer.pem\"]", "none"),
    text("auth.jwt.jwks_file", "File with a JSON Web Key Set.").example("\"jwks.json\"", "none"),
    text("auth.jwt.issuer", "Required value of the claim iss.").example("\"https://login.example.com\"", "not checked"),
    text("auth.jwt.audience", "Required value of the claim aud.").example("\"prombus\"", "not checked"),
    section_whole("auth.jwt.leeway_ms", 0..=3_600_000, "Tolerated difference between the clocks of the issuer and the server.")
        .example("30_000", "30 s"),
];

#[rustfmt::skip]
const RULE: &[Setting] = &[
    text("auth.rule[].effect", "\"allow\" or \"deny\".").example("\"allow\"", "required"),
    texts("auth.rule[].subjects",
        "Names of tokens, or values of the claim sub of JWTs. \"*\" matches any characters.").example("[\"billing\"]", "any"),
    texts("auth.rule[].actions", "What the rule is about: \"publish\", \"subscribe\".").example("[\"subscribe\"]", "any"),
    texts("auth.rule[].topics", "Topics or patterns.").example("[\"orders.**\"]", "any"),
    texts("auth.rule[].groups", "Names of groups. \"*\" matches any characters.").example("[\"billing-*\"]", "any"),
];

const fn table(path: &'static str, doc: &'static str, settings: &'static [Setting]) -> Section {
    Section { path, doc, example: None, is_reloaded: false, settings }
}

const fn text(path: &'static str, doc: &'static str) -> Setting {
    Setting::new(path, Kind::Text, Field::Section, doc)
}

const fn texts(path: &'static str, doc: &'static str) -> Setting {
    Setting::new(path, Kind::Texts, Field::Section, doc)
}

/// A whole number that the parser of its section reads.
const fn section_whole(path: &'static str, range: RangeInclusive<u64>, doc: &'static str) -> Setting {
    Setting::new(path, Kind::Whole(range), Field::Section, doc)
}

const fn number(path: &'static str, range: RangeInclusive<f64>, doc: &'static str) -> Setting {
    Setting::new(path, Kind::Number(range), Field::Section, doc)
}

const fn switch(path: &'static str, field: fn(&mut Settings) -> &mut bool, doc: &'static str) -> Setting {
    Setting::new(path, Kind::Switch, Field::Switch(field), doc)
}

const fn whole(
    path: &'static str,
    range: RangeInclusive<u64>,
    place: fn(&mut Settings) -> &mut dyn Number,
    doc: &'static str,
) -> Setting {
    Setting::new(path, Kind::Whole(range), Field::Number(place), doc)
}

/// A time in milliseconds, up to a day.
const fn time(path: &'static str, place: fn(&mut Settings) -> &mut dyn Number, doc: &'static str) -> Setting {
    whole(path, 1..=DAY_MS, place, doc)
}

fn is_host(host: &str) -> Result<(), &'static str> {
    let is_address = host.parse::<std::net::Ipv6Addr>().is_ok() || host.starts_with('[');
    let is_bad = host.is_empty() || host.contains('/') || (host.contains(':') && !is_address);
    if is_bad { Err("a name without scheme and port, e.g. bus.example.com") } else { Ok(()) }
}

fn is_origin(origin: &str) -> Result<(), &'static str> {
    let is_good = origin
        .split_once("://")
        .is_some_and(|(scheme, host)| !scheme.is_empty() && !host.is_empty() && !host.contains('/'));
    if is_good || origin == "*" { Ok(()) } else { Err("an origin, e.g. https://app.example.com, or \"*\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_settings_share_a_variable_or_a_path() {
        let mut names: Vec<_> = all().filter_map(Setting::variable).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.contains(&"PROMBUS_LIMITS_MAX_CONNECTIONS".to_owned()));
        let paths: std::collections::BTreeSet<_> = all().map(|setting| setting.path).collect();
        assert_eq!(paths.len(), all().count());
    }

    #[test]
    fn every_setting_is_in_its_table() {
        for section in SECTIONS {
            for setting in section.settings {
                let expected = match section.path {
                    "" => setting.key().to_owned(),
                    table => format!("{table}.{}", setting.key()),
                };
                assert_eq!(setting.path, expected);
                assert!(setting.doc.ends_with('.'), "{}", setting.path);
            }
        }
    }
}
