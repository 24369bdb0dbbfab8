//! Tests the group machine against a naive model, over random histories.
//!
//! Every step is applied to both. The results and the visible state of the machine must equal those of the model, and the
//! guarantees of docs/delivery.md must hold. A restart restores both from their durable state. `PROMBUS_SEED` is the seed of
//! the first history, `PROMBUS_STEPS` the total number of steps, `PROMBUS_HISTORY_STEPS` the number of steps in one history.

mod check;
pub mod choices;
mod history;
mod image;
mod model;
mod pulling;
mod settling;
mod steps;

use crate::support::setting;
use history::History;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How many steps of a history are printed when it fails.
const PRINTED_STEPS: usize = 40;

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

#[test]
fn group_machine_agrees_with_a_naive_model() {
    let first_seed = setting("PROMBUS_SEED", 1);
    let steps = setting("PROMBUS_STEPS", 320_000);
    let history_steps = setting("PROMBUS_HISTORY_STEPS", 400).max(1);
    println!("PROMBUS_SEED={first_seed} PROMBUS_STEPS={steps} PROMBUS_HISTORY_STEPS={history_steps}");
    for number in 0..steps.div_ceil(history_steps) {
        let seed = first_seed.wrapping_add(number);
        let mut history = History::new(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..history_steps {
                history.step();
            }
            history.finish();
        }));
        if let Err(panic) = outcome {
            let trail = history.trail();
            let printed = trail[trail.len().saturating_sub(PRINTED_STEPS)..].join("\n  ");
            panic!(
                "seed {seed}, step {}: {}\nthe last steps:\n  {printed}\nto repeat: PROMBUS_SEED={seed} \
                 PROMBUS_STEPS={history_steps} PROMBUS_HISTORY_STEPS={history_steps} cargo test -p prombus --test it \
                 group_model",
                history.step_count(),
                message_of(&*panic),
            );
        }
    }
}

#[test]
fn backoff_doubles_from_100_ms_to_30_s_with_20_percent_jitter() {
    for jitter in 0..1_000 {
        for failed_attempts in 1..40 {
            let backoff = prombus::delivery::backoff_ms(failed_attempts, jitter);
            assert!(
                settling::is_backoff(failed_attempts, backoff),
                "{backoff} ms after {failed_attempts} attempts"
            );
        }
    }
}
