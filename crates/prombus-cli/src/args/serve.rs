//! Arguments of `serve`. Flags that are settings come from `config/definitions.rs`.

use crate::config::SettingFlags;
use clap::Args as ClapArgs;

pub(super) const SERVE_HELP: &str = "\
A config file is read only if --config or PROMBUS_CONFIG names it.
Precedence: flag, then environment variable, then config file, then default.

Environment:
  WS_PORT          listen on this port of 127.0.0.1 (--listen, --port and PROMBUS_LISTEN take precedence)
  HTTP_PORT        also listen on this port of 127.0.0.1
  WS_TOKEN         a token that allows everything; if neither this nor a token or JWT key in the
                   config file is set, only clients on this machine have access
  PROMBUS_<KEY>, PROMBUS_<SECTION>_<KEY>
                   a key of the config file, e.g. PROMBUS_DATA, PROMBUS_LIMITS_MAX_CONNECTIONS; not
                   for keys in [[topic]], [[auth.token]] and [[auth.rule]]; separate the elements
                   of a list by commas

Examples:
  prombus serve
  prombus serve --demo --store memory:
  prombus serve --port 9000 --data /var/lib/prombus
  WS_TOKEN=secret prombus serve --listen 0.0.0.0:8090 --tls-cert cert.pem --tls-key key.pem
  prombus serve --store memory: --log debug
  PROMBUS_STORE=mongodb://user:password@db1,db2,db3/bus prombus serve --advertise 10.0.0.5:8090";

/// Arguments of `serve`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct ServeArgs {
    /// The flags that are settings.
    #[command(flatten)]
    pub settings: SettingFlags,
    /// Config file; `prombus config default` prints one
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Demo: publish sample heartbeats, and derive the states of processes from them
    #[arg(long)]
    pub demo: bool,
}
