//! Records when the server ran. A life is the time from a start of the process to its end. A pause is a time in which the server
//! (SIGSTOP) or this program (a busy machine) did not run; a delay during a pause is not a fault of the server.

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndKind {
    Killed,
    Terminated,
}

/// The end of a life, recorded just before the signal is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) at_ms: u64,
    pub(crate) kind: EndKind,
}

#[derive(Default)]
pub(crate) struct Timeline {
    /// One entry per life; `None` while it lasts.
    ends: Vec<Option<End>>,
    /// From and to; `u64::MAX` while it lasts.
    pauses: Vec<(u64, u64)>,
}

impl Timeline {
    pub(crate) fn begin_life(&mut self) {
        self.ends.push(None);
    }

    pub(crate) fn end_life(&mut self, end: End) {
        if let Some(last) = self.ends.last_mut() {
            *last = Some(end);
        }
    }

    pub(crate) fn end_of(&self, life: usize) -> Option<End> {
        self.ends.get(life).copied().flatten()
    }

    pub(crate) fn begin_pause(&mut self, at_ms: u64) {
        self.pauses.push((at_ms, u64::MAX));
    }

    pub(crate) fn end_pause(&mut self, at_ms: u64) {
        if let Some(pause) = self.pauses.iter_mut().rev().find(|pause| pause.1 == u64::MAX) {
            pause.1 = at_ms;
        }
    }

    pub(crate) fn add_pause(&mut self, from_ms: u64, to_ms: u64) {
        self.pauses.push((from_ms, to_ms));
    }

    /// The last faults, for reports: the number of lives that ended, how the last one ended, and the last pause.
    pub(crate) fn recent(&self) -> String {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        let mut text = format!("life {}", self.ends.len().saturating_sub(1));
        if let Some(end) = self.ends.iter().rev().flatten().next() {
            text += &format!(", last end {:?} at {:.3} s", end.kind, seconds(end.at_ms));
        }
        if let Some(&(from_ms, to_ms)) = self.pauses.last() {
            let to = if to_ms == u64::MAX { "now".to_owned() } else { format!("{:.3} s", seconds(to_ms)) };
            text += &format!(", last pause {:.3} s to {to}", seconds(from_ms));
        }
        text
    }

    /// The latest time with at least `slack_ms` of running time between it and `at_ms`.
    pub(crate) fn back(&self, at_ms: u64, slack_ms: u64) -> u64 {
        let mut from_ms = at_ms.saturating_sub(slack_ms);
        // A longer interval may include further pauses, which make it longer again.
        loop {
            let paused: u64 = self.paused_between(from_ms, at_ms);
            let next = at_ms.saturating_sub(slack_ms + paused);
            if next >= from_ms {
                return from_ms;
            }
            from_ms = next;
        }
    }

    /// Milliseconds between two times, without pauses.
    pub(crate) fn running_between(&self, from_ms: u64, to_ms: u64) -> u64 {
        to_ms.saturating_sub(from_ms).saturating_sub(self.paused_between(from_ms, to_ms))
    }

    fn paused_between(&self, from_ms: u64, to_ms: u64) -> u64 {
        let recent = self.pauses.iter().rev().take(200);
        recent.map(|&(from, to)| to.min(to_ms).saturating_sub(from.max(from_ms))).sum()
    }
}
