//! The storage engine of prombus. One segmented log on disk holds the events of all topics and opaque state records of the
//! caller.
//!
//! An append is durable as soon as its batch, which its [`Ticket`] identifies, is written and fdatasynced. Readers
//! never see an event before that. All topics share one log and one stream of fdatasyncs, so a thousand concurrent
//! publishers share the cost of one fdatasync.
//!
//! ```
//! use prombus_log::{Append, Chunk, Log, NewEvent, Options, Outcomes, ReadLimit};
//!
//! # let folder = std::env::temp_dir().join(format!("prombus-log-example-{}", std::process::id()));
//! let log = Log::open(&folder, Options::default())?;
//! let orders = log.ensure_topic("orders")?;
//! let event = NewEvent { topic: orders, id: None, ts: 0, key: None, body: b"{}", tombstone: false };
//! let mut outcomes = Outcomes::default();
//! let ticket = log.append(&Append { events: &[event], ..Append::default() }, &mut outcomes)?;
//! log.wait(ticket)?; // returns when the event is on disk
//! assert_eq!(outcomes[0].seq, 1);
//!
//! let mut chunk = Chunk::default();
//! log.read(orders, 1, ReadLimit::default(), &mut chunk)?;
//! assert_eq!(chunk.events().next().map(|event| event.body), Some(&b"{}"[..]));
//! log.close()?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate is synchronous and knows nothing about JSON, groups or sockets. `docs/disk-format.md` describes its files byte
//! by byte.
//!
//! # Code map
//! [`Log`] is a facade over three parts, each of which owns its state and its locks:
//! - `write/`: `Writer` appends records and commits them in batches. `AppendQueue` passes records from appenders to the
//!   committer.
//! - `read/`: `CommittedLog` holds the durable part of the log and serves all reads.
//! - `maintain/`: `Maintenance` prepares and recycles segments, and writes index files, checkpoints and the manifest.
//!
//! `clean/` contains retention and compaction. `recover/` opens, verifies and repairs a log. `storage/` contains the
//! file operations. The other files define the disk format and the types that all parts share. Maintenance and the
//! writer call the append queue and the committed log, which never call back. So locks are always taken in this order:
//! maintenance, append queue, committed log.

mod accepted_losses;
mod bloom_filter;
mod buffer_pool;
mod caller_state;
mod checkpoint;
mod clean;
mod context;
mod description;
mod error;
mod event_id;
mod failed_fsync;
mod fields;
mod frame_scan;
mod index;
mod index_file;
mod index_file_format;
mod index_file_write;
mod keyed_hash;
mod layout;
mod log;
mod log_threads;
mod lost_seqs;
mod maintain;
mod manifest;
mod number_map;
mod observer;
mod options;
mod read;
mod rebuild_index;
mod record;
mod recover;
mod segment;
mod server_ids;
mod step;
pub mod storage;
mod topics;
mod unreadable_ranges;
mod wakeup;
mod write;

pub use caller_state::{NoState, State};
pub use clean::liveness::{CleanOptions, CleanReport, LiveCount, Liveness};
pub use error::{AppendError, BackupError, Fault, FaultKind, OpenError, ReadError, Unavailable, VerifyError};
pub use event_id::EventId;
pub use layout::FORMAT_VERSION;
pub use log::{Log, LogStats, TopicInfo};
pub use maintain::backup::{BackupProgress, BackupReport};
pub use observer::{Committed, CommittedRun, NoObserver, Notice, Observer};
pub use options::{Clock, Options, SystemClock};
pub use read::chunk::{Chunk, Missing, MissingReason, ReadLimit};
pub use read::read_health::{ReadHealth, UnreadableEvents};
pub use read::topic_usage::TopicUsage;
pub use record::Event;
pub use recover::inspect::inspect;
pub use recover::repair::{RepairReport, repair, repair_storage};
pub use recover::verify::{Progress, UnreadablePlace, VerifyReport, verify, verify_storage};
pub use step::Step;
pub use topics::TopicId;
pub use write::append_request::{Append, NewEvent, NewState, Outcome, Outcomes, Ticket};
pub use write::commit_times::CommitTimes;
