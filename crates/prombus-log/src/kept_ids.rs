//! The publishers' ids of events that cleaning removed: they count as duplicates for `dedupe_ms` more.
//!
//! Of a segment that is all dead the index file simply stays. Of rewritten ones the removed ids go into one new file, which is
//! an index with nothing but ids. The manifest names both; at open their filters are read. Small ones are merged, but only
//! those that go at about the same time, so that no id stays much longer than it should.

use crate::commit::Step;
use crate::housekeeping::Housekeeper;
use crate::index::{Index, Summary};
use crate::index_file::{self, IndexError, IndexFile};
use crate::judge::Judge;
use crate::layout::index_name;
use crate::log::Shared;
use crate::manifest::KeptIndex;
use crate::rewrite::Broken;
use crate::segment::{Segment, SegmentIndex};
use crate::storage::is_full;
use std::io;
use std::sync::Arc;

/// Files with no more ids than this are merged.
const SMALL_IDS: u64 = 64 * 1024;
/// So many small ones are there before they are.
const MERGED_FILES: usize = 8;
/// What is merged goes within this part of `dedupe_ms`.
const MERGED_PART: i64 = 8;

/// Ids whose events are gone.
pub(crate) struct KeptIds {
    pub(crate) row: KeptIndex,
    pub(crate) file: IndexFile,
}

/// What is to be kept of a segment that goes.
pub(crate) enum Keep {
    Nothing,
    Ids(Arc<KeptIds>),
    /// Its index is in memory only, and there is no room to write it.
    NotYet,
    /// Neither its index nor the segment can be read now.
    Unreadable,
}

fn has_ids(summary: &Summary) -> bool {
    summary.first_client_id <= summary.last_client_id || summary.unordered_ids > 0
}

