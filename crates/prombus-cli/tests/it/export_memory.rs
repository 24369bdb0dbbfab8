//! Test of the server's memory during a large `/export`: it stays small even if the client reads slowly.
//!
//! `PROMBUS_EXPORT_MB=1000` runs the long form.

use crate::http_client::{Poster, get};
use crate::long_form::{alone, asked};
use crate::serving::{Serving, mebibytes};
use crate::support::TempFolder;
use flate2::read::GzDecoder;
use serde::Deserialize;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

const TOPIC: &str = "archive";
/// Bytes of an event's payload.
const FILL_BYTES: usize = 1_000;
const BATCH: u64 = 2_000;
const PEAK_BYTES_MAX: u64 = 100_000_000;

#[derive(Deserialize)]
struct Exported<'a> {
    seq: u64,
    #[serde(borrow)]
    payload: Payload<'a>,
}

#[derive(Deserialize)]
struct Payload<'a> {
    number: u64,
    fill: &'a str,
}

/// Appends hexadecimal digits that differ from event to event, so that they compress only partly.
fn put_fill(into: &mut String, number: u64) {
    let mut state = number;
    for _ in 0..FILL_BYTES / 20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        write!(into, "{state:016x}----").unwrap();
    }
}

/// A reader that first waits until all buffers between server and client are full, and then reads the first `slow_bytes` slowly.
struct SlowReader<R> {
    inner: R,
    read_bytes: u64,
    slow_bytes: u64,
    /// When it began to read at full speed, and the bytes read before.
    fast_since: Option<(Instant, u64)>,
}

impl<R: Read> SlowReader<R> {
    /// About 30 MB/s.
    const PIECE_BYTES: u64 = 64 * 1024;
    const PAUSE: Duration = Duration::from_millis(2);

    /// The rate at full speed.
    fn bytes_per_second(&self) -> f64 {
        let (since, before) = self.fast_since.expect("nine tenths are read fast");
        (self.read_bytes - before) as f64 / since.elapsed().as_secs_f64()
    }
}

impl<R: Read> Read for SlowReader<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.read_bytes == 0 {
            std::thread::sleep(Duration::from_secs(1));
        }
        let count = self.inner.read(into)?;
        let before = self.read_bytes;
        self.read_bytes += count as u64;
        if self.read_bytes >= self.slow_bytes {
            self.fast_since.get_or_insert_with(|| (Instant::now(), self.read_bytes));
        } else if before / Self::PIECE_BYTES != self.read_bytes / Self::PIECE_BYTES {
            std::thread::sleep(Self::PAUSE);
        }
        Ok(count)
    }
}

/// The result of an export.
struct Exporting {
    line_bytes: u64,
    wire_bytes: u64,
    bytes_per_second: f64,
}

#[test]
fn the_memory_of_an_export_does_not_depend_on_its_size() {
    alone(async { block_in_place(measure_exports) });
}

fn measure_exports() {
    let megabytes = asked("PROMBUS_EXPORT_MB").unwrap_or(64);
    let count = (megabytes * 1_000_000 / FILL_BYTES as u64).next_multiple_of(BATCH);
    let folder = TempFolder::new();
    let serving = Serving::in_folder(&folder, &["--log", "warn"]);
    let started = Instant::now();
    fill(&serving, count);
    println!(
        "export: {count} events ({megabytes} MB) published as lines in {:.1} s ({:.0} MB/s), peak {:.1} MiB",
        started.elapsed().as_secs_f64(),
        megabytes as f64 / started.elapsed().as_secs_f64(),
        mebibytes(serving.memory().peak_bytes)
    );
    // A new process, so that the peak does not include the memory for publishing.
    serving.stop();
    for encoding in ["identity", "gzip"] {
        let serving = Serving::in_folder(&folder, &["--log", "warn"]);
        let at_start = serving.memory().peak_bytes;
        let started = Instant::now();
        let exporting = read_all(&serving, encoding, count);
        let peak = serving.memory().peak_bytes;
        println!(
            "export: {encoding}: {:.0} MB of lines ({:.0} MB on the wire) in {:.1} s, {:.0} MB/s of lines at full speed; peak \
             {:.1} MiB ({:.1} after the start)",
            exporting.line_bytes as f64 / 1e6,
            exporting.wire_bytes as f64 / 1e6,
            started.elapsed().as_secs_f64(),
            exporting.bytes_per_second / 1e6,
            mebibytes(peak),
            mebibytes(at_start)
        );
        assert!(peak < PEAK_BYTES_MAX, "the server had {peak} bytes at its peak");
    }
}

fn fill(serving: &Serving, count: u64) {
    let mut poster = Poster::connect(&serving.address().to_string());
    let mut lines = String::new();
    for batch in 0..count / BATCH {
        lines.clear();
        for number in batch * BATCH..(batch + 1) * BATCH {
            write!(lines, "{{\"number\":{number},\"fill\":\"").unwrap();
            put_fill(&mut lines, number);
            lines.push_str("\"}\n");
        }
        let (status, answer) = poster.publish_lines(TOPIC, lines.as_bytes());
        assert_eq!(status, 200, "{answer}");
    }
}

fn read_all(serving: &Serving, encoding: &str, count: u64) -> Exporting {
    let path = format!("/export?topic={TOPIC}");
    let answer = get(&serving.address().to_string(), &path, &format!("accept-encoding: {encoding}\r\n"));
    assert_eq!(answer.status, 200, "{}", answer.head);
    assert_eq!(answer.head.to_ascii_lowercase().contains("content-encoding: gzip"), encoding == "gzip");
    let slow_bytes = count * FILL_BYTES as u64 / if encoding == "gzip" { 20 } else { 10 };
    let mut wire = SlowReader { inner: answer.body, read_bytes: 0, slow_bytes, fast_since: None };
    let line_bytes = if encoding == "gzip" {
        check_lines(BufReader::with_capacity(64 * 1024, GzDecoder::new(&mut wire)), count)
    } else {
        check_lines(BufReader::with_capacity(64 * 1024, &mut wire), count)
    };
    // Reads the end of the chunks: an incomplete body is an error here.
    assert_eq!(wire.read(&mut [0; 16]).unwrap(), 0);
    let lines_to_wire = line_bytes as f64 / wire.read_bytes as f64;
    Exporting {
        line_bytes,
        wire_bytes: wire.read_bytes,
        bytes_per_second: wire.bytes_per_second() * lines_to_wire,
    }
}

fn check_lines(mut lines: impl BufRead, count: u64) -> u64 {
    let (mut line, mut fill, mut bytes) = (String::new(), String::new(), 0);
    for number in 0..count {
        line.clear();
        bytes += lines.read_line(&mut line).unwrap() as u64;
        let event: Exported<'_> =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("event {number}: {error}: {line}"));
        assert_eq!((event.seq, event.payload.number), (number + 1, number), "every event, in order");
        fill.clear();
        put_fill(&mut fill, number);
        assert!(event.payload.fill == fill, "event {number} differs from what was published");
    }
    line.clear();
    assert_eq!(lines.read_line(&mut line).unwrap(), 0, "an extra line: {line}");
    bytes
}
