//! Opening a bus: its settings, and the engine underneath.

use super::Bus;
use crate::backend::Backend;
use crate::clock::{Clock, SystemClock};
use crate::config::Limits;
use crate::engine::{Engine, LogEngine, LogEngineOptions};
use crate::error::OpenError;
use crate::leasing_gate::LeasingGate;
use crate::local::LocalBackend;
use crate::settings::TopicRule;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Bus {
    /// Opens the bus in a folder, which is created if it does not exist.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    ///
    /// # Panics
    /// If called outside a tokio runtime; [`BusBuilder::open_blocking`] needs none.
    pub async fn open(folder: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder().open(folder).await
    }

    /// A bus in memory. Its events and groups are lost when the process ends.
    pub fn memory() -> Self {
        Self::builder().memory().expect("the defaults are allowed")
    }

    /// A builder with the default settings.
    pub fn builder() -> BusBuilder {
        BusBuilder::default()
    }
}

/// The default of [`BusBuilder::memory_bytes`].
const MEMORY_BYTES: u64 = 4 << 30;

/// The smallest [`BusBuilder::memory_bytes`].
const MEMORY_BYTES_MIN: u64 = 64 * 1024;

/// Returns the rules for topics that apply now.
type CurrentRules = Arc<dyn Fn() -> Vec<TopicRule> + Send + Sync>;

/// The settings of a bus.
#[derive(Clone)]
#[must_use = "a builder builds with open or memory"]
pub struct BusBuilder {
    limits: Limits,
    /// `None`: the system clock.
    clock: Option<Arc<dyn Clock>>,
    log: LogEngineOptions,
    memory_bytes: u64,
    topic_rules: Vec<TopicRule>,
    /// If set, called for the rules when a bus is opened, instead of `topic_rules`.
    current_rules: Option<CurrentRules>,
    /// `None`: events may always be leased.
    gate: Option<Arc<LeasingGate>>,
}

impl Default for BusBuilder {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            clock: None,
            log: LogEngineOptions::default(),
            memory_bytes: MEMORY_BYTES,
            topic_rules: Vec::new(),
            current_rules: None,
            gate: None,
        }
    }
}

impl BusBuilder {
    /// Replaces all limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The largest payload of an event, in bytes of JSON. Default: 1 MiB.
    pub fn max_payload_bytes(mut self, bytes: usize) -> Self {
        self.limits.max_payload_bytes = bytes;
        self
    }

    /// Maximum number of topics. Default: 100,000.
    pub fn max_topics(mut self, topics: usize) -> Self {
        self.limits.max_topics = topics;
        self
    }

    /// Maximum number of groups. Default: 100,000.
    pub fn max_groups(mut self, groups: usize) -> Self {
        self.limits.max_groups = groups;
        self
    }

    /// Deletes a group that has had no members for this long. Default: never.
    pub fn group_expire_ms(mut self, after_ms: u64) -> Self {
        self.limits.group_expire_ms = Some(after_ms);
        self
    }

    /// Settings of a topic, or of all topics that a pattern covers. The first rule that matches a topic applies.
    ///
    /// ```
    /// use prombus::{Bus, TopicOptions, TopicRule};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let three_days = TopicOptions { retention_days: Some(3.0), ..TopicOptions::default() };
    /// let newest = TopicOptions { compaction: Some(true), ..TopicOptions::default() };
    /// let bus = Bus::builder()
    ///     .topic(TopicRule::new("heartbeat.received", three_days)?)
    ///     .topic(TopicRule::new("process.*", newest)?)
    ///     .memory()?;
    /// assert!(bus.topic_settings("process.state").compaction);
    /// # Ok(())
    /// # }
    /// ```
    pub fn topic(mut self, rule: TopicRule) -> Self {
        self.topic_rules.push(rule);
        self
    }

    /// Replaces all rules for topics.
    pub fn topics(mut self, rules: Vec<TopicRule>) -> Self {
        self.topic_rules = rules;
        self
    }

