//! The states of a projector. Changes can be undone, for an event that is rejected.

use std::collections::{BTreeMap, BTreeSet};

/// States by key.
#[derive(Debug)]
pub struct States<S> {
    /// The current states, including changes that can still be undone.
    kept: BTreeMap<String, S>,
    /// The previous states of the keys that were changed since the last [`keep`](Self::keep), in the order of changes.
    before: Vec<(String, Option<S>)>,
}

impl<S> States<S> {
    pub(super) fn new(kept: BTreeMap<String, S>) -> Self {
        Self { kept, before: Vec::new() }
    }

    /// The state of a key.
    pub fn get(&self, key: &str) -> Option<&S> {
        self.kept.get(key)
    }

    /// Sets the state of a key, to be published.
    pub fn set(&mut self, key: impl Into<String>, state: S) {
        let key = key.into();
        let before = self.kept.insert(key.clone(), state);
        self.before.push((key, before));
    }

    /// Removes a key: `null` is published for it. Does nothing if the key has no state.
    pub fn remove(&mut self, key: &str) {
        if let Some((key, before)) = self.kept.remove_entry(key) {
            self.before.push((key, Some(before)));
        }
    }

    /// All keys with their states, in the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &S)> {
        self.kept.iter().map(|(key, state)| (key.as_str(), state))
    }

    /// How many keys have a state.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether no key has a state.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Keys that were changed since the last [`keep`](Self::keep).
    pub(super) fn changed(&self) -> BTreeSet<String> {
        self.before.iter().map(|(key, _)| key.clone()).collect()
    }

    /// Makes all changes permanent: they cannot be undone any more.
    pub(super) fn keep(&mut self) {
        self.before.clear();
    }

    /// Undoes all changes since the last [`keep`](Self::keep).
    pub(super) fn undo(&mut self) {
        while let Some((key, before)) = self.before.pop() {
            match before {
                Some(state) => drop(self.kept.insert(key, state)),
                None => drop(self.kept.remove(&key)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undo_reverts_sets_and_removals_of_the_same_key() {
        let mut states = States::new(BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]));
        states.set("a", 10);
        states.remove("a");
        states.set("a", 11);
        states.set("c", 3);
        states.remove("c");
        states.remove("b");
        states.remove("not there");
        assert_eq!(states.changed().into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        states.undo();
        assert_eq!(states.iter().collect::<Vec<_>>(), [("a", &1), ("b", &2)]);
        states.set("a", 5);
        states.keep();
        states.undo();
        assert_eq!(states.get("a"), Some(&5));
    }
}
