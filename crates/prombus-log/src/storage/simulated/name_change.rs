//! Changes of file names: create, remove and rename.

use std::collections::BTreeMap;

/// A change of a file name: `from` is removed, `to` is added, or both. It contains the inode's number, so that it never
/// affects another file with the same name.
#[derive(Clone)]
pub(super) struct NameChange {
    pub(super) number: u64,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    /// Whether the change survives every power cut. Such a change is pending only to keep its order among the other
    /// changes.
    pub(super) certain: bool,
}

impl NameChange {
    pub(super) fn new(number: u64, from: Option<&str>, to: Option<&str>) -> Self {
        Self { number, from: from.map(str::to_owned), to: to.map(str::to_owned), certain: false }
    }

    /// Applies the change to `names`. Returns false if the change is not possible.
    pub(super) fn apply(&self, names: &mut BTreeMap<String, u64>) -> bool {
        let possible = match (&self.from, &self.to) {
            (Some(from), _) => names.get(from) == Some(&self.number),
            (None, Some(to)) => self.certain || !names.contains_key(to),
            (None, None) => false,
        };
        if !possible {
            return false;
        }
        if let Some(from) = &self.from {
            names.remove(from);
        }
        if let Some(to) = &self.to {
            names.insert(to.clone(), self.number);
        }
        true
    }
}
