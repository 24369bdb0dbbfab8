//! Parses the first line of a NATS message.

use anyhow::{Context, bail};

/// The first line of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    pub(super) subject: &'a [u8],
    pub(super) reply: Option<&'a [u8]>,
    pub(super) header_bytes: usize,
    /// The size of headers and payload.
    pub(super) bytes: usize,
}

impl<'a> Head<'a> {
    /// Parses `MSG subject sid [reply] bytes` or `HMSG subject sid [reply] header-bytes bytes`. `None` for any other line.
    pub(super) fn read(line: &'a [u8]) -> anyhow::Result<Option<Self>> {
        let (rest, has_headers) = match line {
            [b'M', b'S', b'G', b' ', rest @ ..] => (rest, false),
            [b'H', b'M', b'S', b'G', b' ', rest @ ..] => (rest, true),
            _ => return Ok(None),
        };
        let mut words = [&rest[..0]; 5];
        let mut count = 0;
        let mut begin = 0;
        for end in memchr::memchr_iter(b' ', rest).chain([rest.len()]) {
            *words.get_mut(count).context("a message with too many words")? = &rest[begin..end];
            count += 1;
            begin = end + 1;
        }
        let numbers = 1 + usize::from(has_headers);
        let reply = match count.checked_sub(2 + numbers) {
            Some(0) => None,
            Some(1) => Some(words[2]),
            _ => bail!("a message with {count} words"),
        };
        let bytes = number(words[count - 1])? as usize;
        let header_bytes = if has_headers { number(words[count - 2])? as usize } else { 0 };
        if header_bytes > bytes {
            bail!("headers longer than their message");
        }
        Ok(Some(Self { subject: words[0], reply, header_bytes, bytes }))
    }
}

/// Parses a decimal number.
pub(super) fn number(digits: &[u8]) -> anyhow::Result<u64> {
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        bail!("not a number: {}", String::from_utf8_lossy(digits));
    }
    Ok(digits.iter().fold(0, |all, byte| all * 10 + u64::from(byte - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_and_without_reply_and_headers() {
        let read = |line: &'static str| Head::read(line.as_bytes()).unwrap().unwrap();
        let (subject, reply) = (&b"a.1"[..], Some(&b"r"[..]));
        assert_eq!(read("MSG a.1 1 5"), Head { subject, reply: None, header_bytes: 0, bytes: 5 });
        assert_eq!(read("MSG a.1 1 r 5"), Head { subject, reply, header_bytes: 0, bytes: 5 });
        assert_eq!(read("HMSG a.1 1 12 17"), Head { subject, reply: None, header_bytes: 12, bytes: 17 });
        assert_eq!(read("HMSG a.1 1 r 12 17"), Head { subject, reply, header_bytes: 12, bytes: 17 });
    }

    #[test]
    fn other_lines_are_none_and_malformed_messages_are_errors() {
        assert_eq!(Head::read(b"PING").unwrap(), None);
        for wrong in
            ["MSG a", "MSG a 1 x", "MSG a 1 r 5 5 5 5", "HMSG a 1 9 5", "MSG a 1 9999999999999999999"]
        {
            assert!(Head::read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
