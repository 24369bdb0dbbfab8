//! Advances the clock of a test that uses sockets. With a paused clock, tokio would jump to the next timer whenever it waits for bytes of
//! a socket, so the clock runs between the steps.

use std::time::Duration;

/// Lets time pass, in steps of at most a second.
pub async fn pass(mut time: Duration) {
    while !time.is_zero() {
        let step = time.min(Duration::from_secs(1));
        tokio::time::pause();
        tokio::time::advance(step).await;
        tokio::time::resume();
        // Lets due timers fire, and their messages arrive.
        tokio::time::sleep(Duration::from_millis(2)).await;
        time -= step;
    }
}

pub async fn pass_seconds(seconds: u64) {
    pass(Duration::from_secs(seconds)).await;
}
