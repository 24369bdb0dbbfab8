//! The caller's state, as a fold over its state records. The log replays it at open and snapshots it in checkpoints.

/// State that the caller keeps in the log along with the events.
///
/// The log owns a copy that contains durable records only. The copy is restored from a checkpoint, receives every committed
/// record in order, and is asked for a snapshot when a checkpoint is due. The log calls it from the thread that opens or
/// closes the log and from its background thread, one call at a time, off the hot path.
pub trait State: Send + 'static {
    /// Replaces the state with a snapshot that [`snapshot`](Self::snapshot) wrote. Not called for a log without a batch.
    ///
    /// # Errors
    /// A message for the operator if the snapshot cannot be decoded; the log then does not open.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String>;

    /// Applies a committed record.
    fn apply(&mut self, tag: u32, body: &[u8]);

    /// Writes the whole state.
    fn snapshot(&self, into: &mut Vec<u8>);
}

/// For a log without state records.
#[derive(Debug, Default)]
pub struct NoState;

impl State for NoState {
    fn restore(&mut self, _snapshot: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn apply(&mut self, _tag: u32, _body: &[u8]) {}

    fn snapshot(&self, _into: &mut Vec<u8>) {}
}
