//! What the disk has no room for, and the notices that tell the observer when this changes.

use crate::observer::{Notice, Observer};

/// What the disk had no room for when segments were last prepared.
#[derive(Default)]
pub(crate) struct Shortage {
    /// Whether a segment for publishers or a reserve segment is missing, or the manifest could not be written.
    pub(crate) is_full: bool,
    /// The room in a segment that appends needed and the disk did not have; zero if there is no such append.
    pub(crate) refused_room: u64,
    /// The error of the last failed attempt.
    pub(crate) error: String,
    reported: Reported,
}

/// What the observer knows.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Reported {
    #[default]
    Nothing,
    /// Large appends are refused. Small ones have a prepared segment.
    LargeAppends,
    Full,
}

impl Shortage {
    /// Sends a notice if the state has changed since the last call. So there is one notice when a shortage begins, however many
    /// appends are refused, and one when it is over.
    pub(crate) fn report(&mut self, observer: &dyn Observer) {
        let state = if self.is_full {
            Reported::Full
        } else if self.refused_room > 0 {
            Reported::LargeAppends
        } else {
            Reported::Nothing
        };
        if std::mem::replace(&mut self.reported, state) == state {
            return;
        }
        let refused_bytes = (state == Reported::LargeAppends).then_some(self.refused_room);
        observer.notice(&match state {
            Reported::Nothing => Notice::StorageFreed,
            Reported::LargeAppends | Reported::Full => {
                Notice::StorageFull { error: self.error.clone(), refused_bytes }
            }
        });
    }
}
