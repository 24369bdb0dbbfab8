//! The log under prombus: events of all topics and opaque state records of the caller, in one segmented log on disk.
//!
//! An append is durable when its [`Ticket`] is: its batch was written and fdatasynced. Readers see nothing before that. All
//! topics share one log and one stream of fdatasyncs, so a thousand publishers pay for one.
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
//! log.wait(ticket)?; // on disk now
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
//! The crate is synchronous and knows nothing of JSON, groups or sockets. `docs/disk-format.md` describes its files byte by
//! byte.

mod append;
mod backup;
mod checkpoint;
mod clean;
mod commit;
mod complete;
mod error;
mod fields;
mod filter;
mod find;
mod holes;
mod housekeeping;
mod id;
mod index;
mod index_file;
mod inspect;
mod jobs;
mod judge;
mod kept_ids;
mod layout;
mod log;
mod losses;
mod lost_seqs;
mod manifest;
mod named_faults;
mod observer;
mod options;
mod own_ids;
mod poison;
mod reader;
mod recent_ids;
mod record;
mod recovery;
mod repair;
mod replay;
mod retire;
mod rewrite;
mod scan;
mod segment;
mod state;
pub mod storage;
mod tail;
mod unreadable;
mod usage;
mod verify;
mod view;

pub use append::{Append, NewEvent, NewState, Outcome, Outcomes, Ticket, TopicId};
pub use backup::{BackupProgress, BackupReport};
pub use clean::{CleanOptions, CleanReport, LiveCount, Liveness};
pub use commit::Step;
pub use complete::CommitTimes;
pub use error::{AppendError, BackupError, Fault, FaultKind, OpenError, ReadError, Unavailable, VerifyError};
pub use id::EventId;
pub use inspect::inspect;
pub use layout::FORMAT_VERSION;
pub use log::{Log, LogStats, TopicInfo};
pub use observer::{Committed, CommittedRun, NoObserver, Notice, Observer};
pub use options::{Clock, Options, SystemClock};
pub use reader::{Chunk, Missing, MissingReason, ReadLimit};
pub use record::Event;
pub use repair::{RepairReport, repair, repair_storage};
pub use state::{NoState, State};
pub use unreadable::{ReadHealth, UnreadableEvents};
pub use usage::TopicUsage;
pub use verify::{Progress, UnreadablePlace, VerifyReport, verify, verify_storage};
