//! A frame that must be completed before the next one is handled: SUBSCRIBE, SEEK, CURSOR.

use super::subscriptions::SlotIndex;
use prombus::delivery::MemberSettings;
use prombus::{BoxFuture, GroupError, GroupSpec, Joined};
use prombus_protocol::CursorPosition;

/// The frame that later frames wait for.
pub(super) struct Barrier {
    /// The frame's `corr`, which the answer echoes.
    pub(super) corr: Option<String>,
    /// The unknown fields of the frame, which the answer lists.
    pub(super) ignored: Vec<String>,
    /// The subscription that a SEEK moves. It gets no events until the SEEK is answered.
    pub(super) moves: Option<SlotIndex>,
    pub(super) future: BoxFuture<'static, Result<Passed, GroupError>>,
}

/// The result of the frame.
pub(super) enum Passed {
    Subscribed { spec: GroupSpec, settings: MemberSettings, joined: Joined },
    Cursor(Option<CursorPosition>),
}
