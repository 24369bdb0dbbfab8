//! The keys of the config: their paths and what kind of value each takes. Whatever is about all keys (unknown ones, types,
//! environment variables, the nearest name) works from this list; a test holds it against `prombus.toml`.

/// What kind of value a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `"text"`
    Text,
    /// `["text", …]`
    Texts,
    /// A whole number, not below zero.
    Whole,
    /// Any number.
    Number,
    /// `true` or `false`
    Flag,
}

impl Kind {
    /// What to write, for messages.
    pub fn expected(self) -> &'static str {
        match self {
            Self::Text => "a text in quotes",
            Self::Texts => "a list of texts, e.g. [\"one\", \"two\"]",
            Self::Whole => "a whole number, not below zero",
            Self::Number => "a number",
            Self::Flag => "true or false",
        }
    }
}

/// Every key. `[]` marks a list of tables.
pub const KEYS: &[(&str, Kind)] = &[
    ("listen", Kind::Texts),
    ("data", Kind::Text),
    ("store", Kind::Text),
    ("log", Kind::Text),
    ("log_format", Kind::Text),
    ("insecure", Kind::Flag),
    ("tls.cert", Kind::Text),
    ("tls.key", Kind::Text),
    ("http.allowed_hosts", Kind::Texts),
    ("http.cors_origins", Kind::Texts),
    ("http.permessage_deflate", Kind::Flag),
    ("http.max_body_bytes", Kind::Whole),
    ("http.min_body_bytes_per_second", Kind::Whole),
    ("http.keep_alive_ms", Kind::Whole),
    ("limits.max_connections", Kind::Whole),
    ("limits.max_subscriptions", Kind::Whole),
    ("limits.max_queued_bytes", Kind::Whole),
    ("limits.max_buffered_bytes", Kind::Whole),
    ("limits.max_payload_bytes", Kind::Whole),
    ("limits.max_topics", Kind::Whole),
    ("limits.max_groups", Kind::Whole),
    ("limits.group_expire_ms", Kind::Whole),
    ("limits.state_memory_bytes", Kind::Whole),
    ("limits.auth_timeout_ms", Kind::Whole),
    ("limits.ping_interval_ms", Kind::Whole),
    ("limits.stall_timeout_ms", Kind::Whole),
    ("limits.head_timeout_ms", Kind::Whole),
    ("limits.drain_timeout_ms", Kind::Whole),
    ("rate.connection_publish_per_second", Kind::Number),
    ("rate.connection_publish_burst", Kind::Number),
    ("rate.connection_deliver_per_second", Kind::Number),
    ("rate.connection_deliver_burst", Kind::Number),
    ("topic[].name", Kind::Text),
    ("topic[].retention_days", Kind::Number),
    ("topic[].retention_ms", Kind::Whole),
    ("topic[].retention_bytes", Kind::Whole),
    ("topic[].compaction", Kind::Flag),
    ("topic[].tombstone_ms", Kind::Whole),
    ("topic[].snapshot_interval_ms", Kind::Whole),
    ("topic[].snapshot_topic", Kind::Text),
    ("topic[].max_attempts", Kind::Whole),
    ("topic[].publish_rate", Kind::Number),
    ("topic[].publish_burst", Kind::Number),
    ("storage.segment_bytes", Kind::Whole),
    ("storage.reserve_bytes", Kind::Whole),
    ("storage.prepared_segments", Kind::Whole),
    ("storage.tail_cache_bytes", Kind::Whole),
    ("storage.index_cache_bytes", Kind::Whole),
    ("storage.checkpoint_bytes", Kind::Whole),
    ("storage.dedupe_ms", Kind::Whole),
    ("storage.memory_bytes", Kind::Whole),
    ("metrics.max_labels", Kind::Whole),
    ("auth.token[].name", Kind::Text),
    ("auth.token[].hash", Kind::Text),
    ("auth.token[].scopes", Kind::Texts),
    ("auth.jwt.secret", Kind::Text),
    ("auth.jwt.pem_files", Kind::Texts),
    ("auth.jwt.jwks_file", Kind::Text),
    ("auth.jwt.issuer", Kind::Text),
    ("auth.jwt.audience", Kind::Text),
    ("auth.jwt.leeway_ms", Kind::Whole),
    ("auth.rule[].effect", Kind::Text),
    ("auth.rule[].subjects", Kind::Texts),
    ("auth.rule[].actions", Kind::Texts),
    ("auth.rule[].topics", Kind::Texts),
    ("auth.rule[].groups", Kind::Texts),
];

/// What stands at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A key with a value.
    Key(Kind),
    /// A table, `[path]`.
    Table,
    /// A list of tables, `[[path]]`.
    Tables,
}

/// What stands at a path of the shape, e.g. `auth.token[].name`.
pub fn place(path: &str) -> Option<Place> {
    KEYS.iter().find_map(|(key, kind)| {
        let rest = key.strip_prefix(path)?;
        match rest.as_bytes() {
            [] => Some(Place::Key(*kind)),
            [b'.', ..] => Some(Place::Table),
            [b'[', ..] => Some(Place::Tables),
            _ => None,
        }
    })
}

/// Every path that something can stand at: keys and the tables around them, as people write them.
pub fn known_paths() -> Vec<String> {
    let mut paths = Vec::new();
    for (key, _) in KEYS {
        let key = key.replace("[]", "");
        let tables = key.match_indices('.').map(|(at, _)| key[..at].to_owned());
        paths.extend(tables);
        paths.push(key);
    }
    paths.sort();
    paths.dedup();
    paths
}

/// The environment variable of a key; none for keys in lists of tables.
pub fn variable(path: &str) -> Option<String> {
    (!path.contains('[')).then(|| format!("PROMBUS_{}", path.replace('.', "_").to_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_told_from_keys_that_begin_alike() {
        assert_eq!(place("log"), Some(Place::Key(Kind::Text)));
        assert_eq!(place("auth"), Some(Place::Table));
        assert_eq!(place("auth.token"), Some(Place::Tables));
        assert_eq!(place("auth.token[].hash"), Some(Place::Key(Kind::Text)));
        assert_eq!(place("aut"), None);
        assert_eq!(place("limits.max"), None);
    }

    #[test]
    fn no_two_keys_share_a_variable() {
        let mut names: Vec<_> = KEYS.iter().filter_map(|(path, _)| variable(path)).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.contains(&"PROMBUS_LIMITS_MAX_CONNECTIONS".to_owned()));
    }
}
