//! TLS of the listeners: a certificate chain and its key, read from PEM files at startup and at each reload.
//!
//! Other gateways of a shared store know the certificate of the leader by the hash in the lease record, which is written once per
//! term. So a reload must not change what they see: a connection whose client offers [`RELAY_PROTOCOL`] gets the certificate with
//! which the process started.

mod certificate;

pub use certificate::Certificate;
pub(crate) use certificate::cert_hash;

use crate::options::TlsOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error as RustlsError, ServerConfig};

/// The ALPN protocol that a follower offers, besides HTTP/1.1, when it connects to the leader. The leader never selects it.
pub(crate) const RELAY_PROTOCOL: &[u8] = b"prombus-relay";

/// An invalid TLS configuration.
#[derive(Debug, Error)]
pub enum TlsSetupError {
    /// A file cannot be read.
    #[error("cannot read the TLS file {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A file does not contain a usable certificate or key.
    #[error("TLS file {}: {fault}", file.display())]
    Content {
        /// The file.
        file: PathBuf,
        /// The problem.
        fault: String,
    },
    /// Each file is valid, but certificate and key do not match or cannot be used.
    #[error("certificate {} with key {}: {fault}", cert.display(), key.display())]
    Pair {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// The problem.
        fault: String,
    },
}

/// TLS of the listeners.
#[derive(Clone)]
pub(crate) struct ServerTls {
    /// Offers only HTTP/1.1, because WebSocket upgrades need it.
    pub(crate) acceptor: TlsAcceptor,
    /// The certificate for clients.
    pub(crate) certificate: Certificate,
    /// The certificate for other gateways.
    pub(crate) relay: RelayCertificate,
}

/// The certificate that other gateways of a shared store see: the one with which the process started.
#[derive(Clone, Debug)]
pub(crate) struct RelayCertificate(Arc<CertifiedKey>);

impl RelayCertificate {
    /// SHA-256 of the certificate, without the rest of the chain.
    pub(crate) fn hash(&self) -> [u8; 32] {
        self.0.cert.first().map(cert_hash).unwrap_or_default()
    }
}

/// Chooses the certificate of a connection.
#[derive(Debug)]
struct Certificates {
    clients: Arc<CertifiedKey>,
    gateways: RelayCertificate,
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_relay =
            hello.alpn().is_some_and(|mut offered| offered.any(|protocol| protocol == RELAY_PROTOCOL));
        Some(Arc::clone(if is_relay { &self.gateways.0 } else { &self.clients }))
    }
}

/// Checks that the files can be used for TLS. Returns the certificate.
///
/// # Errors
/// The file and its problem.
pub fn check_tls(options: &TlsOptions) -> Result<Certificate, TlsSetupError> {
    server_tls(options, None).map(|tls| tls.certificate)
}

/// Reads the files. `relay`: the certificate for other gateways; by default that of the files.
pub(crate) fn server_tls(
    options: &TlsOptions,
    relay: Option<&RelayCertificate>,
) -> Result<ServerTls, TlsSetupError> {
    let chain = certificates(&options.cert)?;
    let key = private_key(&options.key)?;
    let pair = |fault: RustlsError| TlsSetupError::Pair {
        cert: options.cert.clone(),
        key: options.key.clone(),
        fault: match fault {
            RustlsError::InconsistentKeys(_) => "the key does not belong to the certificate".to_owned(),
            other => other.to_string(),
        },
    };
    let certificate = Certificate::new(&options.cert, &chain);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let certified = Arc::new(CertifiedKey::from_der(chain, key, &provider).map_err(pair)?);
    let relay = relay.cloned().unwrap_or_else(|| RelayCertificate(Arc::clone(&certified)));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Certificates { clients: certified, gateways: relay.clone() }));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(ServerTls { acceptor: TlsAcceptor::from(Arc::new(config)), certificate, relay })
}

