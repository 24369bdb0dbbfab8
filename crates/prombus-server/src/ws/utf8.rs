//! Checks UTF-8 that arrives in pieces, so that an invalid text message is refused before it is complete.

/// The state of the check of one text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Utf8Check {
    /// The start of an incomplete character: the first `started_bytes` bytes.
    started: [u8; 4],
    started_bytes: usize,
}

impl Utf8Check {
    /// Checks the next piece. Returns false if the text is invalid.
    pub(super) fn feed(&mut self, mut piece: &[u8]) -> bool {
        while self.started_bytes > 0 {
            let Some((&byte, rest)) = piece.split_first() else { return true };
            self.started[self.started_bytes] = byte;
            self.started_bytes += 1;
            piece = rest;
            match std::str::from_utf8(&self.started[..self.started_bytes]) {
                Ok(_) => self.started_bytes = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        match std::str::from_utf8(piece) {
            Ok(_) => true,
            Err(error) if error.error_len().is_some() => false,
            Err(error) => {
                let rest = &piece[error.valid_up_to()..];
                self.started[..rest.len()].copy_from_slice(rest);
                self.started_bytes = rest.len();
                true
            }
        }
    }

    /// Whether the text may end here.
    pub(super) fn is_whole(&self) -> bool {
        self.started_bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_does_not_depend_on_the_size_of_the_pieces() {
        let texts: [&[u8]; 12] = [
            "κόσμε €𝄞 ascii".as_bytes(),
            b"",
            b"\xce\xba\xed\xa0\x80edited",
            b"\xf4\x90\x80\x80",
            b"\xc0\xaf",
            b"a\x80",
            b"\xe2\x82",
            b"\xf0\x9d\x84",
            b"\xff",
            b"ok\xf5",
            b"\xed\x9f\xbf\xee\x80\x80",
            b"\xe2\x82a",
        ];
        for text in texts {
            for first in 0..=text.len() {
                for second in first..=text.len() {
                    let mut check = Utf8Check::default();
                    let pieces = [&text[..first], &text[first..second], &text[second..]];
                    let is_good = pieces.iter().all(|piece| check.feed(piece)) && check.is_whole();
                    assert_eq!(
                        is_good,
                        std::str::from_utf8(text).is_ok(),
                        "{text:?} cut at {first}, {second}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_invalid_start_of_a_character_is_refused_at_once() {
        let mut check = Utf8Check::default();
        assert!(check.feed(b"abc\xf4"));
        assert!(!check.feed(b"\x90"), "above the last character");
        let mut check = Utf8Check::default();
        assert!(check.feed(b"\xed") && !check.feed(b"\xa0"), "a surrogate");
    }
}
