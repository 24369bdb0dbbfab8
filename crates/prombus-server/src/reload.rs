//! Replaces tokens, JWT keys, rules, origins, rates and the certificate of a running server.
//!
//! A reload reads and checks everything before it changes anything. Then it replaces all of it at once, and every connection
//! whose permissions were taken or changed ends itself (see `live.rs`).

use crate::auth::AuthChanges;
use crate::live::{Live, LiveOptions};
use crate::options::{RateOptions, ServerOptions};
use crate::serve_error::ServeError;
use crate::tls::Certificate;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a reload is refused. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The server has auth, and would have none afterwards.
    #[error(
        "the new configuration has no token and no [auth.jwt]: the server would let everyone in; stop it and start it without \
         auth if that is intended"
    )]
    NoAuth,
    /// The options are invalid.
    #[error(transparent)]
    Invalid(#[from] ServeError),
}

/// What a reload changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReloadChanges {
    /// Changes of tokens, JWT keys and rules.
    pub auth: AuthChanges,
    /// Whether `cors_origins` or `allowed_hosts` have changed.
    pub has_new_origins: bool,
    /// Whether rates of connections have changed.
    pub has_new_rates: bool,
    /// The new certificate, if it is not the same as before.
    pub certificate: Option<Certificate>,
}

/// What is in effect, as counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveFigures {
    /// Static tokens.
    pub tokens: usize,
    /// Keys that can verify a JWT.
    pub jwt_keys: usize,
    /// Rules on topics and groups.
    pub rules: usize,
    /// Entries of `cors_origins`.
    pub origins: usize,
    /// Rates of connections that are limited: 0 to 2.
    pub rates: usize,
}

/// Replaces the options of a running server. Clones refer to the same server.
#[derive(Clone)]
pub struct ReloadHandle {
    live: Arc<Live>,
    /// Held during a reload, so that two do not interleave.
    reloading: Arc<Mutex<()>>,
    /// Whether this is a gateway of a shared store.
    is_shared: bool,
    /// Whether it was logged that other gateways keep the certificate of the start.
    has_noted_relay: Arc<AtomicBool>,
}

impl ReloadHandle {
    pub(crate) fn new(live: Arc<Live>, is_shared: bool) -> Self {
        Self { live, reloading: Arc::default(), is_shared, has_noted_relay: Arc::default() }
    }

    /// Replaces `auth`, `tls`, `cors_origins`, `allowed_hosts` and `rates` with those of the options; other options are ignored.
    /// Reads the key files and the certificate, so it blocks.
    ///
    /// Clients whose token was removed, has another secret, or has other permissions are disconnected, and their leases return
    /// at once. Other clients are not affected. New TLS handshakes of clients use the new certificate; open connections stay, and
    /// other gateways of a shared store keep seeing the certificate of the start. TLS is not switched on or off, because the URLs
    /// of all clients would be wrong.
    ///
    /// # Errors
    /// [`ReloadError`]. Nothing has changed then.
    pub fn reload(&self, options: &ServerOptions) -> Result<ReloadChanges, ReloadError> {
        let _reloading = self.reloading.lock();
        let before = self.live.current();
        if before.auth.is_configured() && !options.auth.is_configured() {
            return Err(ReloadError::NoAuth);
        }
        let mut after = LiveOptions::new(options, before.tls.as_ref().map(|tls| &tls.relay))?;
        if before.tls.is_some() != after.tls.is_some() {
            after.tls.clone_from(&before.tls);
        }
        let changes = changes(&before, &after);
        self.live.replace(after);
        if self.notes_relay(&changes) {
            tracing::info!(
                "other gateways keep seeing the certificate with which this process started; the relay between gateways gets \
                 the new one with the next restart"
            );
        }
        Ok(changes)
    }

