//! Prints the content of any file of a log, for debugging.

use crate::accepted_losses::{Loss, LossKind, Losses};
use crate::checkpoint::Checkpoint;
use crate::frame_scan::{Found, Scan};
use crate::index_file::describe;
use crate::layout::{FileKind, SEGMENT_DATA_START, file_kind, index_name, segment_name};
use crate::manifest::{Manifest, ManifestRead};
use crate::record::{self, Header, Kind, trusted_event};
use crate::segment::{describe_header, header_salt};
use crate::storage::{Folder, OpenMode, Storage, StorageFile, read_whole};
use std::io::{self, Write};
use std::path::Path;

/// Prints the content of a file to `out`. Of bodies only the lengths are printed, because they may contain private data.
///
/// # Errors
/// The file cannot be read or does not belong to a log, or writing to `out` fails.
pub fn inspect(file: &Path, out: &mut dyn Write) -> io::Result<()> {
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
        Some(FileKind::Lock) => writeln!(out, "the lock file, which is always empty"),
        Some(FileKind::Reserve | FileKind::ReserveNew) => {
            writeln!(out, "{} bytes of disk space that are given up when the disk is full", opened.len()?)
        }
        Some(FileKind::Losses | FileKind::LossesNew) => {
            let Some(losses) = Losses::parse(&read_whole(&*opened)?) else {
                return writeln!(out, "{}", Losses::fault(name));
            };
            for Loss { kind, number, range, .. } in losses.rows {
                let name = match kind {
                    LossKind::Segment => segment_name(number),
                    LossKind::KeptIndex => index_name(number),
                };
                writeln!(
                    out,
                    "{name}: bytes {} to {} count as damaged when unreadable",
                    range.start, range.end
                )?;
            }
            Ok(())
        }
        Some(FileKind::Cut) => {
            writeln!(out, "{} bytes of an unfinished batch, cut off when the log was opened", opened.len()?)
        }
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "the file name is not one of a prombus log")),
    }
}

fn inspect_segment(
    storage: &dyn Storage,
    file: &dyn StorageFile,
    number: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut header = [0; 64];
    file.read_at(&mut header, 0)?;
    writeln!(out, "{}", describe_header(&header).unwrap_or_else(|| "segment without a header".to_owned()))?;
    let Some(salt) = header_salt(&header).or_else(|| salt_in_manifest(storage, number)) else {
        return writeln!(
            out,
            "cannot check frames: neither the header nor a MANIFEST in the same folder has the salt"
        );
    };
    let end = file.len()?;
    let mut scan = Scan::new(file, salt, SEGMENT_DATA_START, end, true);
    while let Some(found) = scan.next()? {
        match found {
            Found::Gap { position, end: gap_end } if gap_end == end => {
                writeln!(out, "{position:>10}  no further frame: {} bytes to the end", gap_end - position)?;
            }
            Found::Gap { position, end } => {
                writeln!(out, "{position:>10}  NO FRAME for {} bytes", end - position)?;
            }
            Found::Frame { position, header, is_body_valid } => {
                write!(out, "{position:>10}  ")?;
                let frame = if is_body_valid { scan.frame() } else { &[] };
                inspect_frame(&header, frame, out)?;
                writeln!(out, "{}", if is_body_valid { "" } else { "  BODY DAMAGED" })?;
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

fn inspect_frame(header: &Header, frame: &[u8], out: &mut dyn Write) -> io::Result<()> {
    match header.kind {
        Kind::Event => {
            write!(out, "event   topic {} seq {} id {}", header.topic, header.seq, header.id)?;
            write!(out, " ts {} committed {}", header.ts, header.commit_ms)?;
            if let Some(key) = (!frame.is_empty()).then(|| trusted_event(frame).key).flatten() {
                write!(out, " key {:?}", String::from_utf8_lossy(key))?;
            }
            write!(out, " flags {:#x} body {} bytes", header.flags, header.body_length)
        }
        Kind::State => write!(out, "state   tag {} body {} bytes", header.topic, header.body_length),
        Kind::Topic => {
            let name = frame.get(record::HEADER_BYTES..).unwrap_or_default();
            let what = if header.flags & record::FLAG_DELETED == 0 { "created" } else { "deleted" };
            write!(out, "topic   {} {:?} {what}", header.topic, String::from_utf8_lossy(name))
        }
        Kind::Commit => {
            write!(out, "commit  batch {} length {} at {}", header.seq, header.ts, header.commit_ms)?;
            if let Some(commit) = (!frame.is_empty()).then(|| record::read_commit(header, frame)).flatten() {
                write!(out, " chain {:08x} after {:08x}", commit.chain, commit.previous)?;
                for run in &commit.runs {
                    let first = run.first_seq;
                    write!(out, " [topic {} from seq {first}: {} records]", run.topic, run.count)?;
                }
            }
            Ok(())
        }
    }
}

fn inspect_manifest(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    match Manifest::parse(bytes) {
        ManifestRead::Found { manifest, fault } => {
            writeln!(out, "manifest {} of log {:016x}", manifest.generation, manifest.log_id)?;
            writeln!(out, "closed cleanly: {}", manifest.clean)?;
            writeln!(out, "checkpoints: {:016x}, {:016x}", manifest.checkpoints[0], manifest.checkpoints[1])?;
            for row in &manifest.segments {
                let id = row.id;
                write!(out, "segment {:016x} salt {:08x} {:?}", id.number, id.salt, id.kind)?;
                write!(out, " capacity {} life {}", id.capacity, id.life)?;
                match row.sealed {
                    Some(length) => write!(out, " sealed at {length}")?,
                    None => write!(out, " open")?,
                }
                writeln!(out, "{}", if row.reserve { " reserve" } else { "" })?;
            }
            for kept in &manifest.kept_indexes {
                writeln!(out, "index {:016x} kept until {}", kept.number, kept.expires_ms)?;
            }
            match fault {
                Some(fault) => writeln!(out, "{fault}; the other copy is used"),
                None => Ok(()),
            }
        }
        ManifestRead::Newer(version) => writeln!(out, "manifest of the newer format version {version}"),
        ManifestRead::Missing => Ok(()),
        ManifestRead::Damaged(fault) => writeln!(out, "{fault} (both copies)"),
    }
}

fn inspect_checkpoint(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let Some(checkpoint) = Checkpoint::parse(bytes) else {
        return writeln!(out, "damaged checkpoint");
    };
    let mark = checkpoint.mark;
    writeln!(out, "checkpoint at batch {} (chain {:08x})", mark.batch, mark.chain)?;
    writeln!(out, "position {} of segment {:016x}", mark.position, mark.segment)?;
    writeln!(out, "newest id {}, last commit {}", checkpoint.last_server_id, checkpoint.last_commit_ms)?;
    writeln!(out, "state of {} bytes, next topic {}", checkpoint.state.len(), checkpoint.next_topic)?;
    for topic in &checkpoint.topics {
        writeln!(out, "topic {} {:?} last seq {}", topic.id, topic.name, topic.last_seq)?;
    }
    Ok(())
}
