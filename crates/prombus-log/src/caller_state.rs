//! The caller's own state, folded from its state records. The log replays it at open and snapshots it in checkpoints.

//! The caller's own state, as a fold over its state records. The log replays it at open and snapshots it in checkpoints.

/// What a caller keeps in the log next to the events.
///
/// The log owns a copy that only ever holds what is durable: it is restored from a checkpoint, gets every committed record in
/// order, and is asked for a snapshot when a checkpoint is due. Calls come from the thread that opens or closes the log and
/// from its own background thread, one at a time, off the hot path.
pub trait State: Send + 'static {
    /// Replaces everything by what [`snapshot`](Self::snapshot) once wrote. Not called for a log without a batch.
    ///
    /// # Errors
    /// A message for the operator when the snapshot cannot be understood; the log then does not open.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String>;

    /// Takes in a committed record.
    fn apply(&mut self, tag: u32, body: &[u8]);

    /// Writes everything.
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
