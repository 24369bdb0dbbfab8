"""The modules of scripts/house, which measures the structure of the Rust code in this repository."""
