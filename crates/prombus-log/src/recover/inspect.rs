//! Describes the content of any file of a log, for debugging.

use crate::accepted_losses::{Loss, LossKind, Losses};
use crate::checkpoint::Checkpoint;
use crate::description::Description;
use crate::frame_scan::{Found, Scan};
use crate::index_file::describe;
use crate::layout::{FileKind, SEGMENT_DATA_START, file_kind, index_name, segment_name};
use crate::manifest::{Manifest, ManifestRead};
use crate::record::{self, Header, Kind, trusted_event};
use crate::segment::{describe_header, header_salt};
use crate::storage::{Folder, OpenMode, Storage, StorageFile, read_whole};
use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// Describes the content of a file. Calls `put` with each line, and with whether the line reports damage. Of bodies only the lengths
/// are shown, because they may contain private data.
///
/// # Errors
/// The file cannot be read or does not belong to a log, or `put` fails.
pub fn inspect(file: &Path, put: &mut dyn FnMut(&str, bool) -> io::Result<()>) -> io::Result<()> {
    let out = &mut Description::new(put);
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = file.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?;
    let storage = Folder::open(folder)?;
    let opened = storage.open(name, OpenMode::Read)?;
    match file_kind(name) {
        Some(FileKind::Segment(number)) => inspect_segment(&storage, &*opened, number, out),
        Some(FileKind::Manifest | FileKind::ManifestNew) => inspect_manifest(&read_whole(&*opened)?, out),
        Some(FileKind::Checkpoint(_)) => inspect_checkpoint(&read_whole(&*opened)?, out),
        Some(FileKind::Index(_) | FileKind::IndexNew) => describe(&read_whole(&*opened)?, out),
        Some(FileKind::Lock) => out.line("the lock file, which is always empty"),
        Some(FileKind::Reserve | FileKind::ReserveNew) => {
            out.line(format!("{} bytes of disk space that are given up when the disk is full", opened.len()?))
        }
        Some(FileKind::Losses | FileKind::LossesNew) => {
            let Some(losses) = Losses::parse(&read_whole(&*opened)?) else {
                return out.damage(Losses::fault(name).to_string());
            };
            for Loss { kind, number, range, .. } in losses.rows {
                let name = match kind {
                    LossKind::Segment => segment_name(number),
                    LossKind::KeptIndex => index_name(number),
                };
                out.line(format!(
                    "{name}: bytes {} to {} count as damaged when unreadable",
                    range.start, range.end
                ))?;
            }
            Ok(())
        }
        Some(FileKind::Cut) => out
            .line(format!("{} bytes of an unfinished batch, cut off when the log was opened", opened.len()?)),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "the file name is not one of a prombus log")),
    }
}

fn inspect_segment(
    storage: &dyn Storage,
    file: &dyn StorageFile,
    number: u64,
    out: &mut Description<'_>,
) -> io::Result<()> {
    let mut header = [0; 64];
    file.read_at(&mut header, 0)?;
    match (describe_header(&header), header_salt(&header)) {
        (Some(text), Some(_)) => out.line(text)?,
        (Some(text), None) => out.damage(text)?,
        (None, _) => out.damage("segment without a header")?,
    }
    let Some(salt) = header_salt(&header).or_else(|| salt_in_manifest(storage, number)) else {
        return out.damage(
            "cannot check frames: neither the header nor a MANIFEST in the same folder has the salt",
        );
    };
    let end = file.len()?;
    let mut scan = Scan::new(file, salt, SEGMENT_DATA_START, end, true);
    while let Some(found) = scan.next()? {
        match found {
            Found::Gap { position, end: gap_end } if gap_end == end => {
                out.line(format!(
                    "{position:>10}  no further frame: {} bytes to the end",
                    gap_end - position
                ))?;
            }
            Found::Gap { position, end } => {
                out.damage(format!("{position:>10}  NO FRAME for {} bytes", end - position))?;
            }
            Found::Frame { position, header, is_body_valid } => {
                let frame = if is_body_valid { scan.frame() } else { &[] };
                let frame = frame_text(&header, frame);
                match is_body_valid {
                    true => out.line(format!("{position:>10}  {frame}"))?,
                    false => out.damage(format!("{position:>10}  {frame}  BODY DAMAGED"))?,
                }
            }
        }
    }
    Ok(())
}

