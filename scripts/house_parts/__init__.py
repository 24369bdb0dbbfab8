"""The parts of scripts/house: it measures the structure of the Rust code in this repository."""
