//! Errors as the system would report them.

use std::io;

pub(super) const EIO: i32 = 5;
pub(super) const EBADF: i32 = 9;
pub(super) const EFBIG: i32 = 27;
pub(super) const ENOSPC: i32 = 28;
pub(super) const EROFS: i32 = 30;

pub(super) fn power_is_off() -> io::Error {
    io::Error::other("power is off")
}

pub(super) fn os_error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}
