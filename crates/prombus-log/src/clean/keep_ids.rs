//! Keeps the publishers' ids (event ids that publishers chose) of events that cleaning removes. For `dedupe_ms` after
//! the cleaning, a publish with such an id is a duplicate.
//!
//! If a segment has no live event, its index file stays. If segments are rewritten, the removed ids go into one new file: an
//! index that contains only ids. The manifest lists both kinds, and an open reads their filters. Small files are
//! merged, but only those that expire at about the same time, so that no id is kept much longer than `dedupe_ms`.

use crate::clean::clean_stop::CleanStop;
use crate::clean::segment_liveness::SegmentLiveness;
use crate::index::{Index, Summary};
use crate::index_file::{IndexError, IndexFile};
use crate::index_file_write::write_kept_index;
use crate::layout::index_name;
use crate::maintain::maintenance::Maintenance;
use crate::manifest::KeptIndex;
use crate::read::kept_ids::KeptIds;
use crate::segment::{Segment, SegmentIndex};
use crate::step::Step;
use crate::storage::is_full;
use std::sync::Arc;

/// Files with at most this many ids count as small.
const SMALL_IDS: u64 = 64 * 1024;
/// Small files are merged when there are at least this many.
const MERGED_FILES: usize = 8;
/// Files are merged if their expiry times are within an eighth of `dedupe_ms`, and their total size is at most an eighth of
/// `kept_ids_bytes`.
const MERGED_PART: i64 = 8;

/// Which ids of a segment stay when the segment is retired.
pub(crate) enum Keep {
    Nothing,
    Ids(Arc<KeptIds>),
    /// The index is only in memory, and the disk has no room for its file.
    NotYet,
    /// Neither the index nor the segment can be read at the moment.
    Unreadable,
}

fn has_ids(summary: &Summary) -> bool {
    summary.first_client_id <= summary.last_client_id || summary.unordered_ids > 0
}

