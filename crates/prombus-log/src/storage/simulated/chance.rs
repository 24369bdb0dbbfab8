//! Random decisions: which unsynced sectors and names survive a power cut.

/// Which unsynced sectors or names survive. Independent decisions alone would hardly ever keep all of them, none of them,
/// or a prefix, which are the most frequent outcomes on real disks.
#[derive(Clone, Copy)]
pub(super) enum Fate {
    Lost,
    Kept,
    /// Only this many survive, from the first on.
    First(usize),
    /// Each survives with a probability of `eighths` / 8, independently of the others.
    Each {
        eighths: u64,
    },
}

impl Fate {
    pub(super) fn draw(chance: &mut Random, count: usize) -> Self {
        match chance.below(16) {
            0 => Self::Lost,
            1 => Self::Kept,
            2..=5 => Self::First(chance.index_below(count + 1)),
            6..=8 => Self::Each { eighths: 1 },
            9..=11 => Self::Each { eighths: 7 },
            _ => Self::Each { eighths: 4 },
        }
    }

    /// One fate for all files and names, or `None` if each file draws its own.
    pub(super) fn draw_for_the_disk(chance: &mut Random) -> Option<Self> {
        match chance.below(8) {
            0 => Some(Self::Lost),
            1 => Some(Self::Kept),
            _ => None,
        }
    }

    pub(super) fn keeps(self, chance: &mut Random, index: usize) -> bool {
        match self {
            Self::Lost => false,
            Self::Kept => true,
            Self::First(count) => index < count,
            Self::Each { eighths } => chance.below(8) < eighths,
        }
    }
}

/// splitmix64: small, fast, and without repeated numbers.
#[derive(Clone)]
pub(super) struct Random {
    pub(super) state: u64,
}

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A number below `limit`, which must be small and not 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(super) fn index_below(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).expect("less than a usize")
    }

    /// A number from 0 to `length`; often 0 or `length` itself.
    pub(super) fn part_of(&mut self, length: usize) -> usize {
        match self.below(4) {
            0 => 0,
            1 => length,
            _ => self.index_below(length + 1),
        }
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}
