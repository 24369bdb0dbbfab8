//! Decides which names have a label of their own: first come, first kept.

use std::collections::HashMap;

/// The label of the row that sums the topics, groups or members without a label of their own.
pub(super) const OTHER: &str = "_other";

/// The names with a label of their own. A name keeps it as long as it exists, so that no series disappears because another name
/// has grown.
#[derive(Debug)]
pub(super) struct OwnLabels {
    /// How many names can have one.
    max: usize,
    /// The names, and the number of the last scrape in which each existed.
    names: HashMap<String, u64>,
    scrape: u64,
}

impl OwnLabels {
    pub(super) fn new(max: usize) -> Self {
        Self { max, names: HashMap::new(), scrape: 0 }
    }

    /// Takes the labels of names that no longer exist, and gives the free ones to the first names of `names`, all that exist.
    /// `_other` gets none, because that label is for the rest.
    pub(super) fn assign<'a>(&mut self, names: impl Iterator<Item = &'a str> + Clone) {
        self.scrape += 1;
        for name in names.clone() {
            if let Some(scrape) = self.names.get_mut(name) {
                *scrape = self.scrape;
            }
        }
        self.names.retain(|_, scrape| *scrape == self.scrape);
        for name in names {
            if self.names.len() >= self.max {
                return;
            }
            if name != OTHER && !self.names.contains_key(name) {
                self.names.insert(name.to_owned(), self.scrape);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }
}
