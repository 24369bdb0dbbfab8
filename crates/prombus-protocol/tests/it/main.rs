//! Runs the golden fixtures. The TypeScript SDK runs them too, so that each side reads what the other writes.

mod frames;
mod names;
mod options;
mod reader;
mod records;

/// The content of a fixture.
fn fixture<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let path = format!("{}/fixtures/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}
