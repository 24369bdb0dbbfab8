//! Patterns against patterns: does one hold all topics of another, do two have a topic in common?
//!
//! Both questions are about all topics that there could ever be, so they are answered on the patterns: a pattern is a small
//! automaton that reads a topic segment by segment, and segments that no pattern names are all alike. Answers are exact, but
//! for one case: where [`covers`] would have to look at too many states it says no, which refuses too much but lets nobody in.
//!
//! Topics that begin with `dlq.` belong only to patterns that do. So patterns are split in two kinds first, and from there on
//! no pattern sees topics of the other kind; but for the topic `dlq`, which `dlq.**` matches too.

use prombus_protocol::{DEAD_LETTER_PREFIX, Pattern};
use std::collections::HashSet;

const DEAD_LETTER: &str = "dlq";

/// The states that [`covers`] looks at. Patterns that people write need some dozens; `**.a.*.*.*.*` and so on doubles them
/// with each `*`.
const MAX_STATES: usize = 4_096;

/// Whether every topic that `inner` matches is matched by `outer` too.
pub(super) fn covers(outer: &Pattern, inner: &Pattern) -> bool {
    if let Some(topic) = inner.as_topic() {
        return outer.matches(topic.as_str());
    }
    match (dead_letters(outer), dead_letters(inner)) {
        (None, None) => Segments::new(outer.as_str()).cover(&Segments::new(inner.as_str()), Kind::Events),
        (Some(outer), Some(inner)) => {
            let (outer, inner) = (Segments::new(outer), Segments::new(inner));
            outer.cover(&inner, Kind::DeadLetters) && (outer.matches_nothing() || !inner.matches_nothing())
        }
        // Each pattern with a wildcard has topics of its own kind.
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Whether there can be a topic that both match.
pub(super) fn overlaps(one: &Pattern, other: &Pattern) -> bool {
    match (dead_letters(one), dead_letters(other)) {
        (None, None) => Segments::new(one.as_str()).overlap(&Segments::new(other.as_str()), Kind::Events),
        (Some(one), Some(other)) => {
            let (one, other) = (Segments::new(one), Segments::new(other));
            one.overlap(&other, Kind::DeadLetters) || (one.matches_nothing() && other.matches_nothing())
        }
        (None, Some(_)) | (Some(_), None) => one.matches(DEAD_LETTER) && other.matches(DEAD_LETTER),
    }
}

/// What stands behind `dlq.`.
fn dead_letters(pattern: &Pattern) -> Option<&str> {
    pattern.as_str().strip_prefix(DEAD_LETTER_PREFIX)
}

/// What the topics are that two patterns are compared on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All but those that begin with `dlq.`.
    Events,
    /// What stands behind `dlq.`.
    DeadLetters,
}

/// How much of a topic has been read. Only a topic of one segment or more is one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Read {
    Nothing,
    /// `dlq`, among [`Kind::Events`]: nothing may follow.
    All,
    Some,
}

impl Read {
    /// After one more segment; `None` is a segment that no pattern names.
    fn next(self, segment: Option<&str>, kind: Kind) -> Self {
        let ends = self == Self::Nothing && kind == Kind::Events && segment == Some(DEAD_LETTER);
        if ends { Self::All } else { Self::Some }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Segment<'a> {
    Name(&'a str),
    /// `*`
    One,
    /// `**`
    Any,
}

impl<'a> Segment<'a> {
    fn name(self) -> Option<&'a str> {
        match self {
            Self::Name(name) => Some(name),
            Self::One | Self::Any => None,
        }
    }

    fn takes(self, segment: Option<&str>) -> bool {
        self.name().is_none_or(|name| segment == Some(name))
    }
}

/// A pattern's segments. The state of its automaton is the segment that it is at, or the number of segments at the end.
struct Segments<'a>(Vec<Segment<'a>>);

impl<'a> Segments<'a> {
    fn new(text: &'a str) -> Self {
        let mut segments: Vec<_> = text
            .split('.')
            .map(|segment| match segment {
                "*" => Segment::One,
                "**" => Segment::Any,
                name => Segment::Name(name),
            })
            .collect();
        // One after the other they mean no more than one.
        segments.dedup_by(|a, b| *a == Segment::Any && *b == Segment::Any);
        Self(segments)
    }

    fn matches_nothing(&self) -> bool {
        self.0 == [Segment::Any]
    }

    fn is_end(&self, at: usize) -> bool {
        at == self.0.len() || (self.0[at] == Segment::Any && at + 1 == self.0.len())
    }

    /// The state after a segment was taken at `at`.
    fn after(&self, at: usize) -> usize {
        if self.0[at] == Segment::Any { at } else { at + 1 }
    }

