//! Options of publishers and subscribers, with their limits.
//!
//! An error about an option names the field as it is called in JSON, the value, and what is allowed. So options are first read
//! without types ([`untyped`]) and then checked; options that were read from JSON have passed their `check`. Both spellings of a name
//! are accepted ([`fields`]), a mistyped name is an error, and other unknown fields are ignored and listed. `null` counts as absent.
//! A filter refuses every unknown field: ignoring one would let more events through than the client wants.

mod error;
pub(crate) mod fields;
mod filter;
mod publish;
mod start;
mod subscribe;
pub(crate) mod untyped;

pub use error::OptionError;
pub use filter::Filter;
pub(crate) use publish::NAMES as PUBLISH_NAMES;
pub use publish::PublishOptions;
pub use start::Start;
pub(crate) use subscribe::NAMES as SUBSCRIBE_NAMES;
pub use subscribe::SubscribeOptions;

use untyped::Untyped;

pub(crate) fn check_length(field: &str, text: &str, least: usize, most: usize) -> Result<(), OptionError> {
    if (least..=most).contains(&text.len()) {
        return Ok(());
    }
    Err(OptionError::Length { field: field.to_owned(), bytes: text.len(), least, most })
}

fn check_count(field: &str, count: usize, most: usize) -> Result<(), OptionError> {
    if count <= most {
        return Ok(());
    }
    Err(OptionError::TooMany { field: field.to_owned(), count, most })
}

fn check_range(field: &str, number: i64, least: i64, most: i64) -> Result<(), OptionError> {
    Untyped::Integer(number).whole(field, least, most).map(drop)
}
