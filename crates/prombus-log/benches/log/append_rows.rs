//! The loads that are measured, and the disk space that each needs.

use crate::arguments::Arguments;
use crate::ids::IdKind;
use crate::machine;
use crate::publisher::EVENT_BYTES;
use prombus_log::Options;
use std::path::Path;
use std::time::Duration;

/// A burst is measured in this many slices. Each is followed immediately by the raw loop.
const BURST_SLICES: u32 = 4;

/// The number of newest segments that cleaning leaves, because they are after the older checkpoint.
const NEVER_CLEANED: usize = 2;

/// How the log gets new segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// A burst. Retired segments are ready to be recycled, as in a log with retention, so that no file is filled with zeros
    /// during the measurement.
    Ready,
    /// A sustained load whose events are all kept. Every segment is a new file that must be filled with zeros first.
    Kept,
    /// A sustained load with retention. Sealed segments are continuously cleaned and recycled.
    Retention,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendRow {
    pub in_flight: usize,
    pub topics: usize,
    pub ids: IdKind,
    pub segments: Segments,
}

/// The course of a round.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub slices: u32,
    pub slice: Duration,
    /// Segments to fill before the measurement starts.
    pub warm_up_segments: usize,
}

/// All rows.
pub fn rows() -> Vec<AppendRow> {
    let mut rows = Vec::new();
    for in_flight in [1, 64, 1_024] {
        for topics in [1, 100] {
            for ids in [IdKind::Server, IdKind::ClientV7] {
                rows.push(AppendRow { in_flight, topics, ids, segments: Segments::Ready });
            }
        }
    }
    let row = |ids, segments| AppendRow { in_flight: 1_024, topics: 1, ids, segments };
    rows.push(row(IdKind::ClientV4, Segments::Ready));
    rows.push(row(IdKind::Server, Segments::Kept));
    rows.push(row(IdKind::ClientV7, Segments::Kept));
    rows.push(row(IdKind::Server, Segments::Retention));
    rows
}

impl AppendRow {
    pub fn name(&self) -> String {
        let Self { in_flight, topics, ids, segments } = self;
        let plural = if *topics == 1 { "" } else { "s" };
        let load = format!("{in_flight} in flight, {topics} topic{plural}, {}", ids.name());
        match segments {
            Segments::Ready => format!("append {load}"),
            Segments::Kept => format!("sustained {load}, all kept"),
            Segments::Retention => format!("sustained {load}, retention"),
        }
    }

    pub fn is_burst(&self) -> bool {
        self.segments == Segments::Ready
    }

    pub fn plan(&self, arguments: &Arguments) -> Plan {
        let (slices, slice, ready) = match self.segments {
            Segments::Ready => {
                let slice = arguments.round / BURST_SLICES;
                (BURST_SLICES, slice, self.segments_in(slice) + NEVER_CLEANED)
            }
            Segments::Kept | Segments::Retention => (1, arguments.sustained_round, 0),
        };
        Plan { slices, slice, warm_up_segments: arguments.warm_up_segments + ready }
    }

    /// The number of segments that the fastest known disk could fill in this time.
    fn segments_in(&self, length: Duration) -> usize {
        let events_per_second = match self.in_flight {
            1 => 50_000.0,
            64 => 500_000.0,
            _ => 2_000_000.0,
        };
        let bytes = events_per_second * length.as_secs_f64() * EVENT_BYTES as f64;
        (bytes / Options::default().segment_bytes as f64).ceil() as usize
    }

    /// Why the disk is too small for a round, if it is.
    pub fn lacks_room(&self, plan: Plan, folder: &Path) -> Option<String> {
        let segments = match self.segments {
            Segments::Ready => self.segments_in(plan.slice),
            // Every byte is written twice, first as a zero.
            Segments::Kept => self.segments_in(plan.slice) / 2,
            Segments::Retention => 64,
        };
        let needed = (segments + 16) as u64 * Options::default().segment_bytes;
        let free = machine::free_bytes(folder)?;
        (free < needed).then(|| format!("{} MB free, a round may need {} MB", free >> 20, needed >> 20))
    }
}
