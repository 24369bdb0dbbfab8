//! TLS to a server whose certificate is pinned by its hash. Names, issuers and dates are not checked: the hash comes from the
//! lease record, which only gateways write.

use crate::tls::{RELAY_PROTOCOL, cert_hash};
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as RustlsError, SignatureScheme,
};

/// Accepts only one certificate. The handshake still verifies that the server has its private key.
#[derive(Debug)]
struct PinnedCertificate {
    hash: [u8; 32],
    algorithms: WebPkiSupportedAlgorithms,
}

/// A connector that accepts only the certificate with this hash.
pub(super) fn connector(hash: [u8; 32]) -> Result<TlsConnector, RustlsError> {
    let provider = aws_lc_rs::default_provider();
    let verifier = PinnedCertificate { hash, algorithms: provider.signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    // The leader selects HTTP/1.1. The other protocol asks for the certificate with this hash, even after a reload.
    config.alpn_protocols = vec![RELAY_PROTOCOL.to_vec(), b"http/1.1".to_vec()];
    // Names are not checked, so none is sent.
    config.enable_sni = false;
    Ok(TlsConnector::from(Arc::new(config)))
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        if cert_hash(end_entity) == self.hash {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        verify_tls12_signature(message, cert, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        verify_tls13_signature(message, cert, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
