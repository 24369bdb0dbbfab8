//! Derives event ids from idempotency keys: the same key gives the same id over WebSocket, over HTTP and from an outbox.

use crate::limits::MAX_IDEMPOTENCY_KEY_BYTES;
use crate::options::{OptionError, check_length};
use uuid::Uuid;

/// The namespace for hashing keys. It must never change, because a publisher may retry after an upgrade.
const NAMESPACE: Uuid = Uuid::from_u128(0x6f0b_6d0e_8a3c_4c5f_9d42_7072_6f6d_6275);

/// The id of the event with this key: a UUID is used unchanged, any other text is hashed (UUIDv5). `Idempotency-Key` over HTTP and
/// the rows of an outbox use the same function.
///
/// ```
/// # use prombus_protocol::id_of_key;
/// assert_eq!(id_of_key("order 17").to_string(), "4769d724-0b0d-510e-bc9b-5cca29704ade");
/// let id = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
/// assert_eq!(id_of_key(id).to_string(), id);
/// ```
pub fn id_of_key(key: &str) -> Uuid {
    Uuid::try_parse(key).unwrap_or_else(|_| Uuid::new_v5(&NAMESPACE, key.as_bytes()))
}

/// Like [`id_of_key`], for a key of 1 to 255 bytes: the limits of `opts.idempotencyKey`.
///
/// # Errors
/// If the key is empty or too long.
pub fn id_of_checked_key(key: &str) -> Result<Uuid, OptionError> {
    check_length("idempotencyKey", key, 1, MAX_IDEMPOTENCY_KEY_BYTES)?;
    Ok(id_of_key(key))
}
