//! The flag `--json`.

use clap::Args as ClapArgs;

/// How a command prints its results.
#[derive(Clone, Copy, Debug, Default, ClapArgs)]
pub struct JsonArgs {
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
