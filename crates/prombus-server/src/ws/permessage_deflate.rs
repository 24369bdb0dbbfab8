//! Compression of messages: permessage-deflate (RFC 7692).
//!
//! Each message is compressed on its own (no context takeover, in both directions). So the size of a message reveals nothing
//! about earlier ones, and an idle connection needs no memory for compression: the compressor's state belongs to the thread.

use axum::http::{HeaderMap, HeaderValue, header};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use std::cell::RefCell;

const NAME: &str = "permessage-deflate";
const WINDOW_BITS_MAX: u8 = 15;
/// zlib has no smaller window for raw deflate.
const WINDOW_BITS_MIN: u8 = 9;
/// Shorter messages are sent uncompressed: compression would not reduce the number of packets.
const WORTHWHILE_BYTES: usize = 64;
/// The last bytes of a flushed block. RFC 7692 requires that the sender removes them and the receiver adds them.
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// The output buffer grows in steps of at least this size.
const STEP_BYTES: usize = 4 * 1024;
/// Maximum size of a buffer that the thread keeps for the next message.
const KEPT_BYTES: usize = 256 * 1024;

thread_local! {
    /// One compressor per window size, created at its first use.
    static COMPRESSORS: RefCell<[Option<Compress>; (WINDOW_BITS_MAX - WINDOW_BITS_MIN + 1) as usize]> =
        const { RefCell::new([const { None }; (WINDOW_BITS_MAX - WINDOW_BITS_MIN + 1) as usize]) };
    /// The decompressor, created at its first use.
    static DECOMPRESSOR: RefCell<Option<Decompress>> = const { RefCell::new(None) };
    /// The output of the compressor, kept for the next message.
    static DEFLATED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// A buffer for the next message that is decompressed.
    static SPARE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The result of the negotiation with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deflate {
    /// The window size of the server's messages.
    window_bits: u8,
}

/// Why a message could not be inflated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InflateError {
    /// The message is larger than allowed.
    TooLarge,
    /// The message is not valid deflate data.
    Bad,
}

impl Deflate {
    /// Accepts the first offer of a client that the server supports.
    pub(crate) fn negotiate(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(header::SEC_WEBSOCKET_EXTENSIONS).into_iter();
        let offers = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        offers.filter_map(Self::accept).next()
    }

    /// `None` if the offer is for another extension, is invalid, or requires a window that is too small.
    fn accept(offer: &str) -> Option<Self> {
        let mut parts = offer.split(';').map(str::trim);
        if !parts.next()?.eq_ignore_ascii_case(NAME) {
            return None;
        }
        let mut window_bits = WINDOW_BITS_MAX;
        let mut seen = Vec::new();
        for part in parts {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name.trim(), Some(value.trim().trim_matches('"'))),
                None => (part, None),
            };
            if seen.contains(&name) {
                return None;
            }
            seen.push(name);
            match (name, value) {
                (
                    "server_no_context_takeover" | "client_no_context_takeover" | "client_max_window_bits",
                    None,
                ) => {}
                ("client_max_window_bits", Some(bits)) => drop(window_bits_of(bits)?),
                ("server_max_window_bits", Some(bits)) => window_bits = window_bits_of(bits)?,
                _ => return None,
            }
        }
        (window_bits >= WINDOW_BITS_MIN).then_some(Self { window_bits })
    }

    /// The result for an offer without parameters.
    #[cfg(feature = "test-util")]
    pub(crate) fn plain() -> Self {
        Self { window_bits: WINDOW_BITS_MAX }
    }

    /// The header of the response.
    pub(crate) fn answer(self) -> HeaderValue {
        let mut text = format!("{NAME}; server_no_context_takeover; client_no_context_takeover");
        if self.window_bits < WINDOW_BITS_MAX {
            text += &format!("; server_max_window_bits={}", self.window_bits);
        }
        HeaderValue::try_from(text).expect("letters and digits")
    }

    /// Appends a compressed message. If compression saves nothing, appends nothing and returns false.
    pub(crate) fn deflate(self, message: &[u8], into: &mut Vec<u8>) -> bool {
        if message.len() < WORTHWHILE_BYTES {
            return false;
        }
        // Compress into a buffer of the thread, so that the connection's buffer does not grow beyond the compressed size.
        let mut deflated = DEFLATED.take();
        let slot = usize::from(self.window_bits - WINDOW_BITS_MIN);
        let compressor = COMPRESSORS.with_borrow_mut(|compressors| compressors[slot].take());
        let mut compressor = compressor
            .unwrap_or_else(|| Compress::new_with_window_bits(Compression::fast(), false, self.window_bits));
        // Compress to the end even if the output grows: a compressor that is reset with pending output cannot be used for another
        // message.
        while (compressor.total_in() as usize) < message.len() || deflated.len() == deflated.capacity() {
            deflated.reserve((message.len() / 2).max(STEP_BYTES));
            let read = compressor.total_in() as usize;
            if compressor.compress_vec(&message[read..], &mut deflated, FlushCompress::Sync).is_err() {
                return false;
            }
        }
        compressor.reset();
        COMPRESSORS.with_borrow_mut(|compressors| compressors[slot] = Some(compressor));
        let is_smaller = deflated.len() < message.len() + TAIL.len() && deflated.ends_with(&TAIL);
        if is_smaller {
            into.extend_from_slice(&deflated[..deflated.len() - TAIL.len()]);
        }
        if deflated.capacity() <= KEPT_BYTES {
            deflated.clear();
            DEFLATED.set(deflated);
        }
        is_smaller
    }
}

