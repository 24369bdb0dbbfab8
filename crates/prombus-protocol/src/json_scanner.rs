//! The grammar of JSON (RFC 8259), checked byte by byte without a tree and without recursion.
//!
//! Text that a [`Scanner`] has skipped is well-formed JSON, provided that it is UTF-8. The caller checks the UTF-8; the scanner accepts all
//! bytes from 0x80 up inside strings. The scanner deliberately decodes nothing: numbers of any size and lone `\u` surrogates are valid
//! grammar.
//!
//! Every publish goes through this code, so it reads strings 8 bytes at a time, and its errors fit in a register.

use crate::limits::MAX_NESTING;

/// The lowest bit of each byte.
const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
/// The highest bit of each byte.
const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);

/// The problem at the position where a scanner stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonFault {
    Value,
    Name,
    Colon,
    CommaOrBrace,
    CommaOrBracket,
    ControlByte,
    Escape,
    HexDigits,
    Digit,
    LeadingZero,
    Trailing,
    TooDeep,
}

impl JsonFault {
    pub(crate) const fn what(self) -> &'static str {
        match self {
            Self::Value => "a value was expected",
            Self::Name => "a name in quotes was expected",
            Self::Colon => "a colon was expected",
            Self::CommaOrBrace => "a comma or } was expected",
            Self::CommaOrBracket => "a comma or ] was expected",
            Self::ControlByte => "a control byte inside a string",
            Self::Escape => "an unknown escape in a string",
            Self::HexDigits => "four hex digits were expected after \\u",
            Self::Digit => "a digit was expected",
            Self::LeadingZero => "a number with a leading zero",
            Self::Trailing => "unexpected text after the value",
            Self::TooDeep => "nested too deep",
        }
    }
}

/// Sets the high bit of each byte that is `"`, `\` or a control byte. Only the lowest set bit is reliable; higher ones may be wrong.
const fn special_bytes(word: u64) -> u64 {
    const fn zero_bytes(word: u64) -> u64 {
        word.wrapping_sub(ONES) & !word
    }
    let quotes = zero_bytes(word ^ (ONES * b'"' as u64));
    let backslashes = zero_bytes(word ^ (ONES * b'\\' as u64));
    let controls = word.wrapping_sub(ONES * 0x20) & !word;
    (quotes | backslashes | controls) & HIGHS
}

/// A string that is longer than this is scanned in larger blocks.
const LONG_BYTES: usize = 16;

/// The number of plain bytes (no `"`, no `\`, no control byte) at the start, in whole blocks of 32. Written so that the compiler generates
/// vector instructions.
#[inline(never)]
fn plain_blocks(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(block) = bytes[at..].first_chunk::<32>() {
        let special = |byte: u8| u8::from(byte < 0x20) | u8::from(byte == b'"') | u8::from(byte == b'\\');
        if block.iter().fold(0, |any, &byte| any | special(byte)) != 0 {
            return at;
        }
        at += 32;
    }
    at
}

/// The number of bytes before the first `"`, `\` or control byte.
#[inline]
pub(crate) fn plain_prefix(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk() {
        let special = special_bytes(u64::from_le_bytes(*word));
        if special != 0 {
            return at + (special.trailing_zeros() / 8) as usize;
        }
        at += 8;
        if at == LONG_BYTES {
            at += plain_blocks(&bytes[at..]);
        }
    }
    let rest = &bytes[at..];
    at + rest.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\').unwrap_or(rest.len())
}