    /// A topic that both match is a way through both automata at once.
    fn overlap(&self, other: &Self, kind: Kind) -> bool {
        let mut open = vec![(0, 0, Read::Nothing)];
        let mut seen = HashSet::new();
        while let Some(state @ (at, other_at, read)) = open.pop() {
            if !seen.insert(state) {
                continue;
            }
            if read != Read::Nothing && self.is_end(at) && other.is_end(other_at) {
                return true;
            }
            let (here, there) = (self.0.get(at), other.0.get(other_at));
            if here == Some(&Segment::Any) {
                open.push((at + 1, other_at, read));
            }
            if there == Some(&Segment::Any) {
                open.push((at, other_at + 1, read));
            }
            // Where both take anything, a segment that nobody names is as good as any.
            if let (Some(here), Some(there)) = (here, there)
                && read != Read::All
            {
                let segment = here.name().or(there.name());
                if here.takes(segment) && there.takes(segment) {
                    open.push((self.after(at), other.after(other_at), read.next(segment, kind)));
                }
            }
        }
        false
    }

    /// Looks for a topic that `inner` matches and this does not: a way through `inner` that leaves this, with all the states
    /// that it can be in at once, in none that ends.
    fn cover(&self, inner: &Self, kind: Kind) -> bool {
        let table = Table::new(self);
        let start = (0, table.start(), Read::Nothing);
        let mut seen = HashSet::from([start]);
        let mut open = vec![start];
        let mut next = Vec::new();
        while let Some((at, positions, read)) = open.pop() {
            if read != Read::Nothing && inner.is_end(at) && !positions.has_end {
                return false;
            }
            let Some(&here) = inner.0.get(at) else { continue };
            if here == Segment::Any {
                next.push((at + 1, positions, read));
            }
            if read != Read::All {
                let mut step = |(name, takes)| {
                    next.push((inner.after(at), table.step(positions, takes), read.next(name, kind)));
                };
                match here {
                    Segment::Name(name) => step((Some(name), table.takes(name))),
                    // Any name that this pattern has, and one that no pattern has: that one stands for all others.
                    Segment::One | Segment::Any => {
                        table.names.iter().for_each(|(name, takes)| step((Some(name), *takes)));
                        step((None, table.one));
                    }
                }
            }
            open.extend(next.drain(..).filter(|state| !table.ends_always(state.1) && seen.insert(*state)));
            if seen.len() > MAX_STATES {
                return false;
            }
        }
        true
    }
}

/// States of a pattern's automaton: a bit for each segment, and the end. A pattern has at most 128 segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Positions {
    at: u128,
    has_end: bool,
}

/// Which segments of a pattern take which names.
struct Table<'a> {
    /// Each name of the pattern, with the segments that take it: `*` among them, `**` not.
    names: Vec<(&'a str, u128)>,
    /// `*`.
    one: u128,
    /// `**`.
    any: u128,
    /// All segments.
    all: u128,
    /// The last segment.
    last: u128,
}

