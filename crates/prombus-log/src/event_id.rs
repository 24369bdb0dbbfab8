//! Event ids: 128 bits, written like a UUID.

use std::fmt;

/// A 128-bit event id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EventId(u128);

impl EventId {
    /// An id from the big-endian value of its UUID.
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// An id from the 16 bytes of a UUID.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// The id as a number.
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// The id as the 16 bytes of a UUID.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Whether the id has the version field of a UUIDv7, whose first bits are a time.
    pub(crate) const fn is_time_ordered(self) -> bool {
        (self.0 >> 76) & 0xf == 7
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0;
        write!(
            formatter,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            value >> 96,
            (value >> 80) & 0xffff,
            (value >> 64) & 0xffff,
            (value >> 48) & 0xffff,
            value & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
