//! Arguments that name the server of a command.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;

/// The server that a command uses if nothing names one.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8090";

/// The server to connect to. [`crate::contexts::choose`] decides which values apply.
#[derive(Clone, Debug, Default)]
pub struct ServerArgs {
    /// The values of flags.
    pub flags: ServerValues,
    /// The values of environment variables whose flags were not given.
    pub variables: ServerValues,
}

/// The values of the flags or of their environment variables.
#[derive(Clone, Debug, Default, Args)]
pub struct ServerValues {
    /// The server's URL: http://, https://, ws:// or wss:// [default: that of the context, else http://127.0.0.1:8090]
    #[arg(long, value_name = "URL", env = "PROMBUS_URL", help_heading = SERVER)]
    pub url: Option<String>,
    /// Token for the server [default: that of the context; for a server on this machine, else WS_TOKEN]
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

/// Moves a value to the flags or to the variables.
fn put<T>(value: Option<T>, is_flag: bool, flag: &mut Option<T>, variable: &mut Option<T>) {
    *if is_flag { flag } else { variable } = value;
}

/// An empty flag counts as not given, as in `--url "$URL"` without a `URL`: then the variable applies.
fn replace_empty<T: AsRef<OsStr> + FromStr>(flag: &mut Option<T>, variable: &mut Option<T>, name: &str) {
    if flag.as_ref().is_some_and(|value| value.as_ref().is_empty()) {
        *flag = None;
        *variable = std::env::var(name).ok().and_then(|value| value.parse().ok());
    }
}

impl FromArgMatches for ServerArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        // A flag with the value of its variable is a flag: clap knows where each value comes from.
        let is_flag = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        let are_flags = ["url", "token", "ca_cert", "context"].map(is_flag);
        let [url_is_flag, token_is_flag, ca_cert_is_flag, context_is_flag] = are_flags;
        let ServerValues { url, token, ca_cert, context } = ServerValues::from_arg_matches_mut(matches)?;
        let mut args = Self::default();
        let Self { flags, variables } = &mut args;
        put(url, url_is_flag, &mut flags.url, &mut variables.url);
        put(token, token_is_flag, &mut flags.token, &mut variables.token);
        put(ca_cert, ca_cert_is_flag, &mut flags.ca_cert, &mut variables.ca_cert);
        put(context, context_is_flag, &mut flags.context, &mut variables.context);
        replace_empty(&mut flags.url, &mut variables.url, "PROMBUS_URL");
        replace_empty(&mut flags.token, &mut variables.token, "PROMBUS_TOKEN");
        replace_empty(&mut flags.ca_cert, &mut variables.ca_cert, "PROMBUS_CA_CERT");
        replace_empty(&mut flags.context, &mut variables.context, "PROMBUS_CONTEXT");
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ServerArgs {
    fn augment_args(command: Command) -> Command {
        ServerValues::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        ServerValues::augment_args_for_update(command)
    }
}
