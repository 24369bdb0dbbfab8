//! JSON values that are checked once and from then on only copied.
//!
//! A payload is checked by [`push_json`] when the server receives it. After that it is stored, read and sent as bytes, without being
//! parsed again. So the check must be complete (every consumer gets valid JSON) and fast (every publish pays for it).

use crate::json_scanner::{JsonFault, Scanner, plain_prefix};
use thiserror::Error;

/// Why a text is not one valid JSON value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JsonError {
    /// The text is empty, or has only whitespace.
    #[error("empty: one JSON value was expected")]
    Empty,
    /// Not UTF-8.
    #[error("not UTF-8 at byte {position}")]
    NotUtf8 {
        /// The position of the first invalid byte.
        position: usize,
    },
    /// Not JSON.
    #[error("not JSON at byte {position}: {what}")]
    Syntax {
        /// The byte position of the error.
        position: usize,
        /// The problem there.
        what: &'static str,
    },
    /// Nested deeper than [`MAX_NESTING`](crate::limits::MAX_NESTING).
    #[error("nested deeper than 128 arrays and objects at byte {position}")]
    TooDeep {
        /// The byte position of the first bracket beyond the limit.
        position: usize,
    },
}

impl JsonError {
    /// The fault that stopped a scanner, with its position.
    #[cold]
    pub(crate) fn at(scanner: &Scanner<'_>, fault: JsonFault) -> Self {
        let position = scanner.position();
        match fault {
            JsonFault::TooDeep => Self::TooDeep { position },
            _ if scanner.at_end() => Self::Syntax { position, what: "the text ends too early" },
            _ => Self::Syntax { position, what: fault.what() },
        }
    }
}

/// A JSON value that was checked: well formed, UTF-8, nested at most [`MAX_NESTING`](crate::limits::MAX_NESTING) deep, with
/// no whitespace around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<'a> {
    text: &'a str,
    /// Whether the text contains a CR or LF.
    line_breaks: bool,
}

impl<'a> Json<'a> {
    /// Checks that `json` is exactly one value.
    ///
    /// # Errors
    /// Says what is wrong, and at which byte.
    pub fn new(json: &'a [u8]) -> Result<Self, JsonError> {
        let text = std::str::from_utf8(json)
            .map_err(|error| JsonError::NotUtf8 { position: error.valid_up_to() })?;
        let mut scanner = Scanner::new(json);
        scanner.skip_whitespace();
        if scanner.peek().is_none() {
            return Err(JsonError::Empty);
        }
        let value = Self::scan(&mut scanner, text).map_err(|fault| JsonError::at(&scanner, fault))?;
        scanner.skip_whitespace();
        if scanner.at_end() { Ok(value) } else { Err(JsonError::at(&scanner, JsonFault::Trailing)) }
    }

    /// The value at the position of the scanner, which reads `text`.
    pub(crate) fn scan(scanner: &mut Scanner<'a>, text: &'a str) -> Result<Self, JsonFault> {
        let start = scanner.position();
        scanner.line_breaks = false;
        scanner.value()?;
        Ok(Self { text: &text[start..scanner.position()], line_breaks: scanner.line_breaks })
    }

    /// The text of the value, unchanged.
    pub fn get(&self) -> &'a str {
        self.text
    }

    /// Appends the value in its stored form, on one line. Nothing is checked again.
    pub fn push(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(self.text.as_bytes());
        if self.line_breaks {
            // Strings cannot contain raw CR or LF, so all of them are between tokens.
            for byte in &mut into[start..] {
                *byte = if matches!(*byte, b'\r' | b'\n') { b' ' } else { *byte };
            }
        }
    }
}

/// Checks that `json` is exactly one JSON value (RFC 8259, UTF-8, nested at most 128 deep) and appends it. Whitespace around the
/// value is removed, each CR and LF between its tokens becomes a space, and everything else is copied byte for byte.
///
/// ```
/// let mut body = b"payload: ".to_vec();
/// prombus_protocol::push_json(&mut body, b" {\"a\":\n1} ")?;
/// assert_eq!(body, b"payload: {\"a\": 1}");
/// # Ok::<(), prombus_protocol::JsonError>(())
/// ```
///
/// # Errors
/// Says what is wrong, and at which byte; `into` is unchanged.
pub fn push_json(into: &mut Vec<u8>, json: &[u8]) -> Result<(), JsonError> {
    Json::new(json)?.push(into);
    Ok(())
}

