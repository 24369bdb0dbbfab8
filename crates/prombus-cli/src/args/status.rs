//! Arguments of the commands that show what a server knows about topics and itself: state, health, settings.

use super::json::JsonArgs;
use super::name;
use super::remote::ServerArgs;
use crate::time;
use clap::Args as ClapArgs;

pub(super) const STATE_HELP: &str = "\
The state of a topic is the newest event of each key that is not deleted. With KEY, only the payload of that key's newest \
event is printed. With --follow, the changes after that state are printed as they happen: none is missing and none is printed \
twice, also if the connection breaks in between.

Exit code: 0 success; 1 failure, or the topic does not have the key.

Examples:
  prombus state prices
  prombus state prices EUR
  prombus state prices --at 2026-05-01T12:00:00Z
  prombus state prices --json | jq .payload
  prombus state prices EUR --follow";

/// Arguments of `state`.
#[derive(Debug, ClapArgs)]
pub struct StateArgs {
    /// The topic
    #[arg(value_parser = name::topic)]
    pub topic: String,
    /// Only this key
    pub key: Option<String>,
    /// The state as of this time: milliseconds since 1970, 2026-05-01, 2026-05-01T12:00:00Z, or relative: -90m, -1d
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_hyphen_values = true)]
    pub at: Option<i64>,
    /// Print changes as they happen, until interrupted
    #[arg(long, short, conflicts_with = "at")]
    pub follow: bool,
    /// Print complete events as JSON, one per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub(super) const HEALTH_HELP: &str = "\
Exit code: 0 the server can write and accepts new work; 1 it is degraded (for example, its disk is full), shuts down, or \
cannot be reached. No token is needed.

Examples:
  prombus health
  prombus health --json --url https://bus.example.com";

/// Arguments of `health`.
#[derive(Debug, ClapArgs)]
pub struct HealthArgs {
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub(super) const SETTINGS_HELP: &str = "\
Shows each setting with its effective value and its source: the default, the config file with the line, an environment \
variable, or a flag. Secrets are shown as ***. The token needs the scope admin.

Examples:
  prombus settings
  prombus settings limits.
  prombus settings --changed";

/// Arguments of `settings`.
#[derive(Debug, ClapArgs)]
pub struct SettingsArgs {
    /// Only settings whose names begin with this text
    pub prefix: Option<String>,
    /// Only settings that are not defaults
    #[arg(long)]
    pub changed: bool,
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}
