//! The part of the configuration that a reload replaces while the server runs.
//!
//! All of it is one value behind one `Arc`: a request sees either the old configuration or the new one, never a mixture. Nothing
//! here is read per message. A connection keeps the principal that it authenticated as, and checks it again only after a reload
//! ([`Standing`]).

use crate::auth::{Authenticator, Guard, Principal, Validity};
use crate::options::{RateOptions, ServerOptions};
use crate::serve_error::ServeError;
use crate::tls::{self, RelayCertificate, ServerTls};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// The options that a reload replaces.
pub(crate) struct LiveOptions {
    pub(crate) auth: Authenticator,
    /// Refuses requests from web pages of other origins, if no auth is configured.
    pub(crate) guard: Guard,
    /// The option `cors_origins`.
    pub(crate) cors_origins: Vec<String>,
    /// The option `allowed_hosts`.
    pub(crate) allowed_hosts: Vec<String>,
    /// The option `rates`.
    pub(crate) rates: RateOptions,
    /// The certificate for new connections; `None` without TLS.
    pub(crate) tls: Option<ServerTls>,
}

impl LiveOptions {
    /// Reads and checks the key files and the certificate. `relay`: the certificate for gateways, if it is not that of the options.
    pub(crate) fn new(options: &ServerOptions, relay: Option<&RelayCertificate>) -> Result<Self, ServeError> {
        let auth = Authenticator::new(&options.auth)?;
        let tls = options.tls.as_ref().map(|options| tls::server_tls(options, relay)).transpose()?;
        Ok(Self {
            guard: Guard::new(auth.is_configured(), &options.allowed_hosts, &options.cors_origins),
            auth,
            cors_origins: options.cors_origins.clone(),
            allowed_hosts: options.allowed_hosts.clone(),
            rates: options.rates.clone(),
            tls,
        })
    }
}

/// The current [`LiveOptions`].
pub(crate) struct Live {
    current: watch::Sender<Arc<LiveOptions>>,
    /// Incremented by each reload. Readers compare it with the version that they know, which needs no lock.
    version: AtomicU64,
}

impl Live {
    pub(crate) fn new(options: LiveOptions) -> Self {
        Self { current: watch::Sender::new(Arc::new(options)), version: AtomicU64::new(0) }
    }

    pub(crate) fn current(&self) -> Arc<LiveOptions> {
        Arc::clone(&self.current.borrow())
    }

    /// The number of reloads. Read it before [`current`](Self::current): then a change in between is noticed later.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Replaces the options and wakes every connection.
    pub(crate) fn replace(&self, options: LiveOptions) {
        self.current.send_modify(|current| {
            *current = Arc::new(options);
            // Inside of the lock: a reader that sees the new version gets the new options.
            self.version.fetch_add(1, Ordering::AcqRel);
        });
    }

    /// Notifies of later reloads.
    pub(crate) fn subscribe(&self) -> Reloads {
        Reloads(self.current.subscribe())
    }
}

/// Notifies a connection of reloads.
pub(crate) struct Reloads(watch::Receiver<Arc<LiveOptions>>);

impl Reloads {
    /// Resolves after the next reload. Never resolves after the server is dropped.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The token of a client is no longer valid, or no longer has the same permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Withdrawn {
    #[error("the token was revoked")]
    Revoked,
    #[error("the permissions of the token have changed: connect again")]
    Changed,
}

/// Whether a client still has the permissions with which its connection, request or stream began.
#[derive(Clone)]
pub(crate) struct Standing {
    live: Arc<Live>,
    principal: Arc<Principal>,
    /// The version of the options for which the principal was last checked.
    version: u64,
}

impl Standing {
    /// `version`: the version of the options before the principal was authenticated.
    pub(crate) fn new(live: &Arc<Live>, principal: &Arc<Principal>, version: u64) -> Self {
        Self { live: Arc::clone(live), principal: Arc::clone(principal), version }
    }

    /// The client.
    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Checks the principal if there was a reload since the last check.
    pub(crate) fn check(&mut self) -> Result<(), Withdrawn> {
        let version = self.live.version();
        if version == self.version {
            return Ok(());
        }
        match self.live.current().auth.validity(&self.principal) {
            Validity::Same => {
                self.version = version;
                Ok(())
            }
            Validity::Changed => Err(Withdrawn::Changed),
            Validity::Revoked => Err(Withdrawn::Revoked),
        }
    }

    /// Resolves when a reload has taken or changed the permissions.
    pub(crate) async fn withdrawn(&mut self) -> Withdrawn {
        let mut reloads = self.live.subscribe();
        loop {
            if let Err(withdrawn) = self.check() {
                return withdrawn;
            }
            reloads.changed().await;
        }
    }
}
