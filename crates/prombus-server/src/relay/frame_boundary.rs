//! Finds the ends of WebSocket frames in a stream that arrives in pieces. Only headers are parsed; payloads are skipped.

/// Maximum size of a frame header.
const HEADER_BYTES_MAX: usize = 14;
/// The opcode of a close frame.
const CLOSE: u8 = 8;

/// The position in a stream of frames.
#[derive(Clone, Debug, Default)]
pub(super) struct FrameBoundaries {
    /// The bytes of an incomplete header, of which the first `header_bytes` have arrived.
    header: [u8; HEADER_BYTES_MAX],
    header_bytes: usize,
    /// Bytes of the current frame's payload that have not arrived.
    payload_left: u64,
    /// Whether the header of a close frame has arrived.
    has_close: bool,
}

impl FrameBoundaries {
    /// Whether the stream could end here without cutting a frame.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.header_bytes == 0 && self.payload_left == 0
    }

    /// Whether the header of a close frame has arrived. No frame may follow a close frame.
    pub(super) fn has_close(&self) -> bool {
        self.has_close
    }

    /// Advances over all bytes.
    pub(super) fn advance(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = &rest[self.step(rest)..];
        }
    }

    /// Advances to the end of the current frame, and returns how many of the bytes belong to it: 0 if the position already is at
    /// a boundary.
    pub(super) fn advance_to_boundary(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() && !self.is_at_boundary() {
            used += self.step(&bytes[used..]);
        }
        used
    }

    /// Consumes one byte of a header, or as much of the payload as is available. Returns how many bytes were consumed.
    fn step(&mut self, bytes: &[u8]) -> usize {
        if self.payload_left > 0 {
            let count = self.payload_left.min(bytes.len() as u64);
            self.payload_left -= count;
            return count as usize;
        }
        self.header[self.header_bytes] = bytes[0];
        self.header_bytes += 1;
        if let Some(payload_bytes) = payload_bytes(&self.header[..self.header_bytes]) {
            self.has_close |= self.header[0] & 0x0f == CLOSE;
            self.payload_left = payload_bytes;
            self.header_bytes = 0;
        }
        1
    }
}

/// The size of the payload, if the header is complete.
fn payload_bytes(header: &[u8]) -> Option<u64> {
    let [_, second, rest @ ..] = header else { return None };
    let length_bytes = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let mask_bytes = if second & 0x80 == 0 { 0 } else { 4 };
    if rest.len() < length_bytes + mask_bytes {
        return None;
    }
    let long = rest[..length_bytes].iter().fold(0, |all, &byte| all << 8 | u64::from(byte));
    Some(if length_bytes == 0 { u64::from(second & 0x7f) } else { long })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xorshift: a seed gives the same numbers on every machine.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % limit as u64) as usize
        }
    }

    fn put_frame(into: &mut Vec<u8>, first: u8, length: usize, is_masked: bool) {
        let mask = if is_masked { 0x80 } else { 0 };
        into.push(first);
        match length {
            0..=125 => into.push(mask | length as u8),
            126..=0xffff => {
                into.push(mask | 126);
                into.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                into.push(mask | 127);
                into.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        if is_masked {
            into.extend_from_slice(&[1, 2, 3, 4]);
        }
        // Payloads that look like headers.
        into.extend((0..length).map(|at| if at % 2 == 0 { 0x88 } else { 0x7f }));
    }

    #[test]
    fn boundaries_do_not_depend_on_how_the_bytes_are_split() {
        let seed = std::env::var("PROMBUS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(4711);
        println!("PROMBUS_SEED={seed}");
        let mut random = Random(seed | 1);
        for _ in 0..300 {
            let (mut stream, mut ends) = (Vec::new(), vec![0]);
            for _ in 0..1 + random.below(8) {
                let length = [0, 1, 125, 126, 127, 300, 65_535, 65_536, 70_000][random.below(9)];
                put_frame(
                    &mut stream,
                    [0x81, 0x82, 0x00, 0x89, 0x01][random.below(5)],
                    length,
                    random.below(2) == 0,
                );
                ends.push(stream.len());
            }
            let mut boundaries = FrameBoundaries::default();
            let mut at = 0;
            while at < stream.len() {
                assert_eq!(boundaries.is_at_boundary(), ends.contains(&at), "at {at}");
                let most = [1, 2, 7, 100, 40_000][random.below(5)].min(stream.len() - at);
                let piece = &stream[at..at + 1 + random.below(most)];
                // The end of the frame that the piece begins in.
                let mut finished = boundaries.clone();
                let used = finished.advance_to_boundary(piece);
                let end =
                    ends.iter().copied().find(|&end| end >= at).expect("the last is the end of the stream");
                assert_eq!(used, piece.len().min(end - at), "at {at}");
                assert_eq!(finished.is_at_boundary(), used == end - at);
                boundaries.advance(piece);
                at += piece.len();
            }
            assert!(boundaries.is_at_boundary());
            assert!(!boundaries.has_close(), "payloads are not read as headers");
        }
    }

    #[test]
    fn a_close_frame_is_recognized() {
        let mut stream = Vec::new();
        put_frame(&mut stream, 0x81, 200, false);
        put_frame(&mut stream, 0x88, 2, false);
        for size in [1, 3, stream.len()] {
            let mut boundaries = FrameBoundaries::default();
            stream.chunks(size).for_each(|piece| boundaries.advance(piece));
            assert!(boundaries.has_close() && boundaries.is_at_boundary(), "{size} bytes at a time");
        }
    }

    #[test]
    fn a_huge_length_does_not_overflow() {
        let mut boundaries = FrameBoundaries::default();
        boundaries.advance(&[0x82, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        boundaries.advance(&[0; 4096]);
        assert!(!boundaries.is_at_boundary());
    }
}