    /// Whether to log now, once per process, that the certificate of the relay has not changed.
    fn notes_relay(&self, changes: &ReloadChanges) -> bool {
        self.is_shared && changes.certificate.is_some() && !self.has_noted_relay.swap(true, Ordering::Relaxed)
    }

    /// What is in effect now.
    pub fn figures(&self) -> LiveFigures {
        let live = self.live.current();
        let RateOptions { connection_publish, connection_deliver } = &live.rates;
        LiveFigures {
            tokens: live.auth.token_count(),
            jwt_keys: live.auth.jwt_key_count(),
            rules: live.auth.rule_count(),
            origins: live.cors_origins.len(),
            rates: [connection_publish, connection_deliver].into_iter().flatten().count(),
        }
    }

    /// The certificate that clients get; `None` without TLS.
    pub fn certificate(&self) -> Option<Certificate> {
        self.live.current().tls.as_ref().map(|tls| tls.certificate.clone())
    }
}

fn changes(before: &LiveOptions, after: &LiveOptions) -> ReloadChanges {
    let certificate = |of: &LiveOptions| of.tls.as_ref().map(|tls| tls.certificate.clone());
    let old = certificate(before);
    let is_new = |new: &Certificate| old.as_ref().is_none_or(|old| old.chain_hash != new.chain_hash);
    ReloadChanges {
        auth: after.auth.changes_since(&before.auth),
        has_new_origins: (&before.cors_origins, &before.allowed_hosts)
            != (&after.cors_origins, &after.allowed_hosts),
        has_new_rates: before.rates != after.rates,
        certificate: certificate(after).filter(is_new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::temporary_file::TemporaryFile;
    use crate::auth::{AuthOptions, JwtKey, JwtOptions, Scope, TokenHash, TokenOptions};
    use crate::options::{Rate, TlsOptions};

    fn options(names: &[&str]) -> ServerOptions {
        let token = |name: &&str| TokenOptions {
            name: (*name).to_owned(),
            secret: TokenHash::of(name),
            scopes: Scope::all(),
        };
        let auth = AuthOptions { tokens: names.iter().map(token).collect(), ..AuthOptions::default() };
        ServerOptions { auth, ..ServerOptions::default() }
    }

    fn handle(options: &ServerOptions) -> ReloadHandle {
        let live = Live::new(LiveOptions::new(options, None).expect("valid options"));
        ReloadHandle::new(Arc::new(live), true)
    }

    fn tls_files() -> (TemporaryFile, TemporaryFile) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        (TemporaryFile::new(made.cert.pem()), TemporaryFile::new(made.signing_key.serialize_pem()))
    }

    fn with_tls((cert, key): &(TemporaryFile, TemporaryFile)) -> ServerOptions {
        let tls = TlsOptions { cert: cert.path().to_owned(), key: key.path().to_owned() };
        ServerOptions { tls: Some(tls), ..options(&["a"]) }
    }

    #[test]
    fn a_reload_counts_what_changed_and_figures_are_those_in_effect() {
        let handle = handle(&options(&["a", "b"]));
        assert_eq!(handle.figures().tokens, 2);
        let mut new = options(&["b", "c", "d"]);
        new.cors_origins = vec!["https://a.example".to_owned()];
        new.rates.connection_publish = Some(Rate { per_second: 1.0, burst: 1.0 });
        let changes = handle.reload(&new).expect("valid");
        assert_eq!((changes.auth.tokens_added, changes.auth.tokens_revoked), (2, 1));
        assert!(changes.has_new_origins && changes.has_new_rates && changes.certificate.is_none());
        let figures = handle.figures();
        assert_eq!((figures.tokens, figures.origins, figures.rates), (3, 1, 1));
        let same = handle.reload(&new).expect("valid");
        assert_eq!(same.auth, AuthChanges::default());
        assert!(!same.has_new_origins && !same.has_new_rates);
    }

    #[test]
    fn a_reload_that_would_remove_all_auth_is_refused() {
        let with_auth = handle(&options(&["a"]));
        assert!(matches!(with_auth.reload(&options(&[])), Err(ReloadError::NoAuth)));
        assert_eq!(with_auth.figures().tokens, 1);
        let without = handle(&options(&[]));
        assert!(without.reload(&options(&[])).is_ok(), "there was no auth before");
        assert!(without.reload(&options(&["a"])).is_ok(), "auth may be added");
        assert!(without.reload(&options(&[])).is_err(), "but then it stays");
    }

    #[test]
    fn a_bad_key_file_or_certificate_changes_nothing() {
        let first = tls_files();
        let handle = handle(&with_tls(&first));
        let before = handle.certificate();
        let mut bad = with_tls(&first);
        bad.auth.tokens.clear();
        let keys = vec![JwtKey::JwksFile("/nowhere/jwks.json".into())];
        bad.auth.jwt = Some(JwtOptions { keys, ..JwtOptions::default() });
        assert!(handle.reload(&bad).expect_err("no such file").to_string().contains("jwks.json"));
        let (second_cert, _second_key) = tls_files();
        let mismatch = handle.reload(&with_tls(&(second_cert, first.1)));
        assert!(mismatch.expect_err("a mismatch").to_string().contains("does not belong"));
        assert_eq!((handle.certificate(), handle.figures().tokens), (before, 1));
    }

    #[test]
    fn a_new_intermediate_certificate_is_a_new_certificate() {
        let ((cert, key), (intermediate, _)) = (tls_files(), tls_files());
        let files = (cert, key);
        let handle = handle(&with_tls(&files));
        let (leaf, other) =
            [&files.0, &intermediate].map(|file| std::fs::read_to_string(file.path()).expect("PEM")).into();
        let chain = (TemporaryFile::new(leaf + &other), files.1);
        assert!(handle.reload(&with_tls(&chain)).expect("valid").certificate.is_some());
        assert!(handle.reload(&with_tls(&chain)).expect("valid").certificate.is_none());
    }

    #[test]
    fn tls_is_not_switched_on_or_off() {
        let files = tls_files();
        let (with, without) = (handle(&with_tls(&files)), handle(&options(&["a"])));
        assert_eq!(with.reload(&options(&["b"])).expect("valid").auth.tokens_added, 1);
        assert!(with.certificate().is_some());
        assert!(without.reload(&with_tls(&files)).is_ok());
        assert!(without.certificate().is_none());
    }

    #[test]
    fn a_new_certificate_is_reported_and_other_gateways_keep_the_first_one() {
        let (first, second) = (tls_files(), tls_files());
        let handle = handle(&with_tls(&first));
        let relay_hash = || handle.live.current().tls.as_ref().map(|tls| tls.relay.hash());
        let (started, before) = (relay_hash(), handle.certificate().expect("a certificate"));
        assert_eq!(handle.reload(&with_tls(&first)).expect("valid").certificate, None);
        let changes = handle.reload(&with_tls(&second)).expect("valid");
        let certificate = changes.certificate.expect("a new certificate");
        assert_eq!(handle.certificate().as_ref(), Some(&certificate));
        assert_ne!(certificate.chain_hash, before.chain_hash);
        assert_eq!(relay_hash(), started);
    }

    #[test]
    fn a_gateway_notes_once_that_the_relay_keeps_its_certificate() {
        let (first, second) = (tls_files(), tls_files());
        let replaced = handle(&with_tls(&first)).reload(&with_tls(&second)).expect("valid");
        let same = handle(&with_tls(&first)).reload(&with_tls(&first)).expect("valid");
        let handle = handle(&with_tls(&first));
        let notes = [&same, &replaced, &replaced].map(|changes| handle.notes_relay(changes));
        assert_eq!(notes, [false, true, false]);
        let alone = ReloadHandle { is_shared: false, ..self::handle(&with_tls(&first)) };
        assert!(!alone.notes_relay(&replaced), "no other gateway");
    }
}
