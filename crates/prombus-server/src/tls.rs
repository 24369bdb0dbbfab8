//! TLS of the listeners: a certificate chain and its key, read from PEM files at startup.

use crate::options::TlsOptions;
use ::aws_lc_rs::digest::{SHA256, digest};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{Error as RustlsError, ServerConfig};

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
    /// SHA-256 of the certificate that it serves, without the rest of the chain.
    pub(crate) cert_hash: [u8; 32],
}

/// Checks that the files can be used for TLS.
///
/// # Errors
/// The file and its problem.
pub fn check_tls(options: &TlsOptions) -> Result<(), TlsSetupError> {
    server_tls(options).map(drop)
}

/// SHA-256 of a certificate.
pub(crate) fn cert_hash(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, certificate).as_ref());
    hash
}

pub(crate) fn server_tls(options: &TlsOptions) -> Result<ServerTls, TlsSetupError> {
    let chain = certificates(&options.cert)?;
    let cert_hash = chain.first().map(cert_hash).unwrap_or_default();
    let key = private_key(&options.key)?;
    let pair = |fault: RustlsError| TlsSetupError::Pair {
        cert: options.cert.clone(),
        key: options.key.clone(),
        fault: match fault {
            RustlsError::InconsistentKeys(_) => "the key does not belong to the certificate".to_owned(),
            other => other.to_string(),
        },
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(ServerTls { acceptor: TlsAcceptor::from(Arc::new(config)), cert_hash })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsSetupError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(file)?).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(content(file, "no certificate found (PEM)")),
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
        let message = server_tls(&options).err().unwrap().to_string();
        let names = |file: &TemporaryFile| message.contains(&file.path().display().to_string());
        assert!(names(&cert) || names(&key), "{message}");
        message
    }

    /// The protocol that client and server agree on.
    async fn shake_hands(options: &TlsOptions, root: &str) -> Option<Vec<u8>> {
        let acceptor = server_tls(options).unwrap().acceptor;
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
        let error = server_tls(&options).err().unwrap();
        assert!(error.to_string().contains("/nowhere/cert.pem"));
        assert!(std::error::Error::source(&error).is_some());
    }
}
