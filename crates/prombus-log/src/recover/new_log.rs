//! Creates the first files of a new log.

use crate::checkpoint::{Checkpoint, Mark};
use crate::error::OpenError;
use crate::event_id::EventId;
use crate::layout::{FileKind, file_kind};
use crate::manifest::{Manifest, ManifestRead, SegmentRow};
use crate::options::Options;
use crate::recover::find_log::{FIRST_CHECKPOINTS, FIRST_SEGMENT, open_error};
use crate::segment::{self, SegmentId, SegmentKind};
use crate::storage::{Storage, is_full};
use std::io;

/// Creates the first files of a new log. After a failure the folder contains none of them.
pub(crate) fn create(storage: &dyn Storage, options: &Options) -> Result<ManifestRead, OpenError> {
    let folder = storage.location();
    let created = create_files(storage, options);
    created.map_err(|error| {
        for name in storage.list().unwrap_or_default() {
            if file_kind(&name).is_some() {
                let _ = storage.remove(&name);
            }
        }
        if is_full(&error) {
            let needed_bytes = options.next_segment_bytes(0, 0) + options.reserve_bytes;
            return OpenError::Full { folder: folder.clone(), needed_bytes, source: error };
        }
        open_error(&folder, "create a new log", error)
    })
}

fn create_files(storage: &dyn Storage, options: &Options) -> io::Result<ManifestRead> {
    for name in storage.list()? {
        if !matches!(file_kind(&name), Some(FileKind::Lock)) {
            storage.remove(&name)?;
        }
    }
    let log_id = storage.random();
    let id = SegmentId {
        number: FIRST_SEGMENT,
        salt: storage.random() as u32,
        kind: SegmentKind::Log,
        capacity: options.next_segment_bytes(0, 0),
        life: 0,
    };
    segment::create(storage, &id, log_id, &mut |_| {})?;
    let checkpoint = Checkpoint {
        mark: Mark::default(),
        last_server_id: EventId::default(),
        last_commit_ms: i64::MIN,
        next_topic: 1,
        topics: Vec::new(),
        state: Vec::new(),
    };
    for number in FIRST_CHECKPOINTS {
        checkpoint.write(storage, number)?;
    }
    let manifest = Manifest {
        log_id,
        hash_seed: [storage.random(), storage.random()],
        generation: 1,
        clean: true,
        next_number: FIRST_CHECKPOINTS[1] + 1,
        segments: vec![SegmentRow { id, sealed: None, reserve: false }],
        kept_indexes: Vec::new(),
        checkpoints: FIRST_CHECKPOINTS,
    };
    manifest.write(storage)?;
    Ok(ManifestRead::Found { manifest, fault: None })
}
