//! State by key: what the newest event of each key of a topic is, snapshots of it, and starting from it.
//!
//! | question | file |
//! |---|---|
//! | which event is the newest of a key, which events live | `latest.rs` |
//! | loading the state of a topic, and going on exactly behind it | `snapshot.rs` |
//! | publishing what changed to a snapshot topic | `compactor.rs` |

mod compactor;
mod latest;
mod snapshot;

pub use compactor::{MARKER_TAG, MarkerPosition, SnapshotError, SnapshotMarker, take_snapshot};
pub(crate) use compactor::{Source, snapshot_of};
pub use latest::{LatestMap, Seen};
pub use snapshot::{State, StateChange, StateFollower};
