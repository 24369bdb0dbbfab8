//! Implements [`LocalFiles`] for a log in a folder: backups, and operations on unreadable events.

use super::LogEngine;
use crate::engine::{LocalFiles, MayBlock, UnreadableEvents};
use crate::error::{BackupError, StoreError, with_causes};
use prombus_log::BackupError as LogBackupError;
use std::path::Path;

impl LocalFiles for LogEngine {
    fn backup(
        &self,
        folder: &Path,
        progress: &mut dyn FnMut(u64, u64),
        _may_block: MayBlock,
    ) -> Result<(), BackupError> {
        let copied = self.log.backup(folder, &mut |it| progress(it.bytes_done, it.bytes_total));
        copied.map(|_| ()).map_err(|error| {
            let text = with_causes(&error);
            match error {
                LogBackupError::NotEmpty { .. }
                | LogBackupError::Inside { .. }
                | LogBackupError::Folder { .. } => BackupError::Folder(text),
                LogBackupError::Full { .. } => BackupError::Full(text),
                _ => BackupError::Failed(text),
            }
        })
    }

    fn probe_unreadable(&self, _may_block: MayBlock) {
        self.log.probe_unreadable();
    }

    fn unreadable(&self, _may_block: MayBlock) -> Vec<UnreadableEvents> {
        self.log.unreadable()
    }

    fn accept_losses(&self, _may_block: MayBlock) -> Result<Vec<UnreadableEvents>, StoreError> {
        self.log
            .accept_losses()
            .map_err(|error| StoreError::Other(format!("the list of losses could not be written: {error}")))
    }
}
