//! Runs the golden fixtures, which the TypeScript SDK runs too: what one side writes the other one reads.

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
