//! Splits a body that arrives in pieces into lines. Only the incomplete last line is buffered.

use super::ApiError;
use prombus_protocol::ErrorCode;

/// The lines of a body.
pub(super) struct NdjsonLines {
    /// The start of the incomplete line.
    rest: Vec<u8>,
    /// How many lines were completed.
    number: usize,
    /// Maximum size of a line.
    line_bytes_max: usize,
}

impl NdjsonLines {
    pub(super) fn new(line_bytes_max: usize) -> Self {
        Self { rest: Vec::new(), number: 0, line_bytes_max }
    }

    /// Size of the incomplete line.
    pub(super) fn rest_bytes(&self) -> usize {
        self.rest.len()
    }

    /// Calls `each` for every line that ends in this piece, with its number, counted from 1. Empty lines count but are skipped.
    pub(super) fn push(
        &mut self,
        piece: &[u8],
        each: &mut impl FnMut(usize, &[u8]) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let mut piece = piece;
        while let Some(end) = piece.iter().position(|&byte| byte == b'\n') {
            let (line, after) = (&piece[..end], &piece[end + 1..]);
            if self.rest.is_empty() {
                self.hand_out(line, each)?;
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                self.hand_out(&whole, each)?;
                whole.clear();
                self.rest = whole;
            }
            piece = after;
        }
        self.rest.extend_from_slice(piece);
        if self.rest.len() > self.line_bytes_max {
            let message = format!("line {}: more than {} bytes", self.number + 1, self.line_bytes_max);
            return Err(ApiError::new(ErrorCode::TooLarge, message));
        }
        Ok(())
    }

    /// Calls `each` for the last line, which needs no line break.
    pub(super) fn finish(
        mut self,
        each: &mut impl FnMut(usize, &[u8]) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let rest = std::mem::take(&mut self.rest);
        self.hand_out(&rest, each)
    }

    fn hand_out(
        &mut self,
        line: &[u8],
        each: &mut impl FnMut(usize, &[u8]) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        self.number += 1;
        let line = line.trim_ascii();
        if line.is_empty() { Ok(()) } else { each(self.number, line) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_depend_on_how_the_body_is_split() {
        let body = b"1\n\n 2 \r\n[3,\t4]\n\"x\"";
        for size in 1..=body.len() {
            let mut seen = Vec::new();
            let mut each = |number, line: &[u8]| {
                seen.push((number, String::from_utf8_lossy(line).into_owned()));
                Ok(())
            };
            let mut lines = NdjsonLines::new(100);
            for piece in body.chunks(size) {
                lines.push(piece, &mut each).expect("short lines");
            }
            lines.finish(&mut each).expect("a line");
            let expected = [(1, "1"), (3, "2"), (4, "[3,\t4]"), (5, "\"x\"")];
            assert_eq!(seen, expected.map(|(number, line)| (number, line.to_owned())), "{size}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused_at_the_size_limit() {
        let mut lines = NdjsonLines::new(10);
        let error = lines.push(b"12\n34567890123", &mut |_, _| Ok(())).expect_err("too long");
        assert_eq!((error.code, error.message.as_str()), (ErrorCode::TooLarge, "line 2: more than 10 bytes"));
    }
}
