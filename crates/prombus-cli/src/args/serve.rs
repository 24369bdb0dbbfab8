//! Arguments of `serve`. Those that are settings come from their definitions.

use crate::config::SettingFlags;
use clap::Args as ClapArgs;

pub(super) const SERVE_HELP: &str = "\
A config file is read only when --config or PROMBUS_CONFIG names it.
A flag takes precedence over the environment, that over the config file, that over the default.

Environment:
  WS_PORT          the port in place of 8090 (--listen and PROMBUS_LISTEN take precedence)
  HTTP_PORT        one more listener, on 127.0.0.1
  WS_TOKEN         a token that may do everything; without it, or tokens in the config,
                   only this machine gets in
  PROMBUS_<KEY>, PROMBUS_<SECTION>_<KEY>
                   every key of the config, e.g. PROMBUS_DATA, PROMBUS_LIMITS_MAX_CONNECTIONS;
                   lists are separated by commas

Examples:
  prombus serve
  prombus serve --demo --store memory:
  prombus serve --listen 127.0.0.1:9000 --data /var/lib/prombus
  WS_TOKEN=secret prombus serve --listen 0.0.0.0:8090 --tls-cert cert.pem --tls-key key.pem
  prombus serve --store memory: --log debug
  PROMBUS_STORE=mongodb://user:password@db1,db2,db3/bus prombus serve --advertise 10.0.0.5:8090";

/// What `serve` takes.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct ServeArgs {
    /// Flags of settings.
    #[command(flatten)]
    pub settings: SettingFlags,
    /// A config file; see `prombus config default`
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Publish sample heartbeats and project them to states of processes, for a look around
    #[arg(long)]
    pub demo: bool,
}
