//! The first bytes of a relayed connection: the client's address, and the proof that they come from a follower.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | magic; its first byte is 0, which is never the first byte of an HTTP request or a TLS record |
//! | 1 | version |
//! | 1 | hops: 1, because a relayed connection is not relayed again |
//! | 1 | whether the client uses TLS |
//! | 8 | the leader's term |
//! | 16 + 8 | nonce: the follower's id, and its counter of connections |
//! | 19 + 19 | the client's address, and the follower's address that the client connected to |
//! | 32 | HMAC-SHA256 over all fields above, with the secret of the lease record |
//!
//! The leader confirms with 32 bytes: an HMAC over the preface. After that, both directions carry the bytes of the connection.

use crate::peer::Ends;
use aws_lc_rs::hmac::{self, HMAC_SHA256};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const MAGIC: [u8; 8] = *b"\0prombus";
const VERSION: u8 = 1;
/// The only number of hops that a leader accepts.
const HOPS: u8 = 1;
/// The address family, 16 bytes for the address (IPv4 uses 4 of them), and the port.
const ADDRESS_BYTES: usize = 19;
const SIGNED_BYTES: usize = MAGIC.len() + 3 + 8 + 16 + 8 + 2 * ADDRESS_BYTES;
/// Makes a confirmation different from the preface's own HMAC.
const CONFIRMATION_LABEL: &[u8] = b"prombus relay confirmation";

/// Size of a preface.
pub(crate) const PREFACE_BYTES: usize = SIGNED_BYTES + MAC_BYTES;
/// Size of a leader's confirmation.
pub(crate) const MAC_BYTES: usize = 32;

/// Why a preface is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PrefaceRefused {
    #[error("not a preface of this version")]
    Format,
    #[error("wrong HMAC")]
    Mac,
    #[error("the preface is for another term")]
    Term,
    #[error("the connection was already relayed")]
    Hops,
    #[error("the preface was already used")]
    Replayed,
    #[error("the preface is too old")]
    TooOld,
    #[error("this gateway does not lead")]
    NotLeading,
    #[error("the preface was not complete in time")]
    Incomplete,
}

/// Makes each preface unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nonce {
    /// Random, chosen by a follower for each leader.
    pub(crate) follower: [u8; 16],
    /// Counts the connections of the follower to this leader.
    pub(crate) counter: u64,
}

/// The statement of a follower about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preface {
    /// The leader's term.
    pub(crate) term: u64,
    /// How often the connection was relayed.
    pub(crate) hops: u8,
    pub(crate) nonce: Nonce,
    /// The two ends of the client's connection to the follower.
    pub(crate) ends: Ends,
}

/// The secret of a lease record, ready to sign.
pub(crate) struct RelayKey(hmac::Key);

impl RelayKey {
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        Self(hmac::Key::new(HMAC_SHA256, secret))
    }

    /// The leader's response to an accepted preface.
    pub(crate) fn confirmation(&self, preface: &[u8; PREFACE_BYTES]) -> [u8; MAC_BYTES] {
        self.sign(&confirmed(preface))
    }

    /// Whether the response proves that the leader knows the secret. Compared in constant time.
    pub(crate) fn is_confirmation(&self, preface: &[u8; PREFACE_BYTES], answer: &[u8; MAC_BYTES]) -> bool {
        hmac::verify(&self.0, &confirmed(preface), answer).is_ok()
    }

    fn sign(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(hmac::sign(&self.0, bytes).as_ref());
        mac
    }
}

fn confirmed(preface: &[u8; PREFACE_BYTES]) -> Vec<u8> {
    [CONFIRMATION_LABEL, preface].concat()
}

impl Preface {
    /// Whether a connection that begins with this byte begins with a preface.
    pub(crate) fn is_first_byte(byte: u8) -> bool {
        byte == MAGIC[0]
    }

    /// The preface of a connection that a follower relays.
    pub(crate) fn new(term: u64, nonce: Nonce, ends: Ends) -> Self {
        Self { term, hops: HOPS, nonce, ends }
    }

