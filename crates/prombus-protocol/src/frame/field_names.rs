//! Which fields each frame may have, and which errors other fields cause.

use crate::names::{Found, find};
use crate::options::OptionError;
use crate::options::fields::{EVENT_AND_FRAME_FIELDS, Ignored, shown};
use crate::options::untyped::Untyped;
use crate::options::{PUBLISH_NAMES, SUBSCRIBE_NAMES};

/// The field names of one kind of frame.
pub(super) struct FieldNames {
    /// Names at the top level, next to `op`.
    pub(super) frame: &'static [&'static str],
    /// Names inside `opts`; empty if the frame has no options.
    pub(super) opts: &'static [&'static str],
}

impl FieldNames {
    /// The names of the frame with this `op`; `None` if the `op` is unknown.
    pub(super) fn of(op: &str) -> Option<Self> {
        let (frame, opts): (&[&str], &[&str]) = match op {
            "AUTH" => (&["op", "corr", "token"], &[]),
            "PUBLISH" => (&["op", "corr", "topic", "payload", "opts"], &PUBLISH_NAMES),
            "SUBSCRIBE" => (&["op", "corr", "topic", "group", "opts"], &SUBSCRIBE_NAMES),
            "UNSUBSCRIBE" | "PAUSE" | "RESUME" | "CURSOR" => (&["op", "corr", "topic", "group"], &[]),
            "ACK" => (&["op", "corr", "topic", "group", "id"], &[]),
            "NACK" => (&["op", "corr", "topic", "group", "id", "reason", "delay_ms", "dead"], &[]),
            "MODACK" => (&["op", "corr", "topic", "group", "id", "extend_ms"], &[]),
            "SEEK" => (&["op", "corr", "topic", "group", "to", "ts", "afterId"], &[]),
            _ => return None,
        };
        Some(Self { frame, opts })
    }

    /// Checks a top-level field that the frame does not use: an error if it looks like a mistake, otherwise it is ignored.
    pub(super) fn check_unused(&self, name: &str, ignored: &mut Ignored) -> Result<(), OptionError> {
        let inside = |meant: &str| format!("opts.{meant}");
        match (find(name, self.opts), find(name, self.frame)) {
            (Found::Known(index), _) => Err(misplaced(name, inside(self.opts[index]))),
            (_, Found::Near(meant)) => Err(mistyped(name, meant.to_owned())),
            (Found::Near(meant), _) => Err(mistyped(name, inside(meant))),
            (Found::Unknown, _) => {
                ignored.add(name);
                Ok(())
            }
        }
    }

    /// Checks the `opts` of a frame that has no options: an error if they contain a field of the frame.
    pub(super) fn check_useless_opts(&self, opts: &Untyped<'_>) -> Result<(), OptionError> {
        let Untyped::Map(fields) = opts else { return Ok(()) };
        for (name, _) in fields
            .iter()
            .filter(|(name, value)| *value != Untyped::Null && !EVENT_AND_FRAME_FIELDS.contains(&&**name))
        {
            match find(name, self.frame) {
                Found::Known(index) => {
                    return Err(misplaced(&format!("opts.{name}"), self.frame[index].to_owned()));
                }
                Found::Near(meant) => return Err(mistyped(&format!("opts.{name}"), meant.to_owned())),
                Found::Unknown => {}
            }
        }
        Ok(())
    }
}

fn misplaced(field: &str, meant: String) -> OptionError {
    OptionError::Misplaced { field: shown(field), meant }
}

fn mistyped(field: &str, meant: String) -> OptionError {
    OptionError::Mistyped { field: shown(field), meant }
}
