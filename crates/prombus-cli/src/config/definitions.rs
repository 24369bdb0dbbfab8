//! Every setting, defined once. The config file is parsed and checked against this table; the environment variables, the
//! flags of `serve`, `prombus config default` and the reference in docs/operating.md are made of it.
//!
//! The rows are laid out by hand: two or three lines each. Defaults are those of the options that a field belongs to. The ranges of `[[topic]]` are those of
//! [`prombus::TopicOptions::check`], which also holds for topics that are set while the server runs.

use super::setting::{CHECKED_BY_SECTION, Field, Kind, Number, Setting};
use super::settings::Settings;
use std::ops::RangeInclusive;

/// A table of the config file.
pub struct Section {
    /// Its path; empty for the keys above all tables, `[]` at the end for a list of tables.
    pub path: &'static str,
    /// What is true of all its keys, above them in `prombus.toml`.
    pub doc: &'static str,
    /// A table that says something just by being there is an example in `prombus.toml`, with these lines.
    pub example: Option<&'static str>,
    /// Its keys.
    pub settings: &'static [Setting],
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Setting> {
    SECTIONS.iter().flat_map(|section| section.settings)
}

/// The tables, in the order of `prombus.toml`.
pub const SECTIONS: &[Section] = &[
    table("", "", SERVER),
    table("tls", "", TLS),
    table("http", "", HTTP),
    table("limits", "", LIMITS),
    table("rate", "Rates of one connection. A burst is how many may come at once.", RATE),
    Section { path: "topic[]", doc: TOPIC_DOC, example: Some(""), settings: TOPIC },
    Section {
        path: "topic[]",
        doc: "",
        example: Some("name = \"process.state\""),
        settings: COMPACTED_TOPIC,
    },
    table("storage", "", STORAGE),
    table("engine", "", ENGINE),
    table("mongodb", "For store = \"mongodb://…\".", MONGODB),
    table("metrics", "", METRICS),
    Section { path: "auth.token[]", doc: TOKEN_DOC, example: Some(""), settings: TOKEN },
    Section { path: "auth.jwt", doc: JWT_DOC, example: Some(""), settings: JWT },
    Section { path: "auth.rule[]", doc: RULE_DOC, example: Some(""), settings: RULE },
];

const TOPIC_DOC: &str = "Settings of a topic, or of all topics that a pattern matches. The first entry that matches a topic \
    applies, and no other. After a change: SIGHUP or a restart. What `prombus topic set` says about a single topic takes \
    precedence.";
const TOKEN_DOC: &str = "Tokens, kept as hashes: `prombus token new` makes one. As soon as there is a token (WS_TOKEN \
    counts) or [auth.jwt], every client needs one.";
const JWT_DOC: &str = "JSON Web Tokens: HS256 with a secret; RS256, ES256 and EdDSA with PEM files or a JWKS file. At least \
    one of them is needed. Scopes come from the claim scope or scopes.";
const RULE_DOC: &str = "Rules on top of scopes. The first rule that matches applies; where there are rules and none matches, \
    access is denied. An empty list matches anything.";

const DAY_MS: u64 = 24 * 3_600_000;
const SOME: RangeInclusive<u64> = 1..=u32::MAX as u64;
const MANY: RangeInclusive<u64> = 1..=10_000_000;
const BUFFER: RangeInclusive<u64> = 4096..=1 << 40;
const CACHE: RangeInclusive<u64> = 0..=1 << 40;
const SEGMENT: RangeInclusive<u64> = 8 << 10..=1 << 31;
const PER_SECOND: RangeInclusive<f64> = f64::MIN_POSITIVE..=1e9;
/// Below 1 nothing would ever pass.
const BURST: RangeInclusive<f64> = 1.0..=1e9;
const ANY_NUMBER: RangeInclusive<f64> = f64::NEG_INFINITY..=f64::INFINITY;

#[rustfmt::skip]
const SERVER: &[Setting] = &[
    texts("listen",
        "Where to listen, for WebSocket and HTTP. Addresses other than loopback need auth, or insecure = true.")
            .default("[\"127.0.0.1:8090\"]").flag("listen", "ADDR"),
    text("data", "The folder for events and groups.").default("\"./prombus-data\"").flag("data", "DIR"),
    text("store",
        "Where events live: \"log:\" (in the data folder), \"memory:\" (gone at exit), or a MongoDB database, which several \
         gateways can share: \"mongodb://…\", \"mongodb+srv://…\".")
            .default("\"log:\"").flag("store", "URL"),
    text("advertise",
        "With a database: where other gateways reach this one, as host:port. Required if it listens on all addresses of the \
         machine.").example("\"10.0.0.5:8090\"", "the first listen address").flag("advertise", "ADDR"),
    switch("relay_insecure", |s| &mut s.server.relay_insecure,
        "With a database: relay connections to a leader on another machine even if it serves without TLS. The network between \
         them can then read events and tokens.").flag("relay-insecure", ""),
    text("log",
        "What to log, to stderr: error, warn, info, debug, trace, or a filter like \"info,prombus_server=debug\".")
            .default("\"info\"").flag("log", "FILTER"),
    text("log_format", "The format of log lines: \"text\" or \"json\".").default("\"text\"").flag("log-format", "FORMAT"),
    switch("insecure", |s| &mut s.server.is_insecure,
        "Let other machines in although no auth is configured.").flag("insecure", ""),
];

#[rustfmt::skip]
const TLS: &[Setting] = &[
    text("tls.cert", "Certificate chain, in PEM. With it there is only wss and https.")
        .example("\"cert.pem\"", "no TLS").flag("tls-cert", "FILE"),
    text("tls.key", "Key of the certificate, in PEM.").example("\"key.pem\"", "no TLS").flag("tls-key", "FILE"),
];

#[rustfmt::skip]
const HTTP: &[Setting] = &[
    Setting::new("http.allowed_hosts", Kind::Texts, Field::Texts(|s| &mut s.server.allowed_hosts, is_host),
        "Names that a Host header may have when no auth is configured, besides loopback; without scheme and port."),
    Setting::new("http.cors_origins", Kind::Texts, Field::Texts(|s| &mut s.server.cors_origins, is_origin),
        "Origins whose pages may use the gateway, e.g. \"https://app.example.com\"; \"*\" is any."),
    switch("http.permessage_deflate", |s| &mut s.server.has_permessage_deflate,
        "Offer WebSocket clients to compress messages (permessage-deflate). Saves bandwidth, costs CPU for each message."),
    whole("http.max_body_bytes", 1..=1 << 32, |s| &mut s.server.connections.max_body_bytes, "The largest body of a request."),
    whole("http.min_body_bytes_per_second", 0..=1 << 20, |s| &mut s.server.connections.min_body_bytes_per_second,
        "The lowest rate of a request's body, over 10 s in which the server waits for the client; 0 turns the limit off."),
    time("http.keep_alive_ms", |s| &mut s.server.connections.keep_alive,
        "How long a connection may be idle between two requests. Keep it above the idle timeout of a proxy in front."),
];

#[rustfmt::skip]
const LIMITS: &[Setting] = &[
    whole("limits.max_connections", SOME, |s| &mut s.server.connections.max_connections,
        "Connections at a time; further ones are closed at once."),
    whole("limits.max_subscriptions", SOME, |s| &mut s.server.connections.max_subscriptions,
        "Subscriptions of one connection."),
    whole("limits.max_queued_bytes", BUFFER, |s| &mut s.server.connections.max_queued_bytes,
        "Bytes that wait to be sent on one WebSocket before it gets no more events and is not read."),
    whole("limits.max_buffered_bytes", BUFFER, |s| &mut s.server.connections.max_buffered_bytes,
        "Bytes that all connections together may have in buffers."),
    whole("limits.max_payload_bytes", 1..=16 << 20, |s| &mut s.bus.limits.max_payload_bytes,
        "The largest payload of an event, up to 16 MiB."),
    whole("limits.max_topics", MANY, |s| &mut s.bus.limits.max_topics, "Topics that may exist."),
    whole("limits.max_groups", MANY, |s| &mut s.bus.limits.max_groups, "Groups that may exist."),
    whole("limits.group_expire_ms", 1_000..=365 * DAY_MS, |s| &mut s.bus.limits.group_expire_ms,
        "A group that had no members for this long is deleted.").example("604_800_000", "never"),
    whole("limits.state_memory_bytes", 1 << 20..=1 << 40, |s| &mut s.bus.limits.state_memory_bytes,
        "Memory for the newest events by key of all topics together: keys, and where their events are."),
    time("limits.auth_timeout_ms", |s| &mut s.server.connections.auth_timeout, "How long a client has for AUTH."),
    time("limits.ping_interval_ms", |s| &mut s.server.connections.ping_interval,
        "How often a WebSocket is pinged; one that has not answered by the next ping is closed."),
    time("limits.stall_timeout_ms", |s| &mut s.server.connections.stall_timeout,
        "A client that takes nothing for this long although data waits is closed; so is one that sends only a part of a \
         frame in this time."),
    time("limits.head_timeout_ms", |s| &mut s.server.connections.head_timeout,
        "How long the head of a request, the next piece of its body, or a TLS handshake may take."),
    time("limits.drain_timeout_ms", |s| &mut s.server.connections.drain_timeout,
        "How long clients have to disconnect when the server stops."),
];

#[rustfmt::skip]
const RATE: &[Setting] = &[
    number("rate.connection_publish_per_second", PER_SECOND,
        "Publishes. Further ones are refused with rate_limited and a time to wait.").example("200", "no limit"),
    number("rate.connection_publish_burst", BURST, "Publishes at once.").example("200", "as many as in a second"),
    number("rate.connection_deliver_per_second", PER_SECOND,
        "Events that are sent. Further ones wait; none is dropped.").example("200", "no limit"),
    number("rate.connection_deliver_burst", BURST, "Events at once.").example("200", "as many as in a second"),
];

#[rustfmt::skip]
const TOPIC: &[Setting] = &[
    text("topic[].name", "A topic or a pattern.").example("\"orders.*\"", "required"),
    number("topic[].retention_days", ANY_NUMBER, "How long events are kept, from their commit.").example("3", "indefinitely"),
    section_whole("topic[].retention_bytes", CHECKED_BY_SECTION,
        "Bytes on disk, approximately, that the newest events may take; older ones go.").example("1_073_741_824", "no limit"),
    section_whole("topic[].max_attempts", CHECKED_BY_SECTION,
        "Attempts after which a group gives an event up, unless its members say otherwise.").example("5", "5"),
    number("topic[].publish_rate", ANY_NUMBER,
        "Publishes per second to the topic over the gateway, from all clients together. Each topic that matches has the rate \
         for itself.").example("1000", "no limit"),
    number("topic[].publish_burst", ANY_NUMBER, "Publishes at once.").example("1000", "as many as in a second"),
];

#[rustfmt::skip]
const COMPACTED_TOPIC: &[Setting] = &[
    Setting::new("topic[].compaction", Kind::Switch, Field::Section,
        "Keep only the newest event of each key. An event whose payload is null deletes its key.").example("true", "false"),
    section_whole("topic[].tombstone_ms", CHECKED_BY_SECTION,
        "How long the deletion of a key is kept.").example("86_400_000", "a day"),
    section_whole("topic[].snapshot_interval_ms", CHECKED_BY_SECTION,
        "How often the keys of a compacted topic that changed are published to its snapshot topic; 0: never.")
            .example("30_000", "30 s"),
    text("topic[].snapshot_topic", "The snapshot topic.").example("\"process.state.snapshot\"", "`<name>.snapshot`"),
    section_whole("topic[].retention_ms", CHECKED_BY_SECTION,
        "Retention in milliseconds, in place of retention_days.").example("31_536_000_000", "indefinitely"),
];

#[rustfmt::skip]
const STORAGE: &[Setting] = &[
    whole("storage.segment_bytes", SEGMENT, |s| &mut s.bus.log.segment_bytes,
        "Size of a file of the log. A change applies to new files."),
    whole("storage.dedupe_ms", 0..=36_500 * DAY_MS, |s| &mut s.bus.log.dedupe_ms,
        "How long publishers' ids are known after their events were cleaned away: a repeated publish adds nothing."),
    whole("storage.reserve_bytes", SEGMENT, |s| &mut s.bus.log.reserve_bytes,
        "Size of the file that is held back for a full disk."),
    whole("storage.prepared_segments", 1..=1_000, |s| &mut s.bus.log.prepared_segments,
        "Files that are prepared ahead of need; more for long bursts."),
    whole("storage.tail_cache_bytes", CACHE, |s| &mut s.bus.log.tail_bytes,
        "Memory for the newest events of all topics together, for live readers."),
    whole("storage.index_cache_bytes", CACHE, |s| &mut s.bus.log.index_cache_bytes,
        "Memory for index tables of older files."),
    whole("storage.checkpoint_bytes", 1_024..=1 << 40, |s| &mut s.bus.log.checkpoint_bytes,
        "A checkpoint is written after this much log: a smaller value starts faster after a crash."),
    whole("storage.memory_bytes", 64 << 10..=u64::MAX, |s| &mut s.bus.memory_bytes,
        "Memory for events with store = \"memory:\". One publish may take an eighth of it (2 MiB where that is more, but at \
         most half)."),
];

#[rustfmt::skip]
const ENGINE: &[Setting] = &[
    time("engine.wait_ms", |s| &mut s.bus.limits.engine_wait_ms,
        "How long publishers, and new connections at a follower, wait while the database cannot be reached or nobody leads it; \
         then they get unavailable."),
];

#[rustfmt::skip]
const MONGODB: &[Setting] = &[
    text("mongodb.database",
        "The database.").example("\"prombus\"", "the one in the URL, else prombus"),
    text("mongodb.prefix", "Names of collections begin with this.").default("\"\""),
    switch("mongodb.readable", |s| &mut s.bus.mongodb.readable,
        "Store payloads as BSON too, for queries; costs room and some throughput."),
    text("mongodb.write_concern",
        "When a commit counts: \"majority\", a number of members in quotes, or the name of a custom write concern.")
            .default("\"majority\""),
];

#[rustfmt::skip]
const METRICS: &[Setting] = &[
    whole("metrics.max_labels", 1..=1_000_000, |s| &mut s.server.metrics_labels_max,
        "Topics and groups that metrics name; the rest is summed under \"_other\"."),
];

#[rustfmt::skip]
const TOKEN: &[Setting] = &[
    text("auth.token[].name", "The name in logs, rules and metrics.").example("\"billing\"", "required"),
    text("auth.token[].hash", "The hash of the token.")
        .example("\"sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\"", "required"),
    texts("auth.token[].scopes",
        "What the token allows: publish:<pattern>, subscribe:<pattern>, admin. Dead letters (dlq.…) need a pattern that \
         begins with dlq.").example("[\"publish:invoices.**\", \"subscribe:orders.**\"]", "required"),
];

#[rustfmt::skip]
const JWT: &[Setting] = &[
    text("auth.jwt.secret",
        "The secret for HS256, at least 32 bytes.").example("\"change me: at least 32 bytes, from a random source\"", "none"),
    texts("auth.jwt.pem_files", "Public keys in PEM.").example("[\"issuer.pem\"]", "none"),
    text("auth.jwt.jwks_file", "A JSON Web Key Set.").example("\"jwks.json\"", "none"),
    text("auth.jwt.issuer", "What the claim iss must be.").example("\"https://login.example.com\"", "not checked"),
    text("auth.jwt.audience", "What the claim aud must be.").example("\"prombus\"", "not checked"),
    section_whole("auth.jwt.leeway_ms", 0..=3_600_000, "By how much clocks may differ.").example("30_000", "30 s"),
];

#[rustfmt::skip]
const RULE: &[Setting] = &[
    text("auth.rule[].effect", "\"allow\" or \"deny\".").example("\"allow\"", "required"),
    texts("auth.rule[].subjects",
        "Names of tokens, or sub of JWTs. \"*\" matches any characters.").example("[\"billing\"]", "any"),
    texts("auth.rule[].actions", "\"publish\", \"subscribe\".").example("[\"subscribe\"]", "any"),
    texts("auth.rule[].topics", "Patterns.").example("[\"orders.**\"]", "any"),
    texts("auth.rule[].groups", "Names of groups. \"*\" matches any characters.").example("[\"billing-*\"]", "any"),
];

const fn table(path: &'static str, doc: &'static str, settings: &'static [Setting]) -> Section {
    Section { path, doc, example: None, settings }
}

const fn text(path: &'static str, doc: &'static str) -> Setting {
    Setting::new(path, Kind::Text, Field::Section, doc)
}

const fn texts(path: &'static str, doc: &'static str) -> Setting {
    Setting::new(path, Kind::Texts, Field::Section, doc)
}

/// A number whose section reads it.
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

/// Up to a day: longer than any of these times makes sense.
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
