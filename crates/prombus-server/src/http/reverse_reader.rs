//! Reads a topic backward, in windows of seqs that fit into memory.

use super::response_stream::{CHUNK, StreamError};
use super::topic_reader::TopicReader;
use prombus::{EventChunk, PullLimit};

/// Number of seqs in the first window.
const FIRST_SEQS: u64 = 256;
/// After a window with fewer bytes than this, the next window is larger.
const SPARSE_BYTES: usize = CHUNK.bytes / 4;

/// Reads a topic from a position toward lower seqs.
#[derive(Debug)]
pub(super) struct ReverseReader {
    /// The next window ends before this seq.
    before_seq: u64,
    /// The lowest seq that is read.
    first_seq: u64,
    /// Number of seqs in the next window.
    window_seqs: u64,
}

/// The events of a window, in seq order.
pub(super) struct Window {
    pub(super) chunk: EventChunk,
    /// Events with this seq or a higher one do not belong to the window.
    pub(super) end_seq: u64,
}

impl ReverseReader {
    pub(super) fn new(first_seq: u64, before_seq: u64) -> Self {
        Self { before_seq, first_seq, window_seqs: FIRST_SEQS }
    }

    /// Lets the next window end before this seq.
    pub(super) fn go_below(&mut self, seq: u64) {
        self.before_seq = seq;
    }

    /// The next window ends before this seq; all windows so far begin at it or later.
    pub(super) fn before_seq(&self) -> u64 {
        self.before_seq
    }

    /// Reads the window before the previous one; `None` if that one began at the start of the range.
    pub(super) async fn read(
        &mut self,
        topic_reader: &mut TopicReader,
    ) -> Result<Option<Window>, StreamError> {
        loop {
            let end_seq = self.before_seq;
            if end_seq <= self.first_seq {
                return Ok(None);
            }
            let start_seq = end_seq.saturating_sub(self.window_seqs).max(self.first_seq);
            topic_reader.next_seq = start_seq;
            let events = u32::try_from(end_seq - start_seq).unwrap_or(u32::MAX);
            let chunk = topic_reader.read(PullLimit { events, ..CHUNK }).await?;
            // Nothing can be read: the topic does not exist.
            if chunk.next_seq <= start_seq {
                return Ok(None);
            }
            if chunk.next_seq < end_seq {
                // The window is too large for one piece, or an event in it is unreadable. A window of one event always fits.
                self.window_seqs = ((end_seq - start_seq) / 2).max(1);
                continue;
            }
            let bytes: usize = chunk.events.items().iter().map(|item| chunk.events.body(item).len()).sum();
            if bytes < SPARSE_BYTES {
                self.window_seqs = self.window_seqs.saturating_mul(2);
            }
            self.before_seq = start_seq;
            return Ok(Some(Window { chunk, end_seq }));
        }
    }
}
