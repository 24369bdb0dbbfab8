//! What a config file says, in the file's own words: nothing is checked yet but the kinds of values, and what is not said
//! is `None`. The keys are those of `shape.rs`.

use serde::Deserialize;

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    pub listen: Option<Vec<String>>,
    pub data: Option<String>,
    pub store: Option<String>,
    pub log: Option<String>,
    pub log_format: Option<String>,
    pub insecure: Option<bool>,
    pub tls: TlsSection,
    pub http: HttpSection,
    pub limits: LimitsSection,
    pub rate: RateSection,
    pub topic: Vec<TopicSection>,
    pub storage: StorageSection,
    pub metrics: MetricsSection,
    pub auth: AuthSection,
}

/// `[tls]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSection {
    pub cert: Option<String>,
    pub key: Option<String>,
}

/// `[http]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSection {
    pub allowed_hosts: Vec<String>,
    pub cors_origins: Vec<String>,
    pub permessage_deflate: Option<bool>,
    pub max_body_bytes: Option<u64>,
    pub min_body_bytes_per_second: Option<u64>,
    pub keep_alive_ms: Option<u64>,
}

/// `[limits]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsSection {
    pub max_connections: Option<u64>,
    pub max_subscriptions: Option<u64>,
    pub max_queued_bytes: Option<u64>,
    pub max_buffered_bytes: Option<u64>,
    pub max_payload_bytes: Option<u64>,
    pub max_topics: Option<u64>,
    pub max_groups: Option<u64>,
    pub group_expire_ms: Option<u64>,
    pub state_memory_bytes: Option<u64>,
    pub auth_timeout_ms: Option<u64>,
    pub ping_interval_ms: Option<u64>,
    pub stall_timeout_ms: Option<u64>,
    pub head_timeout_ms: Option<u64>,
    pub drain_timeout_ms: Option<u64>,
}

/// `[rate]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateSection {
    pub connection_publish_per_second: Option<f64>,
    pub connection_publish_burst: Option<f64>,
    pub connection_deliver_per_second: Option<f64>,
    pub connection_deliver_burst: Option<f64>,
}

/// `[[topic]]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TopicSection {
    pub name: Option<String>,
    /// What is set; its keys were checked when the file was read.
    #[serde(flatten)]
    pub options: toml::Table,
}

/// `[storage]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageSection {
    pub segment_bytes: Option<u64>,
    pub reserve_bytes: Option<u64>,
    pub prepared_segments: Option<u64>,
    pub tail_cache_bytes: Option<u64>,
    pub index_cache_bytes: Option<u64>,
    pub checkpoint_bytes: Option<u64>,
    pub dedupe_ms: Option<u64>,
    pub memory_bytes: Option<u64>,
}

/// `[metrics]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsSection {
    pub max_labels: Option<u64>,
}

/// `[auth]`. It has no `Debug`, because secrets are in it.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthSection {
    pub token: Vec<TokenSection>,
    pub jwt: Option<JwtSection>,
    pub rule: Vec<RuleSection>,
}

impl std::fmt::Debug for AuthSection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("AuthSection")
    }
}

/// `[[auth.token]]`
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenSection {
    pub name: Option<String>,
    pub hash: Option<String>,
    pub scopes: Vec<String>,
}

/// `[auth.jwt]`
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JwtSection {
    pub secret: Option<String>,
    pub pem_files: Vec<String>,
    pub jwks_file: Option<String>,
    pub issuer: Option<String>,
    pub audience: Option<String>,
    pub leeway_ms: Option<u64>,
}

/// `[[auth.rule]]`
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuleSection {
    pub effect: Option<String>,
    pub subjects: Vec<String>,
    pub actions: Vec<String>,
    pub topics: Vec<String>,
    pub groups: Vec<String>,
}
