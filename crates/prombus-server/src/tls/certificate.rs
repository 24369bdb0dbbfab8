//! The dates of a certificate, so that operators learn in time that it expires.

use aws_lc_rs::digest::{SHA256, digest};
use simple_asn1::{ASN1Block, ASN1Class};
use std::path::{Path, PathBuf};
use tokio_rustls::rustls::pki_types::CertificateDer;

/// A certificate that the server presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The file that it was read from.
    pub file: PathBuf,
    /// When it expires (`notAfter`), in ms since 1970; `None` if the certificate has no date that can be read.
    pub expires_ms: Option<i64>,
    /// SHA-256 of the certificate, without the rest of its chain.
    pub hash: [u8; 32],
}

impl Certificate {
    pub(super) fn new(file: &Path, certificate: &CertificateDer<'_>) -> Self {
        Self { file: file.to_owned(), expires_ms: not_after_ms(certificate), hash: cert_hash(certificate) }
    }
}

/// SHA-256 of a certificate.
pub(crate) fn cert_hash(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, certificate).as_ref());
    hash
}

/// The date `notAfter` of a certificate (RFC 5280, section 4.1): the second date of the validity, which is the fifth field of
/// `tbsCertificate`, or the fourth if there is no version.
fn not_after_ms(der: &[u8]) -> Option<i64> {
    let blocks = simple_asn1::from_der(der).ok()?;
    let [ASN1Block::Sequence(_, certificate)] = blocks.as_slice() else { return None };
    let ASN1Block::Sequence(_, fields) = certificate.first()? else { return None };
    let is_version = |field: &&ASN1Block| {
        matches!(
            field,
            ASN1Block::Explicit(ASN1Class::ContextSpecific, ..)
                | ASN1Block::Unknown(ASN1Class::ContextSpecific, ..)
        )
    };
    let mut fields = fields.iter().skip_while(is_version);
    let ASN1Block::Sequence(_, dates) = fields.nth(3)? else { return None };
    let date = match dates.get(1)? {
        ASN1Block::UTCTime(_, date) | ASN1Block::GeneralizedTime(_, date) => date,
        _ => return None,
    };
    date.assume_utc().unix_timestamp().checked_mul(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_dates(not_after: (i32, u8, u8)) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(2001, 2, 3);
        params.not_after = rcgen::date_time_ymd(not_after.0, not_after.1, not_after.2);
        let key = rcgen::KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn the_expiry_is_read_in_both_formats_of_dates() {
        // Dates from 2050 on are GeneralizedTime, earlier ones UTCTime.
        assert_eq!(not_after_ms(&with_dates((2027, 3, 4))), Some(1_804_118_400_000));
        assert_eq!(not_after_ms(&with_dates((2051, 1, 1))), Some(2_556_144_000_000));
        assert_eq!(not_after_ms(&with_dates((2005, 1, 1))), Some(1_104_537_600_000));
    }

    #[test]
    fn bytes_that_are_not_a_certificate_have_no_expiry() {
        let good = with_dates((2027, 3, 4));
        for length in 0..good.len() {
            assert_eq!(not_after_ms(&good[..length]), None, "{length}");
        }
        assert_eq!(not_after_ms(&[0x30, 0x02, 0x05, 0x00]), None);
        assert_eq!(not_after_ms(b"-----BEGIN"), None);
    }
}