const NO_CERTIFICATE: &str = "no certificate found (PEM)";

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsSetupError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(file)?).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(content(file, NO_CERTIFICATE)),
        Ok(chain) => Ok(chain),
        Err(fault) => Err(content(file, format!("invalid PEM: {fault}"))),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsSetupError> {
    let text = read(file)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|fault| match fault {
        pem::Error::NoItemsFound if text.windows(9).any(|word| word == b"ENCRYPTED") => content(
            file,
            "the private key is encrypted: decrypt it first, the server cannot ask for a password",
        ),
        pem::Error::NoItemsFound => content(file, "no private key found (PEM with PKCS#8, RSA or EC)"),
        fault => content(file, format!("invalid PEM: {fault}")),
    })
}

fn read(file: &Path) -> Result<Vec<u8>, TlsSetupError> {
    std::fs::read(file).map_err(|source| TlsSetupError::Read { file: file.to_owned(), source })
}

fn content(file: &Path, fault: impl Into<String>) -> TlsSetupError {
    TlsSetupError::Content { file: file.to_owned(), fault: fault.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::temporary_file::TemporaryFile;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    fn certified() -> (String, rcgen::KeyPair) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key)
    }

    fn fault(cert: &str, key: &str) -> String {
        let (cert, key) = (TemporaryFile::new(cert), TemporaryFile::new(key));
        let options = TlsOptions { cert: cert.path().to_owned(), key: key.path().to_owned() };
        let message = server_tls(&options, None).err().unwrap().to_string();
        let names = |file: &TemporaryFile| message.contains(&file.path().display().to_string());
        assert!(names(&cert) || names(&key), "{message}");
        message
    }

    /// The protocol that client and server agree on.
    async fn shake_hands(options: &TlsOptions, root: &str) -> Option<Vec<u8>> {
        let acceptor = server_tls(options, None).unwrap().acceptor;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let (client, server) = tokio::io::duplex(64 << 10);
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let (client, server) = tokio::join!(connector.connect(name, client), acceptor.accept(server));
        server.unwrap();
        client.unwrap().get_ref().1.alpn_protocol().map(<[u8]>::to_vec)
    }

    #[tokio::test]
    async fn a_client_is_served_http_1_with_the_certificate() {
        let (cert, key) = certified();
        let (other, _) = certified();
        for chain in [cert.clone(), format!("a comment\n{cert}\n{other}")] {
            let cert_file = TemporaryFile::new(&chain);
            let key_file = TemporaryFile::new(key.serialize_pem());
            let options = TlsOptions { cert: cert_file.path().to_owned(), key: key_file.path().to_owned() };
            assert_eq!(shake_hands(&options, &cert).await.as_deref(), Some(&b"http/1.1"[..]));
        }
    }

    #[tokio::test]
    async fn key_and_certificate_may_be_in_one_file() {
        let (cert, key) = certified();
        let file = TemporaryFile::new(format!("{}{cert}", key.serialize_pem()));
        let options = TlsOptions { cert: file.path().to_owned(), key: file.path().to_owned() };
        assert!(shake_hands(&options, &cert).await.is_some());
    }

    #[test]
    fn faults_are_named_with_their_file() {
        let (cert, key) = certified();
        let key = key.serialize_pem();
        let (_, other) = certified();
        assert!(fault(&cert, &other.serialize_pem()).contains("does not belong"));
        assert!(fault("", &key).contains("no certificate"));
        assert!(fault(&key, &key).contains("no certificate"));
        assert!(fault(&cert, &cert).contains("no private key"));
        assert!(fault(&cert, &key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY")).contains("encrypted"));
        assert!(fault(&cert[..cert.len() / 2], &key).contains("invalid PEM"));
        assert!(fault(&cert, &key.replace('M', "!")).contains("PEM"));
        let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(fault(garbage, &key).contains("certificate"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let options = TlsOptions { cert: "/nowhere/cert.pem".into(), key: "/nowhere/key.pem".into() };
        let error = server_tls(&options, None).err().unwrap();
        assert!(error.to_string().contains("/nowhere/cert.pem"));
        assert!(std::error::Error::source(&error).is_some());
    }
}
