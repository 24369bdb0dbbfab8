//! The reason of the last nack of an event. It is kept only in memory and within a budget: it informs people, and nothing
//! depends on it.

use super::Position;
use super::lease::PositionHasher;
use prombus_protocol::limits::MAX_LAST_ERROR_BYTES;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The size of an entry without its text.
const ENTRY_BYTES: usize = 64;
/// The most memory that all groups may use together.
const BUDGET_BYTES: usize = 16 << 20;

/// A memory budget that groups share.
#[derive(Clone, Debug)]
pub struct ErrorBudget(Arc<AtomicUsize>);

impl Default for ErrorBudget {
    fn default() -> Self {
        Self::new(BUDGET_BYTES)
    }
}

impl ErrorBudget {
    /// A budget of this many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    fn take(&self, bytes: usize) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The last errors of a group's unsettled events.
#[derive(Debug, Default)]
pub(super) struct LastErrors {
    by_position: HashMap<Position, Arc<str>, BuildHasherDefault<PositionHasher>>,
    budget: ErrorBudget,
}

impl LastErrors {
    pub(super) fn new(budget: ErrorBudget) -> Self {
        Self { by_position: HashMap::default(), budget }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_position.is_empty()
    }

    pub(super) fn get(&self, position: Position) -> Option<Arc<str>> {
        self.by_position.get(&position).cloned()
    }

    /// Stores the reason of a nack. If the nack has none, or the budget is used up, the previous reason is removed.
    pub(super) fn put(&mut self, position: Position, error: Option<&str>) {
        self.remove(position);
        let Some(error) = error.filter(|error| !error.is_empty()) else { return };
        let mut end = error.len().min(MAX_LAST_ERROR_BYTES);
        while !error.is_char_boundary(end) {
            end -= 1;
        }
        if self.budget.take(end + ENTRY_BYTES) {
            self.by_position.insert(position, error[..end].into());
        }
    }

    pub(super) fn remove(&mut self, position: Position) {
        // The common case: every ack calls this.
        if self.by_position.is_empty() {
            return;
        }
        if let Some(error) = self.by_position.remove(&position) {
            self.budget.give_back(error.len() + ENTRY_BYTES);
        }
    }
}

impl Drop for LastErrors {
    fn drop(&mut self) {
        let bytes = self.by_position.values().map(|error| error.len() + ENTRY_BYTES).sum();
        self.budget.give_back(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::SourceId;
    use super::*;

    fn at(seq: u64) -> Position {
        Position { source: SourceId(0), seq }
    }

    #[test]
    fn errors_are_cut_and_stay_within_the_budget_of_all_groups() {
        let budget = ErrorBudget::new(2 * (MAX_LAST_ERROR_BYTES + ENTRY_BYTES));
        let (mut one, mut two) = (LastErrors::new(budget.clone()), LastErrors::new(budget.clone()));
        let long = "é".repeat(300);
        one.put(at(1), Some(&long));
        assert_eq!(one.get(at(1)).as_deref(), Some("é".repeat(128).as_str()));
        two.put(at(1), Some("boom"));
        two.put(at(2), Some(&long));
        assert_eq!(two.get(at(2)), None, "no room");
        one.put(at(1), None);
        two.put(at(2), Some(&long));
        assert!(one.is_empty() && two.get(at(2)).is_some());
        drop(two);
        one.remove(at(1));
        assert_eq!(budget.0.load(Ordering::Relaxed), 2 * (MAX_LAST_ERROR_BYTES + ENTRY_BYTES));
    }
}