/// Appends `text` as a JSON string.
pub fn put_string(into: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    into.push(b'"');
    loop {
        let plain = plain_prefix(rest);
        into.extend_from_slice(&rest[..plain]);
        let Some(&byte) = rest.get(plain) else { break };
        put_escape(into, byte);
        rest = &rest[plain + 1..];
    }
    into.push(b'"');
}

fn put_escape(into: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => {
            into.extend_from_slice(b"\\u00");
            into.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            return;
        }
    };
    into.extend_from_slice(&[b'\\', short]);
}

const DIGIT_PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// Appends a number in decimal.
pub(crate) fn put_u64(into: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    while number >= 10 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&DIGIT_PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    if number > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + number as u8;
    }
    into.extend_from_slice(&digits[at..]);
}

/// Appends a number in decimal.
pub(crate) fn put_i64(into: &mut Vec<u8>, number: i64) {
    if number < 0 {
        into.push(b'-');
    }
    put_u64(into, number.unsigned_abs());
}

/// Appends an id as a JSON string.
pub(crate) fn put_uuid(into: &mut Vec<u8>, id: uuid::Uuid) {
    let mut text = [b'"'; 38];
    id.hyphenated().encode_lower(&mut text[1..37]);
    into.extend_from_slice(&text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    #[test]
    fn numbers_are_written_as_the_standard_library_writes_them() {
        let mut edges = vec![0, 1, 9, 10, 11, 99, 100, 101, 999, 1000, 9999, 10_000, u64::MAX, u64::MAX - 1];
        edges.extend((0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit]));
        for number in edges {
            let mut text = Vec::new();
            put_u64(&mut text, number);
            assert_eq!(text, number.to_string().as_bytes());
            text.clear();
            put_i64(&mut text, number as i64);
            assert_eq!(text, (number as i64).to_string().as_bytes());
        }
    }

    #[test]
    fn strings_are_escaped_so_that_they_read_back() {
        let mut text = String::new();
        for character in (0..0x180).chain([0x2028, 0xffff, 0x1f600]).filter_map(char::from_u32) {
            text.push(character);
            for text in [&text, &text[text.len() - character.len_utf8()..], "", "plain and longer than eight"]
            {
                let mut json = Vec::new();
                put_string(&mut json, text);
                assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), text);
                assert_eq!(json, serde_json::to_vec(text).unwrap());
            }
        }
    }

    #[test]
    fn line_breaks_between_tokens_become_spaces() {
        let mut kept = b"x".to_vec();
        push_json(&mut kept, b"\r\n{\"a\\n\" :\n[1,\r2] }\n").unwrap();
        assert_eq!(kept, b"x{\"a\\n\" : [1, 2] }");
        assert!(push_json(&mut kept, b"{\"a\":\n1").is_err());
        assert_eq!(kept, b"x{\"a\\n\" : [1, 2] }");
    }

    #[test]
    fn errors_say_what_and_where() {
        let message = |json: &[u8]| Json::new(json).unwrap_err().to_string();
        assert_eq!(message(b" \n"), "empty: one JSON value was expected");
        assert_eq!(message(b"[1, \xff]"), "not UTF-8 at byte 4");
        assert_eq!(message(b"{\"a\":01}"), "not JSON at byte 6: a number with a leading zero");
        assert_eq!(message(b"[1 2]"), "not JSON at byte 3: a comma or ] was expected");
        assert_eq!(message(b"[1,"), "not JSON at byte 3: the text ends too early");
        assert_eq!(message(b"1 1"), "not JSON at byte 2: unexpected text after the value");
        assert_eq!(message(b"\"a\nb\""), "not JSON at byte 2: a control byte inside a string");
    }

    #[test]
    fn nesting_up_to_the_limit_is_accepted() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]")] {
            let levels = 128 / open.matches(['[', '{']).count();
            let deep = |levels| format!("{}1{}", open.repeat(levels), close.repeat(levels));
            assert!(Json::new(deep(levels).as_bytes()).is_ok());
            let error = Json::new(deep(levels + 1).as_bytes()).unwrap_err();
            assert!(matches!(error, JsonError::TooDeep { .. }), "{error}");
        }
        assert!(Json::new(format!("{}{}", "[".repeat(128), "]".repeat(128)).as_bytes()).is_ok());
        assert!(matches!(Json::new("[".repeat(129).as_bytes()), Err(JsonError::TooDeep { position: 128 })));
    }

    fn same_verdict(json: &[u8]) {
        let theirs = serde_json::from_slice::<&RawValue>(json);
        let ours = Json::new(json);
        if let Err(JsonError::TooDeep { .. }) = ours {
            return;
        }
        assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?}: {ours:?}", String::from_utf8_lossy(json));
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            assert_eq!(ours.get(), theirs.get().trim_ascii());
        }
    }

    const VALID: [&str; 14] = [
        r#"{"a":[1,-2.5e+10,true,false,null,"x\u00e9\n\"\\\/"],"b":{"c":{}},"":[]}"#,
        r#""\ud800 lone""#,
        "-0",
        "0.10E-7",
        "1e999",
        "123456789012345678901234567890",
        "  [ ]  ",
        "\t\r\n{ \"a\" : 1 , \"b\" : [ 2 , 3 ] }",
        "\"\u{e9}\u{4e2d}\u{1f600} and quite a lot of plain text after it\"",
        "\"\u{7f}\u{80}\"",
        "[[[[[[]]]],{}],[{}]]",
        "true",
        "null",
        "{\"a\":1,\"a\":2}",
    ];

    #[test]
    fn verdicts_agree_with_serde_json_on_the_list_and_on_all_its_beginnings() {
        let invalid: [&[u8]; 38] = [
            b"",
            b" ",
            b"-",
            b"+1",
            b"01",
            b"-01",
            b"1.",
            b".5",
            b"1.e5",
            b"1e",
            b"1e+",
            b"0x1",
            b"1_0",
            b"NaN",
            b"Infinity",
            b"tru",
            b"truex",
            b"nul",
            b"'a'",
            b"[1,]",
            b"[,1]",
            b"[1",
            b"]",
            b"{,}",
            b"{\"a\"}",
            b"{\"a\":}",
            b"{\"a\":1,}",
            b"{a:1}",
            b"{1:1}",
            b"[1}",
            b"{\"a\":1]",
            b"\"\\x\"",
            b"\"\\u12g4\"",
            b"\"\t\"",
            b"\xef\xbb\xbf1",
            b"1\0",
            b"\"\xc3\"",
            b"\x0b1",
        ];
        for json in invalid {
            same_verdict(json);
            assert!(Json::new(json).is_err(), "{:?}", String::from_utf8_lossy(json));
        }
        for json in VALID {
            assert!(Json::new(json.as_bytes()).is_ok(), "{json}");
            for end in 0..=json.len() {
                same_verdict(&json.as_bytes()[..end]);
            }
            for control in 0..0x20 {
                same_verdict(&[json.as_bytes(), &[control]].concat());
                same_verdict(&[b"\"a long enough start", &[control][..], b" and end\""].concat());
            }
        }
    }

    #[test]
    fn verdicts_agree_with_serde_json_on_random_changes() {
        let seed = std::env::var("PROMBUS_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64));
        println!("PROMBUS_SEED={seed}");
        let mut state = seed | 1;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
        };
        let alphabet = b"{}[]:,\"\\/-+.0123456789eEtrufalsn \n\r\tb\x00\x1f\x7f\xc3\xa9\xffuD8";
        for _ in 0..100_000 {
            let mut json = VALID[random(VALID.len())].as_bytes().to_vec();
            for _ in 0..=random(3) {
                let (at, byte) = (random(json.len() + 1), alphabet[random(alphabet.len())]);
                match random(4) {
                    0 => json.insert(at, byte),
                    1 if at < json.len() => drop(json.remove(at)),
                    2 if at < json.len() => json[at] = byte,
                    _ => {
                        let part = json[at..].to_vec();
                        let to = random(json.len() + 1);
                        json.splice(to..to, part);
                    }
                }
            }
            same_verdict(&json);
        }
    }
}
