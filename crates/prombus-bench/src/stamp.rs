//! The stamp at the start of each payload: the message's publisher, its number, and when it was due.

/// The size of a stamp with the opening quote. On every bus, a payload is a JSON string that begins with a stamp and is filled up
/// with text.
pub const STAMP_BYTES: usize = 1 + 4 + 1 + 12 + 1 + 16 + 1;

/// The size of the smallest payload that can contain a stamp.
pub const MIN_PAYLOAD_BYTES: usize = STAMP_BYTES + 1;

/// The stamp of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Which publisher sent it.
    pub publisher: u16,
    /// The message's number at its publisher, from 0.
    pub number: u64,
    /// When it was due, in nanoseconds since the start of the run.
    pub due_ns: u64,
}

/// A payload of a fixed size that is reused for every message with a new stamp.
#[derive(Debug)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// A payload of this size, or of [`MIN_PAYLOAD_BYTES`] if that is more.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let words = b"the quick brown fox jumps over the lazy dog ";
        let mut payload = vec![b'"'];
        payload.extend(words.iter().copied().cycle().take(bytes.max(MIN_PAYLOAD_BYTES) - 2));
        payload.push(b'"');
        Self(payload)
    }

    /// The payload with this stamp.
    pub fn stamped(&mut self, stamp: Stamp) -> &[u8] {
        put_hex(&mut self.0[1..5], u64::from(stamp.publisher));
        self.0[5] = b'.';
        put_hex(&mut self.0[6..18], stamp.number);
        self.0[18] = b'.';
        put_hex(&mut self.0[19..35], stamp.due_ns);
        self.0[35] = b'.';
        &self.0
    }
}

impl Stamp {
    /// Reads the stamp at the start of a payload, which includes the opening quote.
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<Self> {
        let stamp = payload.get(..STAMP_BYTES)?;
        if stamp[0] != b'"' || stamp[5] != b'.' || stamp[18] != b'.' || stamp[35] != b'.' {
            return None;
        }
        Some(Self {
            publisher: read_hex(&stamp[1..5])? as u16,
            number: read_hex(&stamp[6..18])?,
            due_ns: read_hex(&stamp[19..35])?,
        })
    }
}

fn put_hex(into: &mut [u8], mut value: u64) {
    for digit in into.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(value & 15) as usize];
        value >>= 4;
    }
}

fn read_hex(digits: &[u8]) -> Option<u64> {
    let mut value = 0;
    let mut bad = false;
    for &digit in digits {
        let of_digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => {
                bad = true;
                0
            }
        };
        value = value << 4 | u64::from(of_digit);
    }
    (!bad).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_back_unchanged() {
        let mut payload = Payload::new(256);
        let stamp = Stamp { publisher: 65_535, number: 0x0001_2345_6789, due_ns: u64::MAX };
        let bytes = payload.stamped(stamp);
        assert_eq!(bytes.len(), 256);
        assert!(serde_json::from_slice::<String>(bytes).is_ok());
        assert_eq!(Stamp::read(bytes), Some(stamp));
    }

    #[test]
    fn the_smallest_payload_holds_a_stamp() {
        let mut payload = Payload::new(0);
        let stamp = Stamp { publisher: 1, number: 2, due_ns: 3 };
        assert_eq!(payload.stamped(stamp).len(), MIN_PAYLOAD_BYTES);
        assert_eq!(Stamp::read(payload.stamped(stamp)), Some(stamp));
    }

    #[test]
    fn payloads_without_a_stamp_are_rejected() {
        assert_eq!(Stamp::read(b"\"0001.000000000002.0000000000000003"), None);
        assert_eq!(Stamp::read(b"\"000g.000000000002.0000000000000003.\""), None);
        assert_eq!(Stamp::read(b"{}"), None);
    }
}