    /// Asks for the rules each time a bus is opened; replaces the rules of [`topic`](Self::topic) and [`topics`](Self::topics). For a
    /// [`Leadership`](crate::leadership::Leadership), whose bus may be opened long after the builder was made: a bus that begins with outdated
    /// rules could delete events that the new ones keep.
    pub fn current_topics(mut self, rules: impl Fn() -> Vec<TopicRule> + Send + Sync + 'static) -> Self {
        self.current_rules = Some(Arc::new(rules));
        self
    }

    /// Maximum memory of the newest-event-by-key maps of all topics together. Default: 512 MiB.
    pub fn state_memory_bytes(mut self, bytes: usize) -> Self {
        self.limits.state_memory_bytes = bytes;
        self
    }

    /// The options of the log.
    pub fn log(mut self, options: LogEngineOptions) -> Self {
        self.log = options;
        self
    }

    /// Maximum memory of the events of an in-memory bus. Beyond it, publishes fail as on a full disk. Default: 4 GiB.
    ///
    /// One publish may take at most an eighth of this limit and at most 64 MiB (more than an eighth if the limit is below
    /// 16 MiB). Ids chosen by publishers are remembered after their events were
    /// cleaned, as long as these ids fit into a sixteenth of the limit.
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// The source of time, for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Leases events to members only while this gate is open. For a store that several processes share.
    pub fn leasing_gate(mut self, gate: Arc<LeasingGate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Opens the bus in a folder, which is created if it does not exist.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    pub async fn open(self, folder: impl AsRef<Path>) -> Result<Bus, OpenError> {
        self.limits.check()?;
        let folder: PathBuf = folder.as_ref().to_owned();
        let opened = tokio::task::spawn_blocking(move || self.open_blocking(&folder)).await;
        opened.unwrap_or_else(|error| Err(OpenError::Groups(format!("opening panicked: {error}"))))
    }

    /// Opens the bus in a folder, without a tokio runtime. Blocks on the disk.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    pub fn open_blocking(self, folder: &Path) -> Result<Bus, OpenError> {
        self.limits.check()?;
        let clock = self.clock_or_system();
        let store = LogEngine::open(folder, self.log.clone(), Arc::clone(&clock))?;
        self.over(Arc::new(store), clock)
    }

    /// Creates a bus in memory.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn memory(self) -> Result<Bus, OpenError> {
        self.limits.check()?;
        if self.memory_bytes < MEMORY_BYTES_MIN {
            let (name, value) = ("memory_bytes", self.memory_bytes.to_string());
            return Err(OpenError::BadSetting { name, value, allowed: "65536 and more are allowed" });
        }
        let clock = self.clock_or_system();
        let store = LogEngine::in_memory(self.memory_bytes, Arc::clone(&clock))?;
        self.over(Arc::new(store), clock)
    }

    /// Creates a bus over any engine.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn over_engine(self, engine: Arc<dyn Engine>) -> Result<Bus, OpenError> {
        self.limits.check()?;
        let clock = self.clock_or_system();
        self.over(engine, clock)
    }

    /// Checks that the settings are in range.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        self.limits.check()
    }

    pub(crate) fn clock_or_system(&self) -> Arc<dyn Clock> {
        self.clock.clone().unwrap_or_else(|| Arc::new(SystemClock::default()))
    }

    fn over(self, store: Arc<dyn Engine>, clock: Arc<dyn Clock>) -> Result<Bus, OpenError> {
        let backend = LocalBackend::open(store, clock, self.limits)?;
        backend.set_topic_rules(self.current_rules.map_or(self.topic_rules, |current| current()));
        self.gate.iter().for_each(|gate| backend.set_leasing_gate(gate));
        Ok(Bus::with_backend(Arc::new(backend)))
    }
}

impl std::fmt::Debug for BusBuilder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "BusBuilder({:?})", self.limits)
    }
}
