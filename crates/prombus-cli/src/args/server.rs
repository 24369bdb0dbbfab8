//! Arguments that name the server of a command.

use clap::Args as ClapArgs;
use std::path::PathBuf;

/// The server that a command uses if nothing names one.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8090";

/// The server to connect to. [`crate::contexts::choose`] decides which values apply.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct ServerArgs {
    /// The server's URL: http://, https://, ws:// or wss:// [default: that of the context, else http://127.0.0.1:8090]
    #[arg(long, value_name = "URL", env = "PROMBUS_URL", help_heading = SERVER)]
    pub url: Option<String>,
    /// Token for the server [default: that of the context, else WS_TOKEN]
    #[arg(long, value_name = "TOKEN", env = "PROMBUS_TOKEN", hide_env_values = true, help_heading = SERVER)]
    pub token: Option<String>,
    /// PEM file with certificates to trust, in addition to those that this machine trusts
    #[arg(long, value_name = "FILE", env = "PROMBUS_CA_CERT", help_heading = SERVER)]
    pub ca_cert: Option<PathBuf>,
    /// A server that `prombus context add` has named [default: the one that `prombus context use` has chosen]
    #[arg(long, value_name = "NAME", env = "PROMBUS_CONTEXT", help_heading = SERVER)]
    pub context: Option<String>,
}

const SERVER: &str = "Server";
