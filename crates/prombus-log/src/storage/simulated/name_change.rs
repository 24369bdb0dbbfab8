//! Changes of the folder: names that are added, removed or renamed.

use std::collections::BTreeMap;

/// One change of the folder: a name gone, a name new, or both at once. It knows its inode, so that it never
/// hits another file that has the name by then.
#[derive(Clone)]
pub(super) struct NameChange {
    pub(super) number: u64,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    /// Durable from the start and in any case; it waits among the others only to stay in order with them.
    pub(super) certain: bool,
}

impl NameChange {
    pub(super) fn new(number: u64, from: Option<&str>, to: Option<&str>) -> Self {
        Self { number, from: from.map(str::to_owned), to: to.map(str::to_owned), certain: false }
    }

    /// Changes `names` and says whether it could.
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
