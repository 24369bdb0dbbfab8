//! Reads and writes the little-endian fields of structures on disk, in order.
//!
//! Reading with [`Fields`] never panics: a missing field is `None`, and the caller reports the file and the position.

use bytes::BufMut as _;

/// Reads fields one after another.
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.position.checked_add(length)?;
        let field = self.bytes.get(self.position..end)?;
        self.position = end;
        Some(field)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        Some(i64::from_le_bytes(self.array()?))
    }

    pub(crate) fn u128(&mut self) -> Option<u128> {
        Some(u128::from_le_bytes(self.array()?))
    }

    /// A length-prefixed byte string.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.bytes(length as usize)
    }

    /// A count of items of at least `item_bytes` each. `None` if they would not fit, so that a corrupt count cannot cause a
    /// huge allocation.
    pub(crate) fn count(&mut self, item_bytes: usize) -> Option<usize> {
        let count = self.u32()? as usize;
        (count.checked_mul(item_bytes)? <= self.bytes.len() - self.position).then_some(count)
    }
}

/// Writes a length-prefixed byte string. Other fields are written with [`bytes::BufMut`].
pub(crate) fn put_string(into: &mut Vec<u8>, value: &[u8]) {
    let length = u32::try_from(value.len()).expect("every string on disk is shorter than 4 GiB");
    into.put_u32_le(length);
    into.put_slice(value);
}

/// Reads a `u32` at a fixed position of a slice that is known to be long enough.
pub(crate) fn u32_at(bytes: &[u8], position: usize) -> u32 {
    u32::from_le_bytes(bytes[position..position + 4].try_into().expect("four bytes"))
}

/// Reads a `u64` at a fixed position of a slice that is known to be long enough.
pub(crate) fn u64_at(bytes: &[u8], position: usize) -> u64 {
    u64::from_le_bytes(bytes[position..position + 8].try_into().expect("eight bytes"))
}
