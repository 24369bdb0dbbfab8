//! Finds the destination of a connection that a follower accepted: the leader, or this process if it becomes the leader.

use super::duty::{Duty, Leading};
use super::state::SharedState;
use crate::http::ApiError;
use crate::peer::Ends;
use crate::relay::{Hop, HopError, Leader};
use prombus_protocol::ErrorCode;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// The pause after the first failed attempt to reach the leader. It doubles after each further failure.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// The longest pause between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// The error that clients get while no gateway leads.
pub(super) const NO_LEADER: &str = "no gateway leads the store at the moment";

/// Where a connection goes.
pub(super) enum Destination {
    /// To this leader, over this open connection.
    Relay(Arc<Leader>, Hop),
    /// This process leads and serves the connection itself.
    Lead(Arc<Leading>),
    /// Nowhere: the client gets this error.
    None(ApiError),
}

impl Destination {
    /// Waits up to `engine_wait` until a leader is reachable.
    pub(super) async fn find(shared: &SharedState, ends: Ends) -> Self {
        let deadline = Instant::now() + shared.parts.options.engine_wait;
        let mut duties = shared.duties.clone();
        let mut pause = RETRY_FIRST;
        let mut reason = NO_LEADER.to_owned();
        loop {
            let duty = duties.borrow_and_update().clone();
            tokio::select! {
                biased;
                () = shared.stopping.wait() => return Self::none(&shared.stopping.reason()),
                found = attempt(duty, ends, &mut reason, pause) => match found {
                    Some(destination) => return destination,
                    None => pause = (pause * 2).min(RETRY_MAX),
                },
                _ = duties.changed() => pause = RETRY_FIRST,
                () = sleep_until(deadline) => return Self::none(&reason),
            }
        }
    }

    fn none(reason: &dyn Display) -> Self {
        Self::None(ApiError::new(ErrorCode::Unavailable, reason))
    }
}

/// Tries once to find the destination. After a failure, sets `reason`, waits for `pause` and resolves to `None`: the caller tries
/// again. If no leader is known, never resolves: the caller waits for a change of the duty.
async fn attempt(duty: Duty, ends: Ends, reason: &mut String, pause: Duration) -> Option<Destination> {
    let leader = match duty {
        Duty::Leading(leading) => return Some(Destination::Lead(leading)),
        Duty::Following(Some(leader)) => leader,
        Duty::Following(None) => {
            NO_LEADER.clone_into(reason);
            return std::future::pending().await;
        }
    };
    *reason = HopError::Late(leader.endpoint.address.clone()).to_string();
    match leader.connect(ends).await {
        Ok(hop) => Some(Destination::Relay(leader, hop)),
        // A retry would fail too: the configuration has to change.
        Err(error @ HopError::Plain(_)) => Some(Destination::none(&error)),
        Err(error) => {
            *reason = error.to_string();
            sleep(pause).await;
            None
        }
    }
}
