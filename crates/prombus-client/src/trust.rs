//! Which certificates of servers a client trusts: those that the machine trusts, and those of a file.

use crate::error::ClientError;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The certificates that a client trusts. They are loaded when the first TLS connection is opened.
#[derive(Default)]
pub(crate) struct Trust {
    /// Trusted in addition to the certificates of this machine.
    added: Vec<CertificateDer<'static>>,
    config: OnceLock<Arc<ClientConfig>>,
}

impl Trust {
    /// Also trusts the certificates of a PEM file.
    pub(crate) fn add_file(&mut self, file: &Path) -> Result<(), ClientError> {
        let bad = |why: String| ClientError::CaCert { file: file.to_owned(), why };
        let text = std::fs::read(file).map_err(|error| bad(reason(&error)))?;
        let mut count = 0;
        for cert in CertificateDer::pem_slice_iter(&text) {
            let cert = cert.map_err(|error| bad(pem_reason(&error)))?;
            RootCertStore::empty()
                .add(cert.clone())
                .map_err(|_| bad(format!("certificate {} cannot be parsed", count + 1)))?;
            self.added.push(cert);
            count += 1;
        }
        if count == 0 {
            return Err(bad("it contains no certificate in PEM format".to_owned()));
        }
        Ok(())
    }

    /// The TLS configuration. `SSL_CERT_FILE` names a file that replaces the certificates of this machine.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, String> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        roots.add_parsable_certificates(self.added.iter().cloned());
        if roots.is_empty() {
            let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
            return Err(format!("this machine has no trusted certificates{why}"));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::clone(self.config.get_or_init(|| Arc::new(config))))
    }
}

fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        std::io::ErrorKind::IsADirectory => "it is a folder".to_owned(),
        _ => error.to_string(),
    }
}

fn pem_reason(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a certificate is incomplete (no END line)".to_owned(),
        pem::Error::Base64Decode(_) => "a certificate is not valid base64".to_owned(),
        _ => "it is not a PEM file".to_owned(),
    }
}
