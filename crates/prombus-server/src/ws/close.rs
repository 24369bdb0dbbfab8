//! The codes and reasons of the close frames that the server sends. No other module knows close codes.

use super::frame_decoder::{NOT_UTF8, Violation};
use super::frame_encoder::put_close;
use crate::live::Withdrawn;
use crate::shutdown::StopReason;

/// The response to a close frame without a code.
const NORMAL: u16 = 1000;
/// The server shuts down.
const GOING_AWAY: u16 = 1001;
/// The client violated the WebSocket protocol.
const PROTOCOL_ERROR: u16 = 1002;
/// A text message that is not UTF-8, or data that is not deflate.
const INVALID_DATA: u16 = 1007;
/// No AUTH in time, too many wrong tokens, an expired or revoked token, or a client that sends too slowly or does not answer pings.
const POLICY: u16 = 1008;
/// A message over the size limit.
const TOO_LARGE: u16 = 1009;
/// Another gateway leads the store, or the token's permissions have changed: the client should connect again. The IANA registry calls this code Service Restart.
const SERVICE_RESTART: u16 = 1012;
/// The client did not read for too long.
const TRY_LATER: u16 = 1013;

/// The close frame that ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
}

impl Ending {
    /// The server shuts down.
    pub(crate) const SHUTDOWN: Self = Self { code: GOING_AWAY, reason: "the server shuts down" };
    /// Another gateway leads the store.
    pub(crate) const LEADER_CHANGED: Self =
        Self { code: SERVICE_RESTART, reason: "the leader of the store has changed" };
    pub(super) const NO_AUTH: Self = Self { code: POLICY, reason: "no AUTH in time" };
    pub(super) const TOKEN_EXPIRED: Self = Self { code: POLICY, reason: "the token has expired" };
    pub(super) const WRONG_TOKENS: Self = Self { code: POLICY, reason: "too many wrong tokens" };
    pub(super) const SLOW_MESSAGE: Self = Self { code: POLICY, reason: "a message took too long to arrive" };
    pub(super) const NO_PONG: Self = Self { code: POLICY, reason: "no answer to a ping" };
    pub(super) const STALLED: Self = Self { code: TRY_LATER, reason: "the client did not read for too long" };
    pub(super) const NOT_UTF8: Self = Self { code: INVALID_DATA, reason: NOT_UTF8 };

    /// The close frame, as a server sends it.
    pub(crate) fn frame(self) -> Vec<u8> {
        let mut frame = Vec::new();
        put_close(&mut frame, self.code, self.reason);
        frame
    }

    /// How a connection ends whose token was revoked or changed.
    pub(super) fn of_withdrawn(withdrawn: Withdrawn) -> Self {
        match withdrawn {
            Withdrawn::Revoked => Self { code: POLICY, reason: "the token was revoked" },
            Withdrawn::Changed => {
                Self { code: SERVICE_RESTART, reason: "the permissions of the token have changed" }
            }
        }
    }

    /// How a connection ends when the server stops. For a relayed connection only the leader changes: the follower that relays it
    /// keeps serving the client.
    pub(super) fn of_stop(reason: StopReason, is_relayed: bool) -> Self {
        match reason {
            StopReason::Shutdown if !is_relayed => Self::SHUTDOWN,
            StopReason::Shutdown | StopReason::Deposed => Self::LEADER_CHANGED,
        }
    }

    /// The response to a client's close frame: the same code, or a protocol error for a code that clients must not send.
    pub(super) fn answer_to(code: Option<u16>) -> Self {
        let code = match code {
            None => NORMAL,
            Some(code @ (1000..=1003 | 1007..=1014 | 3000..=4999)) => code,
            Some(_) => PROTOCOL_ERROR,
        };
        Self { code, reason: "" }
    }
}

impl From<Violation> for Ending {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Protocol(reason) => Self { code: PROTOCOL_ERROR, reason },
            Violation::Data(reason) => Self { code: INVALID_DATA, reason },
            Violation::TooLarge(_) => Self { code: TOO_LARGE, reason: "the message is too large" },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_no_client_may_send_are_not_sent_back() {
        let answers = [None, Some(1000), Some(1001), Some(4321)].map(|code| Ending::answer_to(code).code);
        assert_eq!(answers, [1000, 1000, 1001, 4321]);
        for code in [0, 999, 1004, 1005, 1006, 1015, 2999, 5000, u16::MAX] {
            assert_eq!(Ending::answer_to(Some(code)).code, PROTOCOL_ERROR, "{code}");
        }
    }
}
