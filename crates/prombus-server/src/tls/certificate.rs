//! The dates of a certificate chain, so that operators learn in time that it expires.

use aws_lc_rs::digest::{Context, SHA256, digest};
use simple_asn1::{ASN1Block, ASN1Class};
use std::path::{Path, PathBuf};
use tokio_rustls::rustls::pki_types::CertificateDer;

/// A certificate that the server presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The file that it was read from.
    pub file: PathBuf,
    /// From when it is valid, in ms since 1970: the latest `notBefore` of the chain; `None` if no date can be read.
    pub valid_from_ms: Option<i64>,
    /// When it expires, in ms since 1970: the earliest `notAfter` of the chain; `None` if no date can be read.
    pub expires_ms: Option<i64>,
    /// SHA-256 over all certificates of the chain.
    pub chain_hash: [u8; 32],
}

impl Certificate {
    pub(super) fn new(file: &Path, chain: &[CertificateDer<'_>]) -> Self {
        let validities = || chain.iter().filter_map(|certificate| Validity::of(certificate));
        let mut hashed = Context::new(&SHA256);
        chain.iter().for_each(|certificate| hashed.update(&cert_hash(certificate)));
        let mut chain_hash = [0; 32];
        chain_hash.copy_from_slice(hashed.finish().as_ref());
        Self {
            file: file.to_owned(),
            valid_from_ms: validities().map(|it| it.not_before_ms).max(),
            expires_ms: validities().map(|it| it.not_after_ms).min(),
            chain_hash,
        }
    }
}

/// SHA-256 of a certificate.
pub(crate) fn cert_hash(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, certificate).as_ref());
    hash
}

/// The validity of one certificate (RFC 5280, section 4.1), in ms since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Validity {
    not_before_ms: i64,
    not_after_ms: i64,
}

impl Validity {
    fn of(der: &[u8]) -> Option<Self> {
        match dates_of(der)?.as_slice() {
            [not_before, not_after] => {
                Some(Self { not_before_ms: ms_of(not_before)?, not_after_ms: ms_of(not_after)? })
            }
            _ => None,
        }
    }
}

/// The dates of a certificate: the fifth field of `tbsCertificate`, or the fourth if there is no version.
fn dates_of(der: &[u8]) -> Option<Vec<ASN1Block>> {
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
    Some(dates.clone())
}

fn ms_of(date: &ASN1Block) -> Option<i64> {
    match date {
        ASN1Block::UTCTime(_, date) | ASN1Block::GeneralizedTime(_, date) => {
            date.assume_utc().unix_timestamp().checked_mul(1_000)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_dates(not_after: (i32, u8, u8)) -> Vec<u8> {
        valid((2001, 2, 3), not_after)
    }

    fn valid(not_before: (i32, u8, u8), not_after: (i32, u8, u8)) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(not_before.0, not_before.1, not_before.2);
        params.not_after = rcgen::date_time_ymd(not_after.0, not_after.1, not_after.2);
        let key = rcgen::KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    fn not_after_ms(der: &[u8]) -> Option<i64> {
        Validity::of(der).map(|it| it.not_after_ms)
    }

    #[test]
    fn a_chain_is_valid_while_all_its_certificates_are() {
        let leaf = CertificateDer::from(valid((2001, 1, 1), (2051, 1, 1)));
        let [early, late] = [(2002, (2005, 1, 1)), (2003, (2060, 1, 1))]
            .map(|(from, to)| CertificateDer::from(valid((from, 2, 3), to)));
        let of = |chain: &[CertificateDer<'_>]| Certificate::new(Path::new("cert.pem"), chain);
        let whole = of(&[leaf.clone(), early.clone(), late.clone()]);
        assert_eq!(whole.expires_ms, of(std::slice::from_ref(&early)).expires_ms);
        assert_eq!(whole.valid_from_ms, of(std::slice::from_ref(&late)).valid_from_ms);
        assert_ne!(whole.chain_hash, of(&[leaf.clone(), late]).chain_hash, "another intermediate");
        assert_eq!(whole.valid_from_ms, Some(1_044_230_400_000));
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
