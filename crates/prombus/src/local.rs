//! The backend that runs in this process. An [`Engine`](crate::engine::Engine) stores the events; the group machine
//! (`crate::delivery`) decides which member of a group gets which event. In these files, a lease is the lease of an
//! event to a member; a group's floor is the seq up to which all its events are settled.
//!
//! ```text
//! publish ──► engine ──commit──► engine_events ──► waiters of the groups ──► members pull
//!                ▲                                                              │
//!                └─── records ◄── record_writer ◄── changes ◄── group machine ◄─┘ settle
//! ```
//!
//! | part | responsibility |
//! |---|---|
//! | `registry` | all topics and groups, and which groups read which topics |
//! | `publish_queue` | appends publishes to the engine; a publish waits here while the engine has no room |
//! | `groups`, `member` | groups and their members; every change of a group goes through `groups/act.rs` |
//! | `record_writer` | writes group records to the engine |
//! | `dead_letters`, `letter_states` | the thread that writes dead letters; which of them are open, redriven or discarded |
//! | `timer`, `timer_thread`, `stop_clock` | when leases expire and other timed work is due; the clock that measures leases |
//! | `reading`, `arrival`, `merged` | reading without a group |
//! | `latest_by_key` | the newest event of each key |
//! | `maintenance` | retention, compaction, tombstones, snapshots |
//!
//! Locks are taken in the order of `lock_order`.

mod ack_bound;
mod arrival;
mod backend_impl;
mod dead_letters;
mod engine_events;
mod groups;
mod kept_values;
mod latest_by_key;
mod letter_states;
mod lifecycle;
mod lock_order;
mod log_limit;
mod maintenance;
mod member;
mod merged;
mod publish_queue;
mod reading;
mod record_writer;
mod registry;
mod run_reads;
mod stop_clock;
mod suspension;
mod timer;
mod timer_thread;
mod topic_admin;
mod topic_info;
mod topic_settings;
mod waiting_readers;

pub use lifecycle::LocalBackend;

use crate::clock::Clock;
use crate::commit_watch::CommitWatch;
use crate::engine::Engine;
use crate::error::Unavailable;
use dead_letters::DeadLetterWriter;
use groups::Groups;
use groups::act::GroupRuntime;
use kept_values::KeptValues;
use latest_by_key::LatestByKey;
use letter_states::LetterStates;
use maintenance::Maintenance;
use publish_queue::PublishQueue;
use reading::Reading;
use registry::Registry;
use std::sync::Arc;
use suspension::Suspension;
use topic_info::TopicLists;
use topic_settings::TopicSettingsTable;
use waiting_readers::WaitingReaders;

/// The parts of the backend. Each part owns its state and its locks.
struct Local {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    commits: Arc<CommitWatch>,
    runtime: Arc<GroupRuntime>,
    registry: Arc<Registry>,
    settings: Arc<TopicSettingsTable>,
    waiting_readers: Arc<WaitingReaders>,
    groups: Arc<Groups>,
    publishing: Arc<PublishQueue>,
    reading: Arc<Reading>,
    lists: Arc<TopicLists>,
    latest: Arc<LatestByKey>,
    maintenance: Arc<Maintenance>,
    dead_letters: Arc<DeadLetterWriter>,
    kept: KeptValues,
    letters: Arc<LetterStates>,
    suspension: Suspension,
    /// How long publishers wait while the engine is suspended.
    engine_wait_ms: u64,
}

impl Local {
    /// Reports to all waiting callers that the engine has permanently stopped writing.
    fn fail(&self, reason: Unavailable) {
        self.commits.fail(reason);
        self.registry.all_groups().iter().for_each(|cell| cell.waiters.wake_all());
        self.waiting_readers.wake_all();
    }
}
