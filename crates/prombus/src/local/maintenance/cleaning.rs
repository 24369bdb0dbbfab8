//! Decides when to clean, that is, to remove dead events from the engine. In a compacted topic an event is dead if a
//! newer event of the same key has replaced it. Such events are removed when there are enough of them, or when the last
//! compaction was long ago.

use super::round_state::{CleaningState, MaintainedTopic, RoundState};
use super::tombstone_sweep::{OldTombstones, SweepBudget};
use super::{Maintenance, ROUND_MS};
use crate::delivery::Millis;
use crate::engine::{MayBlock, TopicId};
use crate::error::ReadError;
use crate::local::latest_by_key::{LiveEvents, SharedMap};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Replaced events are removed if the last compaction was at least this long ago, even if they are few.
const COMPACT_AFTER_MS: Millis = 60_000;
/// The shorter time that applies instead if many tombstones were dropped since the last compaction.
const COMPACT_TOMBSTONES_AFTER_MS: Millis = 15_000;
/// The number of dropped tombstones that counts as many.
const TOMBSTONES_MANY: u64 = 1_000;

/// The up-to-date maps of compacted topics, and the sizes of their live and dead events.
#[derive(Default)]
struct CompactedMaps {
    maps: HashMap<TopicId, Arc<SharedMap>>,
    live_bytes: u64,
    dead_bytes: u64,
}

impl Maintenance {
    /// Cleans if compaction is due, if retention has removed events in this round (`is_cut`), or if there is another
    /// reason to clean.
    pub(super) async fn clean_if_due(
        &self,
        compacted: &[&MaintainedTopic],
        is_cut: bool,
        round_state: &mut RoundState,
        may_block: MayBlock,
    ) {
        let now = self.reading.clock.steady_ms();
        let CompactedMaps { maps, live_bytes, dead_bytes } =
            self.compacted_maps(compacted, round_state).await;
        let bytes_min = self.reading.engine.capabilities().compaction_bytes_min;
        let is_worth = dead_bytes >= live_bytes.max(bytes_min);
        let cleaning = &mut round_state.cleaning;
        let are_many = cleaning.tombstones_dropped >= TOMBSTONES_MANY && !cleaning.has_more_tombstones;
        let compact_after_ms = if are_many { COMPACT_TOMBSTONES_AFTER_MS } else { COMPACT_AFTER_MS };
        let is_old = now.saturating_sub(cleaning.compacted_at) >= compact_after_ms;
        let compact = dead_bytes > 0 && (is_worth || is_old);
        if compact || is_cut || self.is_cleaning_wanted(cleaning, now) {
            self.clean(maps, compact, round_state, now, may_block);
        }
    }

    /// Brings the maps of compacted topics up to date, and drops old tombstones.
    async fn compacted_maps(
        &self,
        compacted: &[&MaintainedTopic],
        round_state: &mut RoundState,
    ) -> CompactedMaps {
        let clock = &self.reading.clock;
        let mut budget = SweepBudget::new(clock.steady_ms());
        let mut compacted_maps = CompactedMaps::default();
        for MaintainedTopic { topic, settings } in compacted {
            let own = round_state.topics.entry(topic.id).or_default();
            match self.latest.up_to_date(topic.id, &topic.name).await {
                Ok(map) => {
                    own.compaction_fault.succeeded();
                    // A tombstone is dropped only after a snapshot was taken that includes the deletion; otherwise the
                    // deleted key would stay in the snapshot topic indefinitely.
                    let drop_to_seq = if settings.has_snapshots() { own.snapshot_to } else { u64::MAX };
                    let old_seq = own.ages.seq_of_age(clock.steady_ms(), settings.tombstone_ms);
                    let by_ms = clock.wall_ms().saturating_sub_unsigned(settings.tombstone_ms);
                    let old = OldTombstones { topic: topic.id, by_ms, old_seq, drop_to_seq };
                    let dropped = self.drop_tombstones(&old, &map.state, &mut own.tombstones, &mut budget);
                    round_state.cleaning.tombstones_dropped += dropped.await;
                    let state = map.state.lock();
                    compacted_maps.live_bytes += state.map.live_bytes();
                    compacted_maps.dead_bytes += state.map.dead_bytes();
                    drop(state);
                    compacted_maps.maps.insert(topic.id, map);
                }
                Err(ReadError::UnknownTopic(_) | ReadError::Unavailable(_)) => {}
                Err(error) => drop(own.compaction_fault.log_once(&topic.name, "compaction", &error)),
            }
        }
        round_state.cleaning.has_more_tombstones = budget.is_used_up();
        compacted_maps
    }

    /// Whether there is another reason for a cleaning: a deletion, a cleaning that did not finish, or a full disk.
    fn is_cleaning_wanted(&self, cleaning: &mut CleaningState, now: Millis) -> bool {
        let is_again = cleaning.clean_again_at.take_if(|at| *at <= now).is_some();
        // On a full disk cleaning helps even without retention or compaction: it removes segments that contain only
        // outdated group records.
        let is_refused = self.groups.runtime.records.is_refused();
        let is_full = (is_refused || self.reading.engine.is_full()) && now >= cleaning.clean_full_at;
        if is_full {
            cleaning.clean_full_at = now.saturating_add(if is_refused { ROUND_MS } else { COMPACT_AFTER_MS });
        }
        self.schedule.take_cleaning_request() || is_again || is_full
    }

    fn clean(
        &self,
        maps: HashMap<TopicId, Arc<SharedMap>>,
        compact: bool,
        round_state: &mut RoundState,
        now: Millis,
        may_block: MayBlock,
    ) {
        let mut taken = Vec::new();
        if compact {
            round_state.cleaning.compacted_at = now;
            round_state.cleaning.tombstones_dropped = 0;
            taken.extend(maps.values().map(|map| (Arc::clone(map), map.state.lock().map.take_dead_bytes())));
        }
        let live = LiveEvents { engine: &*self.reading.engine, compacted: maps };
        let cleaned = self.reading.engine.clean(&live, compact, may_block);
        if !matches!(&cleaned, Ok(cleaned) if !cleaned.is_cut_short) {
            // Some dead events were not removed. They are counted again, so that they trigger another compaction even if
            // no more events become dead.
            taken.iter().for_each(|(map, bytes)| map.state.lock().map.put_back_dead_bytes(*bytes));
            round_state.cleaning.clean_again_at = Some(now.saturating_add(COMPACT_AFTER_MS));
        }
        match cleaned {
            Ok(cleaned) => {
                self.cleaned_events.fetch_add(cleaned.events, Ordering::Relaxed);
                self.cleaned_bytes.fetch_add(cleaned.bytes, Ordering::Relaxed);
                if cleaned.events > 0 && compact {
                    // Tombstones are examined again: the cleaning may have removed the last older event of a key, so that
                    // the key's tombstone can be dropped.
                    round_state.topics.values_mut().for_each(|own| own.tombstones.restart());
                }
            }
            Err(error) if !self.reading.commits.is_closed() => tracing::error!("cleaning failed: {error}"),
            Err(_) => {}
        }
    }
}
