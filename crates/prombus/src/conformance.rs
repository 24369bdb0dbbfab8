//! The suite that every backend must pass: one rule of delivery a function, each with a fresh bus.
//!
//! A backend's tests say how to make a bus and get one test per rule:
//!
//! ```text
//! async fn make_bus() -> prombus::conformance::Subject {
//!     prombus::conformance::Subject::new(prombus::Bus::memory())
//! }
//!
//! prombus::conformance_suite!(make_bus);
//! ```
//!
//! The rules use nothing but [`Bus`] and what it hands out: they know of no store, move no clock and cut no power. They wait for
//! what must come as long as it takes, and only a short while for what must not. What needs more than one life of a process
//! is not here.

pub mod cursor;
pub mod dead_letter;
pub mod delivery;
pub mod figures;
pub mod filters;
pub mod handlers;
pub mod lifecycle;
mod probe;
pub mod publish;
pub mod redelivery;
pub mod start;
pub mod state;
pub mod topics;

use crate::Bus;
use std::any::Any;
use std::time::Duration;

/// A rule that takes longer than this hangs.
const RULE_TIMEOUT: Duration = Duration::from_secs(60);

/// A bus to test, fresh and empty.
pub struct Subject {
    bus: Bus,
    /// Dropped when the rule is done, and the bus with it: a folder to remove, a database to drop.
    guard: Box<dyn Any + Send>,
}

impl Subject {
    /// A bus that leaves nothing behind.
    pub fn new(bus: Bus) -> Self {
        Self::with_guard(bus, ())
    }

    /// A bus that leaves something behind, which the guard clears away when it is dropped.
    pub fn with_guard(bus: Bus, guard: impl Any + Send) -> Self {
        Self { bus, guard: Box::new(guard) }
    }
}

impl std::fmt::Debug for Subject {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Subject")
    }
}

/// Checks one rule.
///
/// # Panics
/// When the bus breaks it.
pub async fn check<F: Future<Output = ()>>(subject: Subject, rule: impl FnOnce(Bus) -> F) {
    let Subject { bus, guard } = subject;
    // The rule has the only handle, because some rules are about the last one.
    let checked = tokio::time::timeout(RULE_TIMEOUT, rule(bus)).await;
    drop(guard);
    assert!(checked.is_ok(), "the rule was not done within {RULE_TIMEOUT:?}");
}