/// The salt of a segment in the manifest, which repeats the segment's header.
fn salt_in_manifest(storage: &dyn Storage, number: u64) -> Option<u32> {
    let ManifestRead::Found { manifest, .. } = Manifest::read(storage).ok()? else { return None };
    manifest.segments.iter().find(|row| row.id.number == number).map(|row| row.id.salt)
}

fn frame_text(header: &Header, frame: &[u8]) -> String {
    match header.kind {
        Kind::Event => {
            let Header { topic, seq, id, ts, commit_ms, .. } = header;
            let key = (!frame.is_empty()).then(|| trusted_event(frame).key).flatten();
            let key = key.map(|key| format!(" key {:?}", String::from_utf8_lossy(key))).unwrap_or_default();
            let (flags, length) = (header.flags, header.body_length);
            format!(
                "event   topic {topic} seq {seq} id {id} ts {ts} committed {commit_ms}{key} flags {flags:#x} body {length} bytes"
            )
        }
        Kind::State => format!("state   tag {} body {} bytes", header.topic, header.body_length),
        Kind::Topic => {
            let name = frame.get(record::HEADER_BYTES..).unwrap_or_default();
            let what = if header.flags & record::FLAG_DELETED == 0 { "created" } else { "deleted" };
            format!("topic   {} {:?} {what}", header.topic, String::from_utf8_lossy(name))
        }
        Kind::Commit => {
            let mut text =
                format!("commit  batch {} length {} at {}", header.seq, header.ts, header.commit_ms);
            if let Some(commit) = (!frame.is_empty()).then(|| record::read_commit(header, frame)).flatten() {
                // Writing to a text cannot fail.
                let _ = write!(text, " chain {:08x} after {:08x}", commit.chain, commit.previous);
                for run in &commit.runs {
                    let first = run.first_seq;
                    let _ = write!(text, " [topic {} from seq {first}: {} records]", run.topic, run.count);
                }
            }
            text
        }
    }
}

fn inspect_manifest(bytes: &[u8], out: &mut Description<'_>) -> io::Result<()> {
    match Manifest::parse(bytes) {
        ManifestRead::Found { manifest, fault } => {
            out.line(format!("manifest {} of log {:016x}", manifest.generation, manifest.log_id))?;
            out.line(format!("closed cleanly: {}", manifest.clean))?;
            out.line(format!(
                "checkpoints: {:016x}, {:016x}",
                manifest.checkpoints[0], manifest.checkpoints[1]
            ))?;
            for row in &manifest.segments {
                let id = row.id;
                let state = row.sealed.map_or("open".to_owned(), |length| format!("sealed at {length}"));
                let reserve = if row.reserve { " reserve" } else { "" };
                out.line(format!(
                    "segment {:016x} salt {:08x} {:?} capacity {} life {} {state}{reserve}",
                    id.number, id.salt, id.kind, id.capacity, id.life
                ))?;
            }
            for kept in &manifest.kept_indexes {
                out.line(format!("index {:016x} kept until {}", kept.number, kept.expires_ms))?;
            }
            match fault {
                Some(fault) => out.damage(format!("{fault}; the other copy is used")),
                None => Ok(()),
            }
        }
        ManifestRead::Newer(version) => out.line(format!("manifest of the newer format version {version}")),
        ManifestRead::Missing => Ok(()),
        ManifestRead::Damaged(fault) => out.damage(format!("{fault} (both copies)")),
    }
}

fn inspect_checkpoint(bytes: &[u8], out: &mut Description<'_>) -> io::Result<()> {
    let Some(checkpoint) = Checkpoint::parse(bytes) else {
        return out.damage("damaged checkpoint");
    };
    let mark = checkpoint.mark;
    out.line(format!("checkpoint at batch {} (chain {:08x})", mark.batch, mark.chain))?;
    out.line(format!("position {} of segment {:016x}", mark.position, mark.segment))?;
    out.line(format!("newest id {}, last commit {}", checkpoint.last_server_id, checkpoint.last_commit_ms))?;
    out.line(format!("state of {} bytes, next topic {}", checkpoint.state.len(), checkpoint.next_topic))?;
    for topic in &checkpoint.topics {
        out.line(format!("topic {} {:?} last seq {}", topic.id, topic.name, topic.last_seq))?;
    }
    Ok(())
}
