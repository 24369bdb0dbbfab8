//! The buses that the tests run on. The tests of other engines have a module of this name with theirs.

use prombus::Bus;
use std::path::Path;

/// A bus that keeps its events.
pub async fn durable(folder: &Path) -> Bus {
    Bus::open(folder).await.expect("a bus opens")
}

/// A fresh bus that need not keep anything.
pub async fn fresh() -> Bus {
    Bus::memory()
}