/// Makes a `#[tokio::test]` of every rule. `$make` is an async function without arguments that gives a
/// [`Subject`](crate::conformance::Subject). The caller needs tokio with `macros` and `rt`.
#[macro_export]
macro_rules! conformance_suite {
    ($make:ident) => {
        $crate::conformance_suite! { $make =>
            publish: [
                publish_answers_seqs_1_2_3_in_each_topic,
                ids_are_uuid_v7_and_rise,
                publishes_that_nobody_waits_for_keep_their_order,
                publish_with_a_known_id_is_a_duplicate_and_adds_nothing,
                a_duplicate_of_a_publish_under_way_adds_nothing,
                publish_with_an_id_that_the_bus_made_is_a_duplicate,
                a_known_id_inside_one_batch_is_a_duplicate,
                a_batch_is_answered_event_by_event,
                a_batch_with_a_bad_event_publishes_nothing,
                an_event_keeps_everything_that_it_was_given,
                line_breaks_in_a_payload_become_spaces,
                read_goes_page_by_page,
                read_of_an_unknown_topic_or_id_is_an_error,
            ]
            delivery: [
                a_group_gets_events_in_order,
                each_event_goes_to_one_member_of_a_group,
                competing_members_take_turns,
                every_group_gets_every_event,
                an_ack_advances_the_cursor,
                an_ack_out_of_order_leaves_the_floor_before_the_hole,
                a_delivery_says_its_attempt_lease_and_limit,
                max_in_flight_is_respected,
                an_ack_wakes_a_member_whose_window_was_full,
                batch_size_is_respected,
                max_unsettled_is_respected,
                members_that_stopped_waiting_hold_up_nobody,
                paused_members_hold_up_nobody,
                what_is_given_back_reaches_whoever_waits,
                members_that_race_lose_nothing,
            ]
            redelivery: [
                a_nack_redelivers_after_a_backoff,
                nack_after_waits_as_long_as_it_says,
                what_a_nack_said_comes_with_the_next_attempt,
                a_nacked_event_holds_up_no_other,
                an_expired_lease_redelivers,
                one_member_at_a_time_has_an_event,
                a_lost_members_events_go_to_another_at_once,
                what_a_lost_member_never_saw_was_no_attempt,
                a_member_that_leaves_gives_back_at_once_and_raises_no_attempt,
                a_late_ack_counts_if_nobody_newer_has_the_event,
                an_ack_after_a_nack_counts_while_nobody_newer_has_the_event,
                an_ack_after_redelivery_to_another_is_stale,
                an_ack_twice_is_stale,
                an_extension_keeps_the_lease,
                an_extension_gives_a_second_at_least,
                an_extension_of_an_expired_lease_says_no,
                an_extension_of_a_settled_event_says_no,
            ]
            dead_letter: [
                a_poison_event_becomes_a_dead_letter_and_the_group_goes_on,
                a_dead_letter_has_the_fields_that_are_promised,
                an_event_that_is_given_up_is_a_dead_letter_at_once,
                an_event_that_times_out_becomes_a_dead_letter,
                an_event_whose_members_are_lost_becomes_a_dead_letter,
                the_limit_of_attempts_is_that_of_the_member_who_would_get_it,
                dead_letters_of_two_groups_do_not_collide,
                what_fails_in_a_dead_letter_topic_is_parked,
                a_group_on_dead_letters_gets_them_as_they_come,
                an_ack_of_a_dead_letter_is_stale,
                a_deleted_group_writes_no_dead_letters,
            ]
            start: [
                the_first_member_makes_the_group,
                from_latest_gets_what_comes_from_now_on,
                from_latest_leaves_out_a_publish_that_was_not_waited_for,
                from_earliest_gets_everything,
                from_ts_starts_at_the_first_event_of_that_time,
                from_ts_finds_events_whose_times_are_out_of_order,
                from_after_id_starts_behind_that_event,
                from_an_unknown_id_is_an_error_and_makes_no_group,
                from_counts_only_for_a_new_group,
                a_group_without_members_keeps_its_place,
            ]
            state: [
                the_newest_event_of_each_key_is_found,
                null_with_a_key_deletes_the_key,
                a_state_and_what_follows_it_are_the_whole,
                pages_of_a_state_leave_nothing_out_while_it_changes,
                the_state_of_an_earlier_time_is_found,
                a_deleted_topic_is_gone_and_starts_again_at_1,
                deleting_a_topic_ends_its_groups_and_spares_the_others,
                publishing_while_topics_are_deleted_loses_no_answer,
                a_topic_is_set_and_shown,
                what_is_set_about_attempts_counts_for_new_members,
            ]
            topics: [
                a_group_reads_several_topics_each_in_order,
                a_star_matches_one_segment,
                two_stars_match_any_number_of_segments,
                a_topic_made_later_is_read_from_its_first_event,
                a_pattern_wakes_a_member_for_a_new_topic,
                dead_letter_topics_match_only_patterns_that_name_them,
                an_event_that_two_patterns_match_comes_once,
                a_member_with_other_topics_gets_a_conflict,
                after_id_with_several_topics_starts_at_the_events_time,
                topics_of_a_group_are_read_in_commit_order,
            ]
            filters: [
                a_filter_by_key_settles_the_others,
                a_filter_by_tag_settles_the_others,
                a_filter_by_header_settles_the_others,
                a_filter_by_closure_settles_the_others,
                all_parts_of_a_filter_must_match,
                a_filter_that_drops_everything_lets_the_floor_go_on,
                a_closure_is_its_own_members,
                a_closure_that_panics_loses_nothing,
                a_member_with_another_filter_gets_a_conflict,
            ]
            cursor: [
                seek_back_delivers_again,
                seek_back_wakes_a_member_that_waits,
                seek_forward_skips,
                seek_voids_leases,
                seek_forgets_attempts,
                seek_moves_one_group_only,
                seek_to_an_unknown_id_is_an_error,
                the_cursor_can_be_set,
                an_unknown_group_has_no_cursor,
            ]
            handlers: [
                a_handlers_ok_acks,
                a_handlers_error_nacks,
                a_handlers_panic_nacks_and_the_handler_goes_on,
                handlers_run_side_by_side_within_the_window,
                unsubscribing_waits_for_running_handlers,
                a_handler_goes_on_without_its_handle,
                manual_acks_are_by_id,
                an_ack_by_id_of_what_is_not_in_flight_is_stale,
                a_handler_that_unsubscribes_raises_no_attempt,
            ]
            lifecycle: [
                pause_stops_deliveries_until_resume,
                resume_wakes_a_member_that_waits,
                leases_of_a_paused_member_go_on_running,
                a_deleted_group_is_gone,
                deleting_a_group_leaves_others_alone,
                close_ends_streams_and_later_calls_say_so,
                close_finishes_what_is_under_way,
                clones_are_the_same_bus,
                dropping_all_handles_is_safe,
                the_last_handle_closes_the_bus,
            ]
            figures: [
                topics_say_their_seqs_and_groups,
                groups_say_lag_in_flight_and_oldest_unacked,
                a_group_that_is_done_has_no_lag,
                groups_list_their_leases,
                groups_are_listed_oldest_first,
                a_group_says_who_its_members_are,
                figures_count_what_happened,
                an_arrival_is_waited_for,
            ]
        }
    };
    ($make:ident => $($theme:ident: [$($rule:ident,)*])*) => {
        $($(
            #[tokio::test]
            async fn $rule() {
                $crate::conformance::check($make().await, $crate::conformance::$theme::$rule).await;
            }
        )*)*
    };
}
