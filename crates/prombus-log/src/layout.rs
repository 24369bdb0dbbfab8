//! Names, magic numbers, versions and sizes of the files in a log's folder. `docs/disk-format.md` describes them.

/// The version of the disk format that this code writes. It reads this version and all older ones.
pub const FORMAT_VERSION: u32 = 1;
pub(crate) const MANIFEST: &str = "MANIFEST";
pub(crate) const MANIFEST_NEW: &str = "MANIFEST.new";
pub(crate) const LOCK: &str = "LOCK";
/// Occupies space. It is removed when the disk is full, so that the manifest can still be written.
pub(crate) const RESERVE: &str = "RESERVE";
/// The next reserve file while it is being written.
pub(crate) const RESERVE_NEW: &str = "RESERVE.new";
/// Lists the unreadable bytes that an operator has given up.
pub(crate) const LOSSES: &str = "LOSSES";
pub(crate) const LOSSES_NEW: &str = "LOSSES.new";
pub(crate) const SEGMENT_MAGIC: [u8; 8] = *b"PROMBSEG";
pub(crate) const INDEX_MAGIC: [u8; 8] = *b"PROMBIDX";
pub(crate) const MANIFEST_MAGIC: [u8; 8] = *b"PROMBMAN";
pub(crate) const CHECKPOINT_MAGIC: [u8; 8] = *b"PROMBCKP";
pub(crate) const LOSSES_MAGIC: [u8; 8] = *b"PROMBLOS";
/// The first byte never occurs in UTF-8, so no JSON body contains this magic.
pub(crate) const FRAME_MAGIC: [u8; 4] = [0xf5, b'p', b'm', b'b'];
/// Position of the first frame of a segment. The page before it contains only the segment header.
pub(crate) const SEGMENT_DATA_START: u64 = 4096;
/// Leaves room for the header page and one more page of frames.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 8 * 1024;
/// Positions inside a segment are 32 bits wide in the index.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1 << 31;

/// The kind of a file in a log's folder, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Manifest,
    ManifestNew,
    Lock,
    Reserve,
    ReserveNew,
    Losses,
    LossesNew,
    Segment(u64),
    Index(u64),
    IndexNew,
    Checkpoint(u64),
    Cut,
}

pub(crate) fn segment_name(number: u64) -> String {
    format!("{number:016x}.seg")
}

pub(crate) fn index_name(number: u64) -> String {
    format!("{number:016x}.idx")
}

/// An index that is being written.
pub(crate) fn index_new_name(number: u64) -> String {
    format!("{number:016x}.idx.new")
}

pub(crate) fn checkpoint_name(number: u64) -> String {
    format!("{number:016x}.ckpt")
}

pub(crate) fn cut_name(segment: u64, position: u64) -> String {
    format!("cut-{segment:016x}-{position}.bin")
}

/// The kind of the file with this name; `None` if it does not belong to the log.
pub(crate) fn file_kind(name: &str) -> Option<FileKind> {
    match name {
        MANIFEST => return Some(FileKind::Manifest),
        MANIFEST_NEW => return Some(FileKind::ManifestNew),
        LOCK => return Some(FileKind::Lock),
        RESERVE => return Some(FileKind::Reserve),
        RESERVE_NEW => return Some(FileKind::ReserveNew),
        LOSSES => return Some(FileKind::Losses),
        LOSSES_NEW => return Some(FileKind::LossesNew),
        _ => {}
    }
    if name.starts_with("cut-") && name.ends_with(".bin") {
        return Some(FileKind::Cut);
    }
    let (stem, extension) = name.split_once('.')?;
    if stem.len() != 16 || stem.bytes().any(|byte| !matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let number = u64::from_str_radix(stem, 16).ok()?;
    match extension {
        "seg" => Some(FileKind::Segment(number)),
        "idx" => Some(FileKind::Index(number)),
        "idx.new" => Some(FileKind::IndexNew),
        "ckpt" => Some(FileKind::Checkpoint(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_as_they_are_made() {
        assert_eq!(file_kind(&segment_name(0x2a)), Some(FileKind::Segment(0x2a)));
        assert_eq!(file_kind(&index_name(u64::MAX)), Some(FileKind::Index(u64::MAX)));
        assert_eq!(file_kind(&checkpoint_name(7)), Some(FileKind::Checkpoint(7)));
        assert_eq!(file_kind(&cut_name(1, 4096)), Some(FileKind::Cut));
        assert_eq!(file_kind("notes.txt"), None);
        assert_eq!(file_kind("000000000000002A.seg"), None);
    }
}
