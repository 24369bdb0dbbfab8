//! Options of a client.

use super::Client;
use crate::address::Address;
use crate::error::ClientError;
use crate::http::Http;
use crate::trust::Trust;
use prombus_protocol::Token;
use std::fmt;
use std::path::{Path, PathBuf};

/// Options of a [`Client`].
///
/// ```no_run
/// # fn example() -> Result<(), prombus_client::ClientError> {
/// let client = prombus_client::Client::builder("https://bus.example").token("secret").ca_cert("ca.pem").build()?;
/// # Ok(()) }
/// ```
#[must_use]
pub struct ClientBuilder {
    url: String,
    token: Option<Token>,
    /// Files of certificates to trust.
    ca_certs: Vec<PathBuf>,
}

impl Client {
    /// A client with more options: certificates to trust.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder { url: url.to_owned(), token: None, ca_certs: Vec::new() }
    }
}

impl ClientBuilder {
    /// The token to send with every request.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(Token::new(token));
        self
    }

    /// Also trusts the certificates of this PEM file, in addition to those that the machine trusts.
    pub fn ca_cert(mut self, file: impl AsRef<Path>) -> Self {
        self.ca_certs.push(file.as_ref().to_owned());
        self
    }

    /// A client that connects when it is used.
    ///
    /// # Errors
    /// [`ClientError::Address`] if the URL is not an address, [`ClientError::CaCert`] if a file of certificates cannot be used.
    pub fn build(self) -> Result<Client, ClientError> {
        let address = Address::parse(&self.url)?;
        let mut trust = Trust::default();
        for file in &self.ca_certs {
            trust.add_file(file)?;
        }
        Ok(Client::over(Http::new(address, self.token, trust)))
    }
}

/// The token is not shown.
impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("ca_certs", &self.ca_certs).finish_non_exhaustive()
    }
}
