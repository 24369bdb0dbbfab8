//! Where a follower's connection goes: to the leader, to this process if it begins to lead, or nowhere.

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

/// Pauses between two attempts to reach the leader.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// The error that clients get while no gateway leads.
pub(super) const NO_LEADER: &str = "no gateway leads the store now";

/// Where a connection goes.
pub(super) enum Way {
    Relay(Arc<Leader>, Hop),
    Lead(Arc<Leading>),
    Nowhere(ApiError),
}

impl Way {
    /// Waits up to `engine_wait` for a leader that can be reached.
    pub(super) async fn find(shared: &SharedState, ends: Ends) -> Self {
        let deadline = Instant::now() + shared.parts.options.engine_wait;
        let mut duties = shared.duties.clone();
        let mut pause = RETRY_FIRST;
        let mut reason = NO_LEADER.to_owned();
        loop {
            let duty = duties.borrow_and_update().clone();
            tokio::select! {
                biased;
                () = shared.stopping.wait() => return Self::nowhere(&shared.stopping.reason()),
                found = attempt(duty, ends, &mut reason, pause) => match found {
                    Some(way) => return way,
                    None => pause = (pause * 2).min(RETRY_MAX),
                },
                _ = duties.changed() => pause = RETRY_FIRST,
                () = sleep_until(deadline) => return Self::nowhere(&reason),
            }
        }
    }

    fn nowhere(reason: &dyn Display) -> Self {
        Self::Nowhere(ApiError::new(ErrorCode::Unavailable, reason))
    }
}

/// Tries once, and resolves when to try again. Waits indefinitely while there is no leader.
async fn attempt(duty: Duty, ends: Ends, reason: &mut String, pause: Duration) -> Option<Way> {
    let leader = match duty {
        Duty::Leading(leading) => return Some(Way::Lead(leading)),
        Duty::Following(Some(leader)) => leader,
        Duty::Following(None) => {
            NO_LEADER.clone_into(reason);
            return std::future::pending().await;
        }
    };
    *reason = HopError::Late(leader.endpoint.address.clone()).to_string();
    match leader.connect(ends).await {
        Ok(hop) => Some(Way::Relay(leader, hop)),
        // Waiting does not help: the configuration has to change.
        Err(error @ HopError::Plain(_)) => Some(Way::nowhere(&error)),
        Err(error) => {
            *reason = error.to_string();
            sleep(pause).await;
            None
        }
    }
}
