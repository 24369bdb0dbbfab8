//! Extracts the elements of `"events":[…]` from a JSON object that arrives in pieces, without ever holding the whole object.
//!
//! It only finds where elements begin and end. The caller checks whether they are valid JSON.

use bytes::{Buf, Bytes, BytesMut};

/// The start of the array. The text before it is short and cannot contain this, because a topic name has no quotes.
const OPENING: &[u8] = b"\"events\":[";

/// Splits an array into its elements.
#[derive(Debug, Default)]
pub(crate) struct ArraySplitter {
    /// Bytes that arrived and do not belong to a returned element.
    buffer: BytesMut,
    /// How many bytes of the buffer were scanned.
    scanned_bytes: usize,
    /// How many objects and arrays are open inside the array `events`.
    depth: usize,
    /// Whether the start of the array `events` was found.
    is_inside: bool,
    /// Whether the scan is inside a string.
    in_string: bool,
    /// Whether the last byte was a backslash that escapes the next one.
    is_escaped: bool,
    /// Whether the end of the array was found.
    is_over: bool,
}

impl ArraySplitter {
    /// Adds a piece of the body.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next element, if it is complete.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        if !self.is_inside {
            let at = self.buffer.windows(OPENING.len()).position(|window| window == OPENING)?;
            self.buffer.advance(at + OPENING.len());
            self.is_inside = true;
        }
        if self.is_over {
            return None;
        }
        while let Some(&byte) = self.buffer.get(self.scanned_bytes) {
            self.scanned_bytes += 1;
            if self.in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b']' if self.depth == 0 => {
                    self.is_over = true;
                    self.buffer.advance(self.scanned_bytes);
                    return None;
                }
                b'}' | b']' => {
                    // Only invalid JSON would make the depth negative. The caller detects it when it parses the element.
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        let element = self.buffer.split_to(self.scanned_bytes).freeze();
                        self.scanned_bytes = 0;
                        return Some(element);
                    }
                }
                b',' if self.depth == 0 => {
                    self.buffer.advance(self.scanned_bytes);
                    self.scanned_bytes = 0;
                }
                _ => {}
            }
        }
        None
    }

    /// The text after the array: `,"count":…}`. Call this at the end of the body. `None` if the end of the array was not found.
    pub(crate) fn rest(self) -> Option<Bytes> {
        self.is_over.then(|| self.buffer.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_whole_wherever_the_pieces_are_cut() {
        let elements =
            [r#"{"id":"1","payload":[1,{"a":"]}\""}]}"#, r#"{"id":"2","payload":"\\"}"#, r#"{"id":"3"}"#];
        let text = format!(r#"{{"topic":"a.b","events":[{}],"count":3,"next":null}}"#, elements.join(","));
        for size in 1..=text.len() {
            let mut splitter = ArraySplitter::default();
            let mut found = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                splitter.push(piece);
                while let Some(element) = splitter.next() {
                    found.push(String::from_utf8(element.to_vec()).unwrap());
                }
            }
            assert_eq!(found, elements, "in pieces of {size}");
            assert_eq!(splitter.rest().unwrap(), Bytes::from_static(br#","count":3,"next":null}"#));
        }
    }

    #[test]
    fn an_array_without_an_end_has_no_rest() {
        let mut splitter = ArraySplitter::default();
        splitter.push(br#"{"topic":"a","events":[{"id":"1"},{"id""#);
        assert!(splitter.next().is_some() && splitter.next().is_none());
        assert!(splitter.rest().is_none());
    }

    #[test]
    fn an_empty_array_has_no_elements() {
        let mut splitter = ArraySplitter::default();
        splitter.push(br#"{"topic":"a","events":[],"count":0,"next":null}"#);
        assert!(splitter.next().is_none());
        assert!(splitter.rest().is_some());
    }
}
