//! State by key: the newest event of each key of a topic, its snapshots, and how consumers start from it.
//!
//! | subject | file |
//! |---|---|
//! | which event is the newest of a key, which events survive compaction | `newest_of_key.rs` |
//! | publishing changes to a snapshot topic | `snapshots.rs` |
//! | loading the state of a topic, and following its changes from there | `cold_start.rs` |

mod cold_start;
mod newest_of_key;
mod snapshots;

pub use cold_start::{State, StateChange, StateFollower};
pub use newest_of_key::{LatestMap, Seen};
pub use snapshots::{MARKER_TAG, MarkerPosition, SnapshotError, SnapshotMarker, take_snapshot};
pub(crate) use snapshots::{SnapshotSource, snapshot_of};