impl<'a> Table<'a> {
    fn new(pattern: &Segments<'a>) -> Self {
        let bits = |wanted: Segment<'_>| {
            pattern
                .0
                .iter()
                .enumerate()
                .filter(|(_, segment)| **segment == wanted)
                .map(|(at, _)| 1 << at)
                .sum()
        };
        let one = bits(Segment::One);
        let mut names: Vec<_> = pattern.0.iter().filter_map(|segment| segment.name()).collect();
        names.sort_unstable();
        names.dedup();
        let last = 1 << (pattern.0.len() - 1);
        Self {
            names: names.into_iter().map(|name| (name, bits(Segment::Name(name)) | one)).collect(),
            one,
            any: bits(Segment::Any),
            all: last | (last - 1),
            last,
        }
    }

    fn start(&self) -> Positions {
        self.behind_any(1, false)
    }

    /// The segments that take a name, but for `**`.
    fn takes(&self, name: &str) -> u128 {
        self.names.iter().find(|(known, _)| *known == name).map_or(self.one, |(_, takes)| *takes)
    }

    /// All states after one more segment, which the segments `takes` take.
    fn step(&self, from: Positions, takes: u128) -> Positions {
        let moved = from.at & takes;
        self.behind_any(((moved << 1) & self.all) | (from.at & self.any), moved & self.last != 0)
    }

    /// Whether whatever follows is matched: a `**` at the end has been reached.
    fn ends_always(&self, positions: Positions) -> bool {
        positions.at & self.any & self.last != 0
    }

    /// A `**` can stand for nothing. There are no two in a row.
    fn behind_any(&self, at: u128, has_end: bool) -> Positions {
        let any = at & self.any;
        Positions { at: at | ((any << 1) & self.all), has_end: has_end || any & self.last != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(text).unwrap()
    }

    fn all_of(alphabet: &[&str], longest: usize) -> Vec<String> {
        let mut all: Vec<String> = alphabet.iter().map(ToString::to_string).collect();
        let mut newest = all.clone();
        for _ in 1..longest {
            newest = newest.iter().flat_map(|a| alphabet.iter().map(move |b| format!("{a}.{b}"))).collect();
            all.extend_from_slice(&newest);
        }
        all
    }

    /// Compares with what the patterns do on all short topics. The topics must be long enough, and have a name that no
    /// pattern has, so that there is an example for every difference.
    fn agrees_with_trying_all_topics(patterns: &[String], topics: &[String]) {
        let patterns: Vec<_> = patterns.iter().map(|text| pattern(text)).collect();
        let matched: Vec<Vec<bool>> = patterns
            .iter()
            .map(|pattern| topics.iter().map(|topic| pattern.matches(topic)).collect())
            .collect();
        for (one, ones) in patterns.iter().zip(&matched) {
            for (other, others) in patterns.iter().zip(&matched) {
                let pairs = || ones.iter().zip(others);
                let is_covered = pairs().all(|(one, other)| *one || !other);
                assert_eq!(covers(one, other), is_covered, "{one} covers {other}");
                let has_common = pairs().any(|(one, other)| *one && *other);
                assert_eq!(overlaps(one, other), has_common, "{one} overlaps {other}");
            }
        }
    }

    #[test]
    fn cover_and_overlap_agree_with_trying_all_topics() {
        let mut patterns = all_of(&["a", "b", "*", "**"], 3);
        patterns.extend(patterns.clone().iter().map(|text| format!("dlq.{text}")));
        patterns.push("dlq".to_owned());
        let mut topics = all_of(&["a", "b", "c"], 6);
        topics.extend(topics.clone().iter().map(|text| format!("dlq.{text}")));
        topics.push("dlq".to_owned());
        agrees_with_trying_all_topics(&patterns, &topics);
    }

    #[test]
    fn dead_letters_in_the_middle_of_patterns_are_exact_too() {
        let patterns = all_of(&["a", "dlq", "*", "**"], 3);
        agrees_with_trying_all_topics(&patterns, &all_of(&["a", "c", "dlq"], 6));
    }

    #[test]
    fn a_wider_subscription_is_not_covered_by_a_narrower_scope() {
        for inner in ["orders.**", "**", "orders.*.*", "*.*", "orders", "*", "dlq.orders.*", "orders.**.x"] {
            assert!(!covers(&pattern("orders.*"), &pattern(inner)), "{inner}");
        }
        for inner in ["orders.*", "orders.created", "orders.*.**.x", "orders.**.created.*", "orders"] {
            assert!(covers(&pattern("orders.**"), &pattern(inner)), "{inner}");
        }
        assert!(covers(&pattern("*.**"), &pattern("**")), "a topic has a segment at least");
    }

    #[test]
    fn the_longest_patterns_work() {
        let names = vec!["a"; 128].join(".");
        let stars = vec!["*"; 128].join(".");
        assert_eq!(stars.len(), 255);
        let (names, stars) = (pattern(&names), pattern(&stars));
        let (letters, any) = (pattern(&format!("dlq.{stars}")), pattern("**.*.*"));
        assert!(covers(&stars, &names) && covers(&stars, &stars) && covers(&any, &stars));
        assert!(covers(&letters, &letters) && covers(&pattern("dlq.**"), &letters));
        assert!(!covers(&names, &stars) && !covers(&stars, &any) && !covers(&stars, &letters));
        assert!(overlaps(&names, &stars) && overlaps(&any, &names) && !overlaps(&letters, &stars));
        assert!(!overlaps(&pattern(&vec!["*"; 127].join(".")), &stars));
    }

    #[test]
    fn nasty_patterns_are_refused_in_bounded_time() {
        // Whether the 60th segment from the end was `a` needs 2^60 states to remember.
        let outer = pattern(&format!("**.a{}", ".*".repeat(60)));
        let inner = pattern(&format!("**.a{}.**", ".*".repeat(60)));
        assert!(!covers(&outer, &inner));
        let same = pattern(&format!("**.a{}", ".*".repeat(60)));
        let began = std::time::Instant::now();
        let _ = covers(&outer, &same);
        assert!(overlaps(&outer, &inner));
        assert!(began.elapsed() < std::time::Duration::from_secs(5));
    }
}
