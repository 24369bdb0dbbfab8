//! The error for wrong arguments that clap cannot find, such as a topic name that is not valid.

use prombus_client::ClientError;
use std::fmt::{self, Display};

/// Wrong arguments. The command ends with exit code 2, as when clap refuses them.
#[derive(Debug)]
pub struct WrongArguments(String);

impl WrongArguments {
    /// The exit code of a command with wrong arguments; the same as clap's.
    pub const EXIT_CODE: u8 = 2;

    /// Says what is wrong.
    pub fn new(why: impl Display) -> Self {
        Self(why.to_string())
    }

    /// Whether wrong arguments caused an error. The address of a server is an argument too, wherever it was found to be wrong.
    pub fn caused(error: &anyhow::Error) -> bool {
        error.is::<Self>() || matches!(error.downcast_ref(), Some(ClientError::Address { .. }))
    }
}

impl Display for WrongArguments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for WrongArguments {}
