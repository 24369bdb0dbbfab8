//! A frame that must be completed before the next one is handled: SUBSCRIBE, SEEK, CURSOR.

use prombus::delivery::MemberSettings;
use prombus::{BoxFuture, GroupError, GroupSpec, Joined};
use prombus_protocol::CursorPosition;

pub(super) struct Barrier {
    /// The `corr` of the answer.
    pub(super) corr: Option<String>,
    pub(super) ignored: Vec<String>,
    pub(super) future: BoxFuture<'static, Result<Passed, GroupError>>,
}

/// The result of the frame.
pub(super) enum Passed {
    Subscribed { spec: GroupSpec, settings: MemberSettings, joined: Joined },
    Cursor(Option<CursorPosition>),
}