fn window_bits_of(text: &str) -> Option<u8> {
    let is_plain = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|bits| is_plain && (8..=WINDOW_BITS_MAX).contains(bits))
}

/// Decompresses a message to at most `most` bytes. The caller returns the buffer with [`give_back`].
pub(crate) fn inflate(message: &[u8], most: usize) -> Result<Vec<u8>, InflateError> {
    let mut inflated = SPARE.take();
    inflated.clear();
    let result = DECOMPRESSOR.with_borrow_mut(|decompressor| {
        let decompressor = decompressor.get_or_insert_with(|| Decompress::new(false));
        inflate_into(decompressor, message, most, &mut inflated)
    });
    match result {
        Ok(()) => Ok(inflated),
        Err(error) => {
            give_back(inflated);
            Err(error)
        }
    }
}

/// Keeps a buffer for the next message.
pub(super) fn give_back(inflated: Vec<u8>) {
    if inflated.capacity() <= KEPT_BYTES {
        SPARE.set(inflated);
    }
}

fn inflate_into(
    decompressor: &mut Decompress,
    message: &[u8],
    most: usize,
    into: &mut Vec<u8>,
) -> Result<(), InflateError> {
    decompressor.reset(false);
    let mut input = message;
    let mut is_tail = false;
    loop {
        // One byte more than allowed, to detect a message that is too large.
        let room = (most + 1 - into.len()).min((2 * input.len()).max(STEP_BYTES));
        into.reserve(room);
        let before = (decompressor.total_in(), into.len());
        let status = decompressor.decompress_vec(input, into, FlushDecompress::Sync);
        let status = status.map_err(|_| InflateError::Bad)?;
        if into.len() > most {
            return Err(InflateError::TooLarge);
        }
        input = &input[(decompressor.total_in() - before.0) as usize..];
        match status {
            // A final block: the data after it is a new stream.
            Status::StreamEnd if input.is_empty() || is_tail => return Ok(()),
            Status::StreamEnd => decompressor.reset(false),
            Status::Ok | Status::BufError if !input.is_empty() || into.len() == into.capacity() => {
                if input.len() as u64 == 0 && into.len() == before.1 && into.len() < into.capacity() {
                    return Err(InflateError::Bad);
                }
            }
            _ if is_tail => return Ok(()),
            _ => {
                input = &TAIL;
                is_tail = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(offers: &[&'static str]) -> Option<String> {
        let headers = offers
            .iter()
            .map(|offer| (header::SEC_WEBSOCKET_EXTENSIONS, HeaderValue::from_static(offer)))
            .collect();
        Deflate::negotiate(&headers).map(|it| it.answer().to_str().expect("text").to_owned())
    }

    #[test]
    fn the_first_supported_offer_is_accepted() {
        let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        for offer in [
            "permessage-deflate",
            "Permessage-Deflate ; client_max_window_bits",
            "permessage-deflate; client_max_window_bits=10; server_no_context_takeover",
            "permessage-deflate; server_max_window_bits=15",
            "x-webkit-deflate-frame, permessage-deflate",
            "permessage-deflate; unknown, permessage-deflate",
            "permessage-deflate; server_max_window_bits=8, permessage-deflate",
        ] {
            assert_eq!(negotiated(&[offer]).as_deref(), Some(plain), "{offer}");
        }
        assert_eq!(
            negotiated(&["other", "permessage-deflate; server_max_window_bits=\"9\""]),
            Some(format!("{plain}; server_max_window_bits=9"))
        );
        for offer in [
            "",
            "deflate",
            "permessage-deflate; server_max_window_bits",
            "permessage-deflate; server_max_window_bits=16",
            "permessage-deflate; server_max_window_bits=7",
            "permessage-deflate; server_max_window_bits=09",
            "permessage-deflate; client_max_window_bits=x",
            "permessage-deflate; server_no_context_takeover=1",
            "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
            "permessage-deflate;",
        ] {
            assert_eq!(negotiated(&[offer]), None, "{offer}");
        }
    }

    /// Incompressible bytes.
    fn noise(bytes: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let step = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..bytes).map(step).collect()
    }

    #[test]
    fn messages_of_all_lengths_survive_a_round_trip() {
        for window_bits in WINDOW_BITS_MIN..=WINDOW_BITS_MAX {
            let deflate = Deflate { window_bits };
            for bytes in [0, 1, 63, 64, 65, 1_000, 4_095, 4_096, 4_097, 65_536, 300_000, 1 << 20] {
                let text: Vec<u8> =
                    (0..bytes).map(|at| b"abcdefgh ijk"[at % 12] ^ (at / 999) as u8 & 7).collect();
                let mut sent = b"before".to_vec();
                let is_deflated = deflate.deflate(&text, &mut sent);
                assert_eq!(is_deflated, bytes >= WORTHWHILE_BYTES, "{bytes}");
                if is_deflated {
                    assert!(sent.len() < bytes / 2 + 40, "{bytes} became {}", sent.len());
                    let inflated = inflate(&sent[6..], bytes).expect("it was just deflated");
                    assert!(inflated == text, "{bytes} bytes, window {window_bits}");
                    assert_eq!(inflate(&sent[6..], bytes - 1), Err(InflateError::TooLarge));
                    give_back(inflated);
                } else {
                    assert_eq!(sent, b"before");
                }
            }
            let mut sent = Vec::new();
            assert!(!deflate.deflate(&noise(100_000), &mut sent) && sent.is_empty());
        }
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let mut bomb = Vec::new();
        assert!(Deflate { window_bits: 15 }.deflate(&vec![b' '; 64 << 20], &mut bomb));
        assert!(bomb.len() < 1 << 20);
        assert_eq!(inflate(&bomb, 1 << 20), Err(InflateError::TooLarge));
        let spare = SPARE.take();
        assert!(spare.capacity() <= 3 << 20, "{}", spare.capacity());
    }

    #[test]
    fn invalid_data_is_refused_and_the_examples_of_the_rfc_are_accepted() {
        assert_eq!(inflate(&[0xff; 20], 1_000), Err(InflateError::Bad));
        let hello = |bytes: &[u8]| inflate(bytes, 1_000).map(|it| String::from_utf8(it).expect("text"));
        // Examples of RFC 7692, section 7.2.3: one block, no compression, a final block, two blocks.
        for bytes in [
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..],
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
            &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
        ] {
            assert_eq!(hello(bytes), Ok("Hello".to_owned()), "{bytes:?}");
        }
        assert_eq!(hello(&[]), Ok(String::new()));
        assert_eq!(hello(&[0]), Ok(String::new()));
    }
}