impl SegmentLiveness<'_> {
    /// Until when the ids that cleaning removes now stay known; `None` if they are not kept.
    pub(crate) fn ids_expire_ms(&self) -> Option<i64> {
        let context = &self.maintenance.context;
        let dedupe_ms = context.options.dedupe_ms;
        (dedupe_ms > 0).then(|| context.now_ms().saturating_add(dedupe_ms))
    }

    /// Keeps the index file of a segment without a live event, if the file contains a publisher's id in a topic that
    /// still exists.
    pub(crate) fn keep_of_dead(&self, segment: &Segment) -> Result<Keep, CleanStop> {
        let maintenance = self.maintenance;
        // A damaged index is rebuilt in memory first, then written as a file. Each of the two takes one pass of this
        // loop.
        for _ in 0..4 {
            let (summary, file) = match &*segment.index() {
                SegmentIndex::File(file) => (*file.summary(), Some(Arc::clone(file))),
                SegmentIndex::Memory(index) => (index.summary, None),
                SegmentIndex::Growing => return Ok(Keep::NotYet),
            };
            let expires_ms = self.ids_expire_ms();
            let Some(expires_ms) = expires_ms.filter(|_| has_ids(&summary)) else { return Ok(Keep::Nothing) };
            let Some(file) = file else {
                let mut work = maintenance.work().ok_or(CleanStop::Stopped)?;
                let written = work.write_index()?;
                if written == Step::Idle && !work.free_one_retired()? {
                    return Ok(Keep::NotYet);
                }
                continue;
            };
            let mut counts = false;
            let looked = file.for_each_id(|entry| {
                counts = self.is_kept(entry.topic);
                !counts
            });
            let row = KeptIndex {
                number: segment.id.number,
                salt: segment.id.salt,
                covered: segment.sealed().unwrap_or(0),
                expires_ms,
            };
            let opened = looked.and_then(|()| {
                let open = || {
                    IndexFile::open_for_ids(&maintenance.context.storage, row.number, row.salt, row.covered)
                };
                counts.then(open).transpose()
            });
            match opened {
                Ok(None) => return Ok(Keep::Nothing),
                Ok(Some(file)) => return Ok(Keep::Ids(Arc::new(KeptIds { row, file }))),
                // The index is rebuilt from the segment. If that cannot be read either, the segment stays for now.
                Err(error) => {
                    if maintenance.committed.rebuild_index(segment, error).is_err() {
                        return Ok(Keep::Unreadable);
                    }
                }
            }
        }
        Ok(Keep::NotYet)
    }

    /// Writes the removed ids to a new file, which the manifest does not list yet.
    pub(crate) fn keep_removed(&self, removed: &Index) -> Result<Option<Arc<KeptIds>>, CleanStop> {
        match self.ids_expire_ms() {
            Some(expires_ms) if !removed.ids.is_empty() => {
                write_kept(self.maintenance, removed, expires_ms).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Merges small files if enough of them expire at about the same time.
    pub(crate) fn merge_kept(&self) -> Result<(), CleanStop> {
        let maintenance = self.maintenance;
        let kept = maintenance.committed.ids.kept();
        let mut small: Vec<&Arc<KeptIds>> =
            kept.iter().filter(|kept| kept.file.id_count() <= SMALL_IDS).collect();
        small.sort_by_key(|kept| kept.row.expires_ms);
        let options = &maintenance.context.options;
        let (span_ms, bytes_max) =
            (options.dedupe_ms / MERGED_PART, options.kept_ids_bytes / MERGED_PART as u64);
        let mut rest = &small[..];
        while let Some(first) = rest.first() {
            let end_ms = first.row.expires_ms.saturating_add(span_ms);
            let (together, later) = rest.split_at(rest.partition_point(|kept| kept.row.expires_ms <= end_ms));
            rest = later;
            // When the limit is exceeded, whole files are deleted. So no file may take up a large part of the limit.
            let mut bytes = 0;
            let mut small_enough = together.to_vec();
            small_enough.sort_by_key(|kept| kept.file.file_bytes());
            small_enough.retain(|kept| {
                bytes += kept.file.file_bytes();
                bytes <= bytes_max
            });
            if small_enough.len() >= MERGED_FILES {
                self.merge(&small_enough)?;
            }
        }
        Ok(())
    }

    fn merge(&self, together: &[&Arc<KeptIds>]) -> Result<(), CleanStop> {
        let maintenance = self.maintenance;
        let mut index = Index::default();
        for kept in together {
            let read = kept.file.for_each_id(|entry| {
                if self.is_kept(entry.topic) {
                    index.summary.add_client_id(entry.id);
                    index.ids.push(entry);
                }
                true
            });
            // A file that cannot be read at present stays, and a later cleaning merges it.
            match read {
                Ok(()) => {}
                Err(IndexError::Io(error)) => {
                    maintenance.committed.index_error(index_name(kept.row.number), error);
                    return Ok(());
                }
                Err(_) => return Ok(()),
            }
        }
        let expires_ms = together.iter().map(|kept| kept.row.expires_ms).max().unwrap_or(i64::MIN);
        let merged =
            if index.ids.is_empty() { None } else { Some(write_kept(maintenance, &index, expires_ms)?) };
        let gone: Vec<u64> = together.iter().map(|kept| kept.row.number).collect();
        let mut work = maintenance.work().ok_or(CleanStop::Stopped)?;
        let changed = work.change_kept(merged.as_slice(), &gone);
        if let (Err(error), Some(merged)) = (&changed, &merged)
            && is_full(error)
        {
            let _ = maintenance.context.storage.remove(&index_name(merged.row.number));
        }
        Ok(changed?)
    }
}

fn write_kept(maintenance: &Maintenance, index: &Index, expires_ms: i64) -> Result<Arc<KeptIds>, CleanStop> {
    let number = {
        let mut work = maintenance.work().ok_or(CleanStop::Stopped)?;
        let bytes = index.ids.len() as u64 * 40 + (8 << 10);
        work.make_room(bytes)?;
        work.catalog.next_number()
    };
    let salt = maintenance.context.storage.random() as u32;
    let written =
        write_kept_index(&maintenance.context.storage, index, number, salt, maintenance.context.hash);
    if written.is_err() {
        let _ = maintenance.context.storage.remove(&index_name(number));
    }
    let row = KeptIndex { number, salt, covered: 0, expires_ms };
    Ok(Arc::new(KeptIds { row, file: written? }))
}