/// A position in a JSON text that moves over valid JSON.
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    /// The position.
    at: usize,
    /// Whether a CR or LF was skipped.
    pub(crate) line_breaks: bool,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, line_breaks: false }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Skips one byte, if there is one.
    #[inline(always)]
    pub(crate) fn skip_byte(&mut self) {
        self.at = (self.at + 1).min(self.bytes.len());
    }

    /// Skips this many bytes; the caller has checked that they exist.
    #[inline(always)]
    pub(crate) fn skip(&mut self, count: usize) {
        self.at = (self.at + count).min(self.bytes.len());
    }

    /// Skips exactly these bytes; `None` if the text continues with others.
    #[inline(always)]
    pub(crate) fn skip_literal(&mut self, literal: &[u8]) -> Option<()> {
        self.bytes[self.at..].starts_with(literal).then(|| self.at += literal.len())
    }

    #[inline(always)]
    pub(crate) fn skip_whitespace(&mut self) {
        // One comparison for the common case: no whitespace at all.
        while let Some(byte @ ..=b' ') = self.peek() {
            match byte {
                b' ' | b'\t' => {}
                b'\n' | b'\r' => self.line_breaks = true,
                _ => return,
            }
            self.at += 1;
        }
    }

    #[inline(always)]
    pub(crate) fn expect(&mut self, wanted: u8, fault: JsonFault) -> Result<(), JsonFault> {
        if self.peek() != Some(wanted) {
            return Err(fault);
        }
        self.at += 1;
        Ok(())
    }

    /// Skips one value, from its first byte to its last.
    pub(crate) fn value(&mut self) -> Result<(), JsonFault> {
        // Works on a copy, whose fields stay in registers; through a reference each step would access memory.
        let mut copy = Self { ..*self };
        let result = copy.walk_value();
        *self = copy;
        result
    }

    #[inline(always)]
    fn walk_value(&mut self) -> Result<(), JsonFault> {
        let mut depth = 0;
        // One bit per level, the innermost is the lowest: 1 for an object, 0 for an array.
        let mut levels: u128 = 0;
        loop {
            match self.peek() {
                Some(b'"') => self.string()?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(open @ (b'{' | b'[')) => {
                    if depth == MAX_NESTING {
                        return Err(JsonFault::TooDeep);
                    }
                    self.at += 1;
                    self.skip_whitespace();
                    let object = open == b'{';
                    if self.peek() == Some(if object { b'}' } else { b']' }) {
                        self.at += 1;
                    } else {
                        depth += 1;
                        levels = (levels << 1) | u128::from(object);
                        if object {
                            self.member_name()?;
                        }
                        continue;
                    }
                }
                Some(b't') => self.literal(b"true")?,
                Some(b'f') => self.literal(b"false")?,
                Some(b'n') => self.literal(b"null")?,
                _ => return Err(JsonFault::Value),
            }
            loop {
                if depth == 0 {
                    return Ok(());
                }
                self.skip_whitespace();
                let object = levels & 1 == 1;
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.skip_whitespace();
                        if object {
                            self.member_name()?;
                        }
                        break;
                    }
                    Some(b'}') if object => {}
                    Some(b']') if !object => {}
                    _ => {
                        return Err(if object { JsonFault::CommaOrBrace } else { JsonFault::CommaOrBracket });
                    }
                }
                self.at += 1;
                depth -= 1;
                levels >>= 1;
            }
        }
    }

    /// Skips `"name" :` and the whitespace after it.
    #[inline(always)]
    fn member_name(&mut self) -> Result<(), JsonFault> {
        if self.peek() != Some(b'"') {
            return Err(JsonFault::Name);
        }
        self.string()?;
        self.skip_whitespace();
        self.expect(b':', JsonFault::Colon)?;
        self.skip_whitespace();
        Ok(())
    }

    /// Skips a string; the scanner is at its first quote.
    #[inline(always)]
    pub(crate) fn string(&mut self) -> Result<(), JsonFault> {
        self.at += 1;
        loop {
            self.at += plain_prefix(&self.bytes[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    let (length, fault) = escape(&self.bytes[self.at..]);
                    self.at += length;
                    if let Some(fault) = fault {
                        return Err(fault);
                    }
                }
                _ => return Err(JsonFault::ControlByte),
            }
        }
    }

    #[inline(always)]
    fn number(&mut self) -> Result<(), JsonFault> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let start = self.at;
        self.digits()?;
        if self.bytes[start] == b'0' && self.at > start + 1 {
            self.at = start + 1;
            return Err(JsonFault::LeadingZero);
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn digits(&mut self) -> Result<(), JsonFault> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start { Err(JsonFault::Digit) } else { Ok(()) }
    }

    #[inline(always)]
    fn literal(&mut self, word: &'static [u8]) -> Result<(), JsonFault> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(JsonFault::Value);
        }
        self.at += word.len();
        Ok(())
    }
}

/// Returns the length of the escape at the start of `bytes`. If the escape is not valid, returns the position of the fault, and the fault.
fn escape(bytes: &[u8]) -> (usize, Option<JsonFault>) {
    match bytes.get(1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => (2, None),
        Some(b'u') => {
            let digits = bytes[2..].iter().take(4).take_while(|byte| byte.is_ascii_hexdigit()).count();
            (2 + digits, (digits < 4).then_some(JsonFault::HexDigits))
        }
        _ => (1, Some(JsonFault::Escape)),
    }
}