    pub(crate) fn encode(&self, key: &RelayKey) -> [u8; PREFACE_BYTES] {
        let mut bytes = Vec::with_capacity(PREFACE_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, self.hops, u8::from(self.ends.is_tls)]);
        bytes.extend_from_slice(&self.term.to_be_bytes());
        bytes.extend_from_slice(&self.nonce.follower);
        bytes.extend_from_slice(&self.nonce.counter.to_be_bytes());
        put_address(&mut bytes, self.ends.remote);
        put_address(&mut bytes, self.ends.local);
        let mac = key.sign(&bytes);
        bytes.extend_from_slice(&mac);
        bytes.try_into().expect("each field has a fixed length, and they add up to a preface")
    }

    /// Verifies and parses a preface. After magic and version, the HMAC is verified, in constant time, before any other field is
    /// used.
    pub(crate) fn decode(
        bytes: &[u8; PREFACE_BYTES],
        key: &RelayKey,
        term: u64,
    ) -> Result<Self, PrefaceRefused> {
        let (signed, mac) = bytes.split_at(SIGNED_BYTES);
        if signed[..MAGIC.len()] != MAGIC || signed[MAGIC.len()] != VERSION {
            return Err(PrefaceRefused::Format);
        }
        hmac::verify(&key.0, signed, mac).map_err(|_| PrefaceRefused::Mac)?;
        let mut fields = Fields(&signed[MAGIC.len() + 1..]);
        let [hops, is_tls] = fields.take()?;
        let preface = Self {
            hops,
            term: u64::from_be_bytes(fields.take()?),
            nonce: Nonce { follower: fields.take()?, counter: u64::from_be_bytes(fields.take()?) },
            ends: Ends { remote: fields.address()?, local: fields.address()?, is_tls: is_tls == 1 },
        };
        match preface {
            Self { hops, .. } if hops != HOPS => Err(PrefaceRefused::Hops),
            Self { term: of, .. } if of != term => Err(PrefaceRefused::Term),
            preface => Ok(preface),
        }
    }
}

fn put_address(into: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            into.push(4);
            into.extend_from_slice(&ip.octets());
            into.extend_from_slice(&[0; 12]);
        }
        IpAddr::V6(ip) => {
            into.push(6);
            into.extend_from_slice(&ip.octets());
        }
    }
    into.extend_from_slice(&address.port().to_be_bytes());
}

/// The fields that are not parsed yet.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], PrefaceRefused> {
        let (field, rest) = self.0.split_first_chunk().ok_or(PrefaceRefused::Format)?;
        self.0 = rest;
        Ok(*field)
    }

    fn address(&mut self) -> Result<SocketAddr, PrefaceRefused> {
        let [family] = self.take()?;
        let octets: [u8; 16] = self.take()?;
        let port = u16::from_be_bytes(self.take()?);
        let [a, b, c, d, ..] = octets;
        let ip = match family {
            4 => Ipv4Addr::new(a, b, c, d).into(),
            6 => Ipv6Addr::from(octets).into(),
            _ => return Err(PrefaceRefused::Format),
        };
        Ok(SocketAddr::new(ip, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preface() -> Preface {
        let ends = Ends {
            remote: "203.0.113.9:4711".parse().expect("an address"),
            local: "[2001:db8::1]:443".parse().expect("an address"),
            is_tls: true,
        };
        Preface::new(7, Nonce { follower: [9; 16], counter: 3 }, ends)
    }

    #[test]
    fn a_preface_survives_the_wire() {
        let key = RelayKey::new(&[1; 32]);
        let preface = preface();
        assert_eq!(Preface::decode(&preface.encode(&key), &key, 7), Ok(preface));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_refused() {
        let key = RelayKey::new(&[1; 32]);
        let good = preface().encode(&key);
        for bit in 0..PREFACE_BYTES * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let refused = Preface::decode(&bytes, &key, 7).expect_err("it was changed");
            assert!(matches!(refused, PrefaceRefused::Mac | PrefaceRefused::Format), "bit {bit}: {refused}");
        }
    }

    #[test]
    fn another_secret_term_or_number_of_hops_is_refused() {
        let key = RelayKey::new(&[1; 32]);
        let good = preface().encode(&key);
        assert_eq!(Preface::decode(&good, &RelayKey::new(&[2; 32]), 7), Err(PrefaceRefused::Mac));
        assert_eq!(Preface::decode(&good, &key, 8), Err(PrefaceRefused::Term));
        for hops in [0, 2, 255] {
            let bytes = Preface { hops, ..preface() }.encode(&key);
            assert_eq!(Preface::decode(&bytes, &key, 7), Err(PrefaceRefused::Hops));
        }
    }

    #[test]
    fn a_confirmation_needs_the_secret_and_is_valid_for_one_preface() {
        let (key, other) = (RelayKey::new(&[1; 32]), RelayKey::new(&[2; 32]));
        let sent = preface().encode(&key);
        assert!(key.is_confirmation(&sent, &key.confirmation(&sent)));
        assert!(!key.is_confirmation(&sent, &other.confirmation(&sent)));
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(&sent[SIGNED_BYTES..]);
        assert!(!key.is_confirmation(&sent, &mac), "the preface's own HMAC is not a confirmation");
    }
}
