//! The kept indexes: files with the publishers' ids (event ids that publishers chose) of events that were cleaned away.
//! This module adds them to the manifest, and removes those that have expired.

use crate::context::Context;
use crate::maintain::catalog::Catalog;
use crate::manifest::KeptIndex;
use crate::read::committed_log::CommittedLog;
use crate::read::kept_ids::KeptIds;
use crate::step::Step;
use crate::storage::{SyncPoint, is_full};
use std::io;
use std::sync::Arc;

/// Kept ids that were removed from the manifest. Their files are removed when no reader uses them.
#[derive(Default)]
pub(crate) struct KeptIdFiles {
    retired: Vec<Arc<KeptIds>>,
}

impl KeptIdFiles {
    /// Removes kept ids that have expired or exceed the size limit, and files that no reader uses.
    pub(crate) fn expire(
        &mut self,
        context: &Context,
        committed: &CommittedLog,
        catalog: &mut Catalog,
    ) -> io::Result<Step> {
        if let Some(at) = self.retired.iter().position(|kept| Arc::strong_count(kept) == 1) {
            let kept = self.retired.swap_remove(at);
            catalog.remove_index(&*context.storage, kept.row.number)?;
            return Ok(Step::Worked);
        }
        let now_ms = context.now_ms();
        let is_over = |row: &&KeptIndex| row.expires_ms <= now_ms;
        let mut gone: Vec<u64> =
            catalog.manifest.kept_indexes.iter().filter(is_over).map(|row| row.number).collect();
        gone.extend(oldest_over(&committed.ids.kept(), context.options.kept_ids_bytes));
        if gone.is_empty() {
            return Ok(Step::Idle);
        }
        match self.change(context, committed, catalog, &[], &gone) {
            Ok(()) => Ok(Step::Worked),
            Err(error) if is_full(&error) => Ok(Step::Idle),
            Err(error) => Err(error),
        }
    }

    /// Adds kept ids and removes those with the numbers in `gone`, in the manifest and for lookups.
    pub(crate) fn change(
        &mut self,
        context: &Context,
        committed: &CommittedLog,
        catalog: &mut Catalog,
        added: &[Arc<KeptIds>],
        gone: &[u64],
    ) -> io::Result<()> {
        let before = catalog.manifest.kept_indexes.clone();
        catalog.manifest.kept_indexes.retain(|row| !gone.contains(&row.number));
        let written = add_to_manifest(context, catalog, added)
            .and_then(|()| catalog.write(&*context.storage, &committed.segments(), &[]));
        if written.is_err() {
            catalog.manifest.kept_indexes = before;
            return written;
        }
        self.show(committed, added, gone);
        Ok(())
    }

    /// Makes lookups use the added ids and ignore the removed ones, after the manifest was written.
    pub(crate) fn show(&mut self, committed: &CommittedLog, added: &[Arc<KeptIds>], gone: &[u64]) {
        self.retired.extend(committed.ids.change_kept(added, gone));
        committed.refresh_id_files();
    }
}

/// Adds kept ids to the manifest in memory. The caller writes the manifest.
pub(crate) fn add_to_manifest(
    context: &Context,
    catalog: &mut Catalog,
    added: &[Arc<KeptIds>],
) -> io::Result<()> {
    if added.is_empty() {
        return Ok(());
    }
    // Without this sync, a power cut can lose the name of a file that the manifest lists, and so its ids.
    context.storage.sync_folder(SyncPoint::KeptIndexFolder)?;
    catalog.manifest.kept_indexes.extend(added.iter().map(|kept| kept.row));
    Ok(())
}

/// The numbers of the oldest files that must be removed so that the others are within the limit.
fn oldest_over(kept: &[Arc<KeptIds>], limit_bytes: u64) -> Vec<u64> {
    let mut bytes: u64 = kept.iter().map(|kept| kept.file.file_bytes()).sum();
    let mut numbers = Vec::new();
    if bytes <= limit_bytes {
        return numbers;
    }
    let mut oldest_first: Vec<&Arc<KeptIds>> = kept.iter().collect();
    // Files of the same cleaning expire together. Their numbers tell which events are older.
    oldest_first.sort_by_key(|kept| (kept.row.expires_ms, kept.row.number));
    for kept in oldest_first {
        if bytes <= limit_bytes {
            break;
        }
        bytes -= kept.file.file_bytes();
        numbers.push(kept.row.number);
    }
    numbers
}
