//! Why a TLS connection could not be established, in words.

use crate::address::Address;
use crate::error::ClientError;
use crate::io_reason::io_reason;
use prombus_protocol::instant_text;
use std::io;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error as RustlsError};

/// The error of a failed handshake.
pub(crate) fn tls_failure(address: &Address, error: &io::Error) -> ClientError {
    let address_text = address.to_string();
    let tls = |why: String| ClientError::Tls { address: address.to_string(), why };
    let Some(fault) = error.get_ref().and_then(|inner| inner.downcast_ref::<RustlsError>()) else {
        let why = format!("{} during the TLS handshake", io_reason(error));
        return ClientError::Lost { address: address_text, why };
    };
    match fault {
        RustlsError::InvalidCertificate(fault) => {
            ClientError::Certificate { address: address_text, why: certificate_reason(fault, &address.host) }
        }
        RustlsError::InvalidMessage(_) => tls(
            "the server answered without TLS; use http:// instead of https://, or ws:// instead of wss://"
                .to_owned(),
        ),
        RustlsError::AlertReceived(AlertDescription::ProtocolVersion) => {
            tls("the server supports neither TLS 1.3 nor TLS 1.2".to_owned())
        }
        RustlsError::AlertReceived(alert) => tls(alert_reason(*alert).to_owned()),
        RustlsError::PeerIncompatible(_) => {
            tls("the server offers no TLS version or cipher that this client supports".to_owned())
        }
        // Their texts contain debug output.
        _ => tls("the server does not follow the TLS protocol".to_owned()),
    }
}

/// Why a server refused the handshake.
fn alert_reason(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            "the server refused the handshake: it supports none of this client's ciphers"
        }
        AlertDescription::UnrecognisedName => {
            "the server refused the handshake: it does not know this host name"
        }
        AlertDescription::CertificateRequired | AlertDescription::AccessDenied => {
            "the server refused the handshake: it requires a client certificate, which prombus does not support"
        }
        AlertDescription::InternalError => "the server refused the handshake because of an internal error",
        _ => "the server refused the handshake",
    }
}

/// Why a certificate is refused.
fn certificate_reason(fault: &CertificateError, host: &str) -> String {
    match fault {
        // The other two mean that a trusted authority has the name of the issuer, but another key.
        CertificateError::UnknownIssuer
        | CertificateError::BadSignature
        | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "it is not trusted: no trusted authority has signed it".to_owned()
        }
        CertificateError::Expired => "it has expired".to_owned(),
        CertificateError::ExpiredContext { not_after, .. } => format!("it expired at {}", time(*not_after)),
        CertificateError::NotValidYet => "it is not valid yet".to_owned(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("it is valid only from {}", time(*not_before))
        }
        CertificateError::NotValidForName => format!("it is not for the host {host}"),
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            format!("it is not for the host {host}: it names no host")
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<String> = presented.iter().map(|name| plain_name(name)).collect();
            format!("it is not for the host {host}, but for {}", names.join(", "))
        }
        CertificateError::Revoked => "it was revoked".to_owned(),
        CertificateError::BadEncoding => "it cannot be parsed".to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is not for servers (extended key usage)".to_owned()
        }
        // The library reports this and some others only as text, in the form of debug output.
        other if other.to_string().contains("CaUsedAsEndEntity") => {
            "it is the certificate of an authority; a server needs one with basicConstraints=CA:FALSE"
                .to_owned()
        }
        other => {
            let text = format!("{other:?}");
            let kind = text.split(|character: char| !character.is_alphanumeric()).next().unwrap_or_default();
            format!("it is not valid ({kind})")
        }
    }
}

fn time(time: UnixTime) -> String {
    instant_text(i64::try_from(time.as_secs()).unwrap_or(i64::MAX / 1_000).saturating_mul(1_000))
}

/// A name as the TLS library shows it, `DnsName("host")`, without the kind.
fn plain_name(text: &str) -> String {
    let inner = text.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(text);
    inner.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_certificate_are_shown_without_their_kind() {
        let fault = CertificateError::NotValidForNameContext {
            expected: tokio_rustls::rustls::pki_types::ServerName::try_from("bus").expect("a name"),
            presented: vec!["DnsName(\"a.example\")".to_owned(), "IpAddress(10.0.0.1)".to_owned()],
        };
        let reason = certificate_reason(&fault, "bus");
        assert_eq!(reason, "it is not for the host bus, but for a.example, 10.0.0.1");
    }
}
