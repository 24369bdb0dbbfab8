//! The buses that the tests use. The tests of other engines have a module of the same name for their buses.

use prombus::Bus;
use std::path::Path;

/// A durable bus.
pub async fn durable(folder: &Path) -> Bus {
    Bus::open(folder).await.expect("a bus opens")
}

/// A new bus that need not be durable.
pub async fn fresh() -> Bus {
    Bus::memory()
}
