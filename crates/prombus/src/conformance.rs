//! The test suite that every backend must pass: one function per rule, each with a fresh bus.
//!
//! The tests of a backend provide a function that makes a bus, and get one test per rule:
//!
//! ```text
//! async fn make_bus() -> prombus::conformance::Subject {
//!     prombus::conformance::Subject::new(prombus::Bus::memory())
//! }
//!
//! prombus::conformance_suite!(make_bus);
//! ```
//!
//! The rules use only the API of [`Bus`]: they access no store, move no clock and simulate no power cut. They wait with a
//! generous timeout for something that must happen, and only briefly to check that something does not happen. Rules about
//! restarts are tested elsewhere.

pub mod addressee;
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

/// A rule that takes longer than this fails.
const RULE_TIMEOUT: Duration = Duration::from_secs(60);

/// A bus to test, fresh and empty.
pub struct Subject {
    bus: Bus,
    /// Dropped after the rule and its bus; removes a folder or drops a database.
    guard: Box<dyn Any + Send>,
}

impl Subject {
    /// A bus that needs no cleanup.
    pub fn new(bus: Bus) -> Self {
        Self::with_guard(bus, ())
    }

    /// A bus whose guard cleans up when it is dropped.
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
/// If the bus breaks the rule.
pub async fn check<F: Future<Output = ()>>(subject: Subject, rule: impl FnOnce(Bus) -> F) {
    let Subject { bus, guard } = subject;
    // The rule owns the only handle, because some rules test the drop of the last one.
    let checked = tokio::time::timeout(RULE_TIMEOUT, rule(bus)).await;
    drop(guard);
    assert!(checked.is_ok(), "the rule did not finish within {RULE_TIMEOUT:?}");
}

/// Makes a `#[tokio::test]` of every rule. `$make` is an async function without arguments that returns a
/// [`Subject`](crate::conformance::Subject). The caller needs tokio with `macros` and `rt`.
#[macro_export]
macro_rules! conformance_suite {
    ($make:ident) => {
        $crate::conformance_suite! { $make =>
            publish: [
                publish_returns_seqs_1_2_3_in_each_topic,
                ids_are_uuid_v7_and_rise,
                publishes_without_waiting_keep_their_order,
                publish_with_a_known_id_is_a_duplicate_and_adds_nothing,
                a_duplicate_of_a_publish_in_progress_adds_nothing,
                publish_with_an_id_that_the_bus_assigned_is_a_duplicate,
                a_repeated_id_inside_one_batch_is_a_duplicate,
                a_batch_returns_an_outcome_for_each_event,
                a_bad_event_is_refused_when_it_is_added_to_a_batch,
                an_event_keeps_all_its_fields,
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
                an_ack_out_of_order_leaves_the_floor_below_the_unsettled_event,
                a_delivery_contains_its_attempt_lease_and_limit,
                max_in_flight_is_respected,
                an_ack_wakes_a_member_whose_window_was_full,
                batch_size_is_respected,
                max_unsettled_is_respected,
                members_that_stopped_waiting_do_not_delay_others,
                paused_members_do_not_delay_others,
                returned_deliveries_reach_a_waiting_member,
                concurrent_members_lose_no_event,
            ]
            redelivery: [
                a_nack_redelivers_after_a_backoff,
                nack_after_waits_for_the_given_time,
                the_reason_of_a_nack_comes_with_the_next_attempt,
                a_nacked_event_does_not_delay_others,
                an_expired_lease_redelivers,
                an_event_is_leased_to_one_member_at_a_time,
                events_of_a_lost_member_go_to_another_at_once,
                events_that_a_lost_member_never_saw_count_no_attempt,
                a_member_that_leaves_returns_its_events_at_once_without_an_attempt,
                a_late_ack_applies_if_no_newer_member_holds_the_event,
                an_ack_after_a_nack_applies_while_no_newer_member_holds_the_event,
                an_ack_after_redelivery_to_another_member_is_stale,
                a_second_ack_is_stale,
                an_extension_keeps_the_lease,
                an_extension_is_at_least_a_second,
                an_expired_lease_cannot_be_extended,
                the_lease_of_a_settled_event_cannot_be_extended,
            ]
            dead_letter: [
                a_poison_event_becomes_a_dead_letter_and_the_group_continues,
                a_dead_letter_has_the_documented_fields,
                an_event_that_is_given_up_is_a_dead_letter_at_once,
                an_event_that_times_out_becomes_a_dead_letter,
                an_event_whose_members_are_lost_becomes_a_dead_letter,
                a_member_with_a_lower_limit_gives_up_an_event_that_others_tried,
                dead_letters_of_two_groups_do_not_collide,
                events_that_fail_in_a_dead_letter_topic_are_parked,
                a_group_on_dead_letters_gets_them_as_they_arrive,
                an_ack_of_an_event_that_was_given_up_is_stale,
                a_deleted_group_writes_no_dead_letters,
            ]
            addressee: [
                only_the_addressee_receives_an_addressed_event,
                an_addressed_event_that_fails_becomes_a_dead_letter,
                an_unknown_addressee_is_an_error,
                states_ignore_addressed_events,
                dead_letters_are_open_until_they_are_closed,
                an_event_that_fails_again_after_its_letter_was_closed_has_a_new_letter,
            ]
            start: [
                the_first_member_creates_the_group,
                from_latest_gets_only_later_events,
                from_latest_leaves_out_an_earlier_publish_that_is_not_durable_yet,
                from_earliest_gets_everything,
                from_ts_starts_at_the_first_event_of_that_time,
                from_ts_finds_events_whose_times_are_out_of_order,
                from_after_id_starts_after_that_event,
                from_an_unknown_id_is_an_error_and_creates_no_group,
                from_applies_only_to_a_new_group,
                a_group_without_members_keeps_its_position,
            ]
            state: [
                the_newest_event_of_each_key_is_found,
                null_with_a_key_deletes_the_key,
                a_state_and_the_events_after_it_are_complete,
                pages_of_a_changing_state_leave_nothing_out,
                the_state_of_an_earlier_time_is_found,
                a_deleted_topic_is_gone_and_starts_again_at_1,
                deleting_a_topic_ends_its_groups_and_no_others,
                publishes_resolve_while_their_topic_is_deleted,
                options_of_a_topic_are_set_and_shown,
                max_attempts_of_a_topic_applies_to_new_members,
            ]
            topics: [
                a_group_reads_several_topics_each_in_order,
                a_star_matches_one_segment,
                two_stars_match_any_number_of_segments,
                a_topic_created_later_is_read_from_its_first_event,
                a_pattern_wakes_a_member_for_a_new_topic,
                dead_letter_topics_match_only_patterns_that_name_them,
                an_event_that_two_patterns_match_is_delivered_once,
                a_member_with_other_topics_gets_a_conflict,
                after_id_starts_other_topics_at_the_ts_of_the_event,
                topics_of_a_group_are_read_in_commit_order,
            ]
            filters: [
                a_filter_by_key_settles_the_others,
                a_filter_by_tag_settles_the_others,
                a_filter_by_header_settles_the_others,
                a_filter_by_closure_settles_the_others,
                all_parts_of_a_filter_must_match,
                a_filter_that_drops_everything_does_not_hold_the_floor,
                a_closure_applies_to_its_own_member_only,
                a_closure_that_panics_loses_no_event,
                a_member_with_another_filter_gets_a_conflict,
            ]
            cursor: [
                seek_back_delivers_again,
                seek_back_wakes_a_waiting_member,
                seek_forward_skips,
                seek_voids_leases,
                seek_forgets_attempts,
                seek_moves_one_group_only,
                seek_to_an_unknown_id_is_an_error,
                a_preview_of_a_seek_counts_and_changes_nothing,
                the_cursor_can_be_set,
                an_unknown_group_has_no_cursor,
            ]
            handlers: [
                a_handlers_ok_acks,
                a_handlers_error_nacks,
                a_handlers_panic_nacks_and_the_handler_continues,
                handlers_run_concurrently_within_the_window,
                unsubscribing_waits_for_running_handlers,
                a_handler_continues_without_its_handle,
                manual_acks_are_by_id,
                an_ack_by_id_of_an_event_not_in_flight_is_stale,
                a_handler_that_unsubscribes_counts_no_attempt,
            ]
            lifecycle: [
                pause_stops_deliveries_until_resume,
                resume_wakes_a_waiting_member,
                leases_of_a_paused_member_keep_running,
                a_paused_group_delivers_nothing_until_it_is_resumed,
                resuming_a_group_wakes_all_its_members,
                leases_of_a_paused_group_keep_running,
                pausing_a_group_leaves_others_alone,
                a_deleted_group_is_gone,
                deleting_a_group_leaves_others_alone,
                close_ends_streams_and_later_calls_fail,
                close_completes_publishes_in_progress,
                clones_are_the_same_bus,
                dropping_all_handles_is_safe,
                the_last_handle_closes_the_bus,
            ]
            figures: [
                topics_list_their_seqs_and_groups,
                groups_report_lag_in_flight_and_oldest_unacked,
                a_group_that_has_settled_everything_has_no_lag,
                groups_list_their_leases,
                groups_are_listed_oldest_first,
                a_group_lists_its_members,
                figures_count_publishes_and_settles,
                arrival_waits_for_the_next_event,
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