impl Judge<'_> {
    /// When ids of events up to this commit time may be forgotten; `None` when that is over.
    pub(crate) fn ids_expire_ms(&self, commit_ms: i64) -> Option<i64> {
        let options = &self.shared.options;
        let expires_ms = commit_ms.saturating_add(options.dedupe_ms);
        (expires_ms > options.clock.now_ms()).then_some(expires_ms)
    }

    /// What is kept of a segment without a live event: its index file, if it has an id that counts.
    pub(crate) fn keep_of_dead(&self, segment: &Segment) -> Result<Keep, Broken> {
        let shared = self.shared;
        // A damaged index is made again, once in memory and once as a file.
        for _ in 0..4 {
            let (summary, file) = match &*segment.index.read() {
                SegmentIndex::File(file) => (*file.summary(), Some(Arc::clone(file))),
                SegmentIndex::Memory(index) => (index.summary, None),
                SegmentIndex::Growing => return Ok(Keep::NotYet),
            };
            let expires_ms = self.ids_expire_ms(summary.last_commit_ms);
            let Some(expires_ms) = expires_ms.filter(|_| has_ids(&summary)) else { return Ok(Keep::Nothing) };
            let Some(file) = file else {
                let mut housekeeper = shared.housekeeper.lock();
                if housekeeper.is_finished {
                    return Err(Broken::Stopped);
                }
                let written = housekeeper.write_index(shared)?;
                if written == Step::Idle && !housekeeper.free_one_retired(shared)? {
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
                let open = || IndexFile::open_for_ids(&shared.storage, row.number, row.salt, row.covered);
                counts.then(open).transpose()
            });
            match opened {
                Ok(None) => return Ok(Keep::Nothing),
                Ok(Some(file)) => return Ok(Keep::Ids(Arc::new(KeptIds { row, file }))),
                // Made again from the segment; if that cannot be read either, the segment stays for now.
                Err(error) => {
                    if shared.rebuild_index(segment, error).is_err() {
                        return Ok(Keep::Unreadable);
                    }
                }
            }
        }
        Ok(Keep::NotYet)
    }

    /// Writes removed ids to a file of their own; nothing names it yet.
    pub(crate) fn keep_removed(&self, removed: &Index) -> Result<Option<Arc<KeptIds>>, Broken> {
        match self.ids_expire_ms(removed.summary.last_commit_ms) {
            Some(expires_ms) if !removed.ids.is_empty() => {
                write_kept(self.shared, removed, expires_ms).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Merges small files, if there are many that go at about the same time.
    pub(crate) fn merge_kept(&self) -> Result<(), Broken> {
        let shared = self.shared;
        let kept = Arc::clone(&shared.kept.read());
        let mut small: Vec<&Arc<KeptIds>> =
            kept.iter().filter(|kept| kept.file.id_count() <= SMALL_IDS).collect();
        small.sort_by_key(|kept| kept.row.expires_ms);
        let span_ms = shared.options.dedupe_ms / MERGED_PART;
        let mut rest = &small[..];
        while let Some(first) = rest.first() {
            let end_ms = first.row.expires_ms.saturating_add(span_ms);
            let (together, behind) =
                rest.split_at(rest.partition_point(|kept| kept.row.expires_ms <= end_ms));
            rest = behind;
            if together.len() >= MERGED_FILES {
                self.merge(together)?;
            }
        }
        Ok(())
    }

    fn merge(&self, together: &[&Arc<KeptIds>]) -> Result<(), Broken> {
        let shared = self.shared;
        let mut index = Index::default();
        for kept in together {
            let read = kept.file.for_each_id(|entry| {
                if self.is_kept(entry.topic) {
                    index.summary.add_client_id(entry.id);
                    index.ids.push(entry);
                }
                true
            });
            // The file still answers lookups; it is merged in a later round.
            match read {
                Ok(()) => {}
                Err(IndexError::Io(error)) => {
                    shared.index_error(index_name(kept.row.number), error);
                    return Ok(());
                }
                Err(_) => return Ok(()),
            }
        }
        let expires_ms = together.iter().map(|kept| kept.row.expires_ms).max().unwrap_or(i64::MIN);
        let merged = if index.ids.is_empty() { None } else { Some(write_kept(shared, &index, expires_ms)?) };
        let gone: Vec<u64> = together.iter().map(|kept| kept.row.number).collect();
        let mut housekeeper = shared.housekeeper.lock();
        if housekeeper.is_finished {
            return Err(Broken::Stopped);
        }
        let changed = housekeeper.change_kept(shared, merged.as_slice(), &gone);
        if let (Err(error), Some(merged)) = (&changed, &merged)
            && is_full(error)
        {
            let _ = shared.storage.remove(&index_name(merged.row.number));
        }
        Ok(changed?)
    }
}

fn write_kept(shared: &Shared, index: &Index, expires_ms: i64) -> Result<Arc<KeptIds>, Broken> {
    let number = {
        let mut housekeeper = shared.housekeeper.lock();
        if housekeeper.is_finished {
            return Err(Broken::Stopped);
        }
        let bytes = index.ids.len() as u64 * 40 + (8 << 10);
        housekeeper.make_room(shared, bytes)?;
        housekeeper.next_number()
    };
    let salt = shared.storage.random() as u32;
    let written = index_file::write_kept(&shared.storage, index, number, salt, shared.hash);
    if written.is_err() {
        let _ = shared.storage.remove(&index_name(number));
    }
    let row = KeptIndex { number, salt, covered: 0, expires_ms };
    Ok(Arc::new(KeptIds { row, file: written? }))
}

impl Housekeeper {
    /// Forgets ids whose time is over, and removes files that nobody uses any more.
    pub(crate) fn expire_kept(&mut self, shared: &Shared) -> io::Result<Step> {
        if let Some(at) = self.retired_kept.iter().position(|kept| Arc::strong_count(kept) == 1) {
            let kept = self.retired_kept.swap_remove(at);
            self.remove_index(shared, kept.row.number)?;
            return Ok(Step::Worked);
        }
        let now_ms = shared.options.clock.now_ms();
        let is_over = |row: &&KeptIndex| row.expires_ms <= now_ms;
        let gone: Vec<u64> =
            self.manifest.kept_indexes.iter().filter(is_over).map(|row| row.number).collect();
        if gone.is_empty() {
            return Ok(Step::Idle);
        }
        match self.change_kept(shared, &[], &gone) {
            Ok(()) => Ok(Step::Worked),
            Err(error) if is_full(&error) => Ok(Step::Idle),
            Err(error) => Err(error),
        }
    }

    fn change_kept(&mut self, shared: &Shared, added: &[Arc<KeptIds>], gone: &[u64]) -> io::Result<()> {
        let before = self.manifest.kept_indexes.clone();
        self.manifest.kept_indexes.retain(|row| !gone.contains(&row.number));
        let written = self.name_kept(shared, added).and_then(|()| self.write_manifest(shared));
        if written.is_err() {
            self.manifest.kept_indexes = before;
            return written;
        }
        self.show_kept(shared, added, gone);
        Ok(())
    }

    /// Puts ids into the next manifest.
    pub(crate) fn name_kept(&mut self, shared: &Shared, added: &[Arc<KeptIds>]) -> io::Result<()> {
        if added.is_empty() {
            return Ok(());
        }
        // Else a power cut leaves a manifest that names a file whose own name is lost, and its ids with it.
        shared.storage.sync_folder(crate::storage::SyncPoint::KeptIndexFolder)?;
        self.manifest.kept_indexes.extend(added.iter().map(|kept| kept.row));
        Ok(())
    }

    /// Lets look-ups use ids that the manifest names now, and no more those that it does not.
    pub(crate) fn show_kept(&mut self, shared: &Shared, added: &[Arc<KeptIds>], gone: &[u64]) {
        {
            let mut list = shared.kept.write();
            let (gone, mut kept): (Vec<_>, Vec<_>) =
                list.iter().cloned().partition(|kept| gone.contains(&kept.row.number));
            kept.extend(added.iter().cloned());
            *list = Arc::new(kept);
            self.retired_kept.extend(gone);
        }
        shared.refresh_id_files();
    }
}
