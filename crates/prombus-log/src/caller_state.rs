//! The caller's state, which results from applying its state records in order. The log restores it at open and stores
//! snapshots of it in checkpoints.

/// State that the caller keeps in the log along with the events.
///
/// The log owns one instance, to which only durable records are applied. At open, the instance is restored from a
/// checkpoint. Committed records are applied in order, at the latest before the next snapshot. A snapshot is taken for
/// each checkpoint. The log makes one call at a time: from its maintenance thread, or from the thread that opens,
/// closes, cleans or backs up the log. It makes no call while it appends or reads.
pub trait State: Send + 'static {
    /// Replaces the state with a snapshot that [`snapshot`](Self::snapshot) wrote. Not called if the checkpoint was
    /// written before the first batch.
    ///
    /// # Errors
    /// A message for the operator if the snapshot cannot be decoded; the log then does not open.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String>;

    /// Applies a committed record: its [`tag`](crate::NewState::tag) and its body.
    fn apply(&mut self, tag: u32, body: &[u8]);

    /// Writes the whole state.
    fn snapshot(&self, into: &mut Vec<u8>);
}

/// The state of a log without state records.
#[derive(Debug, Default)]
pub struct NoState;

impl State for NoState {
    fn restore(&mut self, _snapshot: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn apply(&mut self, _tag: u32, _body: &[u8]) {}

    fn snapshot(&self, _into: &mut Vec<u8>) {}
}
