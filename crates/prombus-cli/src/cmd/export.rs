//! `prombus export`: writes the events of a topic or pattern as JSON lines, to standard output or to a file that can be resumed.

use super::{progress, server_client};
use crate::args::filter::{self, Condition};
use crate::args::{ExportArgs, ExportFrom, Order};
use crate::messages::counted;
use crate::output::stdout;
use anyhow::{Context, bail};
use indicatif::ProgressBar;
use prombus_client::{After, History, HistoryQuery, Uuid};
use prombus_protocol::Pattern;
use serde::Deserialize;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::ExitCode;

/// A file is read backwards in pieces of this size to find its last line.
const PIECE_BYTES: u64 = 64 * 1024;

/// The fields of an exported line that tell where to resume.
#[derive(Deserialize)]
struct LastLine {
    id: Uuid,
    seq: Option<u64>,
    topic: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// When the server or the file refuses access or fails.
pub fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    server_client::block_on(export(args))?;
    Ok(ExitCode::SUCCESS)
}

async fn export(args: &ExportArgs) -> anyhow::Result<()> {
    let client = server_client::client(&args.server)?;
    let topic = server_client::known_topics(&client, &args.topic).await?;
    let (file, last) = open_output(args)?;
    if let (Some(seq), Some(path), Some(topic)) =
        (last.as_ref().and_then(|last| last.seq), &args.output, &topic)
        && seq > topic.last_seq
    {
        let (path, name, last_seq) = (path.display(), &args.topic, topic.last_seq);
        bail!(
            "{path} ends with seq {seq}, but {name} ends with seq {last_seq}: the file is from another topic of this name"
        );
    }
    let query = query_of(args, topic.as_ref().map(|topic| topic.last_seq), last);
    let bar = progress::events(topic.map_or(0, |topic| topic.count));
    let mut history = client.history(&args.topic, query).filter(filter::for_server(&args.filter.filters));
    let mut out: Box<dyn Write> = match &file {
        Some(file) => Box::new(BufWriter::with_capacity(256 * 1024, file)),
        None => Box::new(BufWriter::with_capacity(256 * 1024, stdout())),
    };
    let mut written = Written::default();
    let exported = write_events(&mut history, &args.filter.filters, &mut out, &bar, &mut written).await;
    bar.finish_and_clear();
    // After a failure the file keeps the events received so far.
    out.flush()?;
    drop(out);
    if let Some(file) = &file {
        file.sync_all()?;
    }
    let Some(path) = &args.output else { return exported };
    let (path, Written { events, bytes }) = (path.display(), written);
    exported.with_context(|| {
        format!("{events} events were written to {path}, which is incomplete; --resume continues after them")
    })?;
    if args.json {
        let file = path.to_string();
        writeln!(stdout(), "{}", serde_json::json!({ "file": file, "events": events, "bytes": bytes }))?;
    } else {
        writeln!(stdout(), "{path}: {}, {}", counted(events, "event"), counted(bytes, "byte"))?;
    }
    Ok(())
}

/// Events and bytes that were written.
#[derive(Default)]
struct Written {
    events: u64,
    bytes: u64,
}

async fn write_events(
    history: &mut History,
    filters: &[Condition],
    out: &mut dyn Write,
    bar: &ProgressBar,
    written: &mut Written,
) -> anyhow::Result<()> {
    while let Some(event) = history.next().await? {
        if !filter::matches(filters, &event.event) {
            continue;
        }
        out.write_all(&event.json)?;
        out.write_all(b"\n")?;
        written.events += 1;
        written.bytes += event.json.len() as u64 + 1;
        bar.set_position(written.events);
        if written.events % 1024 == 0 {
            bar.set_message(progress::size(written.bytes));
        }
    }
    Ok(())
}

/// The events to read: those after the last line of a resumed file, otherwise those that the arguments name.
fn query_of(args: &ExportArgs, to_seq: Option<u64>, last: Option<LastLine>) -> HistoryQuery {
    let named = match args.from {
        ExportFrom::AfterId(id) => Some(After { id, seq: None }),
        _ => None,
    };
    HistoryQuery {
        after: last.map(|last| After { id: last.id, seq: last.seq }).or(named),
        from_ts: args.times.from_ts,
        to_ts: args.times.to_ts,
        to_seq,
        last: args.last,
        is_descending: args.order == Order::Desc,
    }
}

/// Opens the file to write to, if one is named. With `--resume`, also returns the file's last complete line, if it has one.
fn open_output(args: &ExportArgs) -> anyhow::Result<(Option<File>, Option<LastLine>)> {
    if args.resume && args.order == Order::Desc {
        bail!("--resume continues with newer events; it cannot be combined with --order desc");
    }
    Ok(match &args.output {
        None => (None, None),
        Some(path) if args.resume => {
            let (file, last) = resume(path, &args.topic).with_context(|| path.display().to_string())?;
            (Some(file), last)
        }
        Some(path) => (Some(create(path)?), None),
    })
}

fn create(path: &Path) -> anyhow::Result<File> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{} already exists; --resume continues after its last line", path.display())
        }
        opened => opened.with_context(|| path.display().to_string()),
    }
}

/// Opens the file, positioned after its last complete line, and returns that line. Creates the file if it does not exist.
fn resume(path: &Path, topic: &str) -> anyhow::Result<(File, Option<LastLine>)> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let length = file.metadata()?.len();
    // Bytes after the last line break are an incomplete line.
    let Some(end) = last_break(&mut file, length)?.map(|at| at + 1) else {
        file.set_len(0)?;
        file.rewind()?;
        return Ok((file, None));
    };
    let start = last_break(&mut file, end - 1)?.map_or(0, |at| at + 1);
    let mut line = vec![0; usize::try_from(end - start)?];
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut line)?;
    let last: LastLine = serde_json::from_slice(&line)
        .context("the last complete line is not an event; the file was not changed")?;
    let pattern = Pattern::new(topic)?;
    if let Some(other) = last.topic.as_deref().filter(|other| !pattern.matches(other)) {
        bail!("the file has events of {other}, not of {topic}; it was not changed");
    }
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    Ok((file, Some(last)))
}

/// The position of the last line break before `before`.
fn last_break(file: &mut File, before: u64) -> std::io::Result<Option<u64>> {
    let mut end = before;
    let mut piece = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(PIECE_BYTES);
        file.seek(SeekFrom::Start(start))?;
        piece.clear();
        file.take(end - start).read_to_end(&mut piece)?;
        if let Some(at) = piece.iter().rposition(|byte| *byte == b'\n') {
            return Ok(Some(start + at as u64));
        }
        end = start;
    }
    Ok(None)
}
