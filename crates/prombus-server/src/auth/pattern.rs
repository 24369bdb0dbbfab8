//! Compares patterns: does one cover all topics of another, and do two have a topic in common?
//!
//! Both questions are about all possible topics, so they are decided on the patterns themselves. A pattern is a small automaton
//! that reads a topic segment by segment; all segments that no pattern names are equivalent. The results are exact, with one
//! exception: if [`covers`] would have to visit too many states, it returns false. Then access may be denied that the rules
//! allow, but never the reverse.
//!
//! Topics that begin with `dlq.` are matched only by patterns that begin with `dlq.`. So patterns are of two kinds, and patterns
//! of different kinds have no topic in common, with one exception: the topic `dlq`, which `dlq.**` matches too.

use prombus_protocol::{DEAD_LETTER_PREFIX, Pattern};
use std::collections::HashSet;

const DEAD_LETTER: &str = "dlq";

/// Maximum number of states that [`covers`] visits. Ordinary patterns need a few dozen; in patterns like `**.a.*.*.*.*` each
/// further `*` doubles the number.
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
        // A pattern with a wildcard always matches topics of its own kind.
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Whether some topic can match both.
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

/// The part after `dlq.`; `None` for other patterns.
fn dead_letters(pattern: &Pattern) -> Option<&str> {
    pattern.as_str().strip_prefix(DEAD_LETTER_PREFIX)
}

/// The topics on which two patterns are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All topics that do not begin with `dlq.`.
    Events,
    /// The part after `dlq.` of all other topics.
    DeadLetters,
}

/// How much of a topic was read. A topic has at least one segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Read {
    Nothing,
    /// The topic `dlq`, among [`Kind::Events`]: no segment may follow, because topics of this kind do not begin with `dlq.`.
    All,
    /// At least one segment. More may follow.
    Some,
}

impl Read {
    /// The state after one more segment. `None` means any segment that no pattern names.
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

/// A pattern's segments. The state of its automaton is the index of the segment that it is at; at the end, the number of
/// segments.
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
        // Several `**` in a row are the same as one.
        segments.dedup_by(|a, b| *a == Segment::Any && *b == Segment::Any);
        Self(segments)
    }

    /// Whether the pattern also matches no segments at all: `dlq.**` matches the topic `dlq`.
    fn matches_nothing(&self) -> bool {
        self.0 == [Segment::Any]
    }

    fn is_end(&self, at: usize) -> bool {
        at == self.0.len() || (self.0[at] == Segment::Any && at + 1 == self.0.len())
    }

    /// The state after the segment at `at` consumed a segment of the topic.
    fn after(&self, at: usize) -> usize {
        if self.0[at] == Segment::Any { at } else { at + 1 }
    }

    /// Searches for a topic that both match: a path through both automata at once.
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
            // If both accept any segment, one that no pattern names represents all.
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

    /// Whether this pattern matches every topic that `inner` matches. Searches for a counterexample: a path to the end of
    /// `inner`, after which none of the states that this pattern can be in is an end.
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
                    // Every name in this pattern, and one name that no pattern has, which represents all others.
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

/// A set of states of a pattern's automaton: a bit for each segment, and the end. A pattern has at most 128 segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Positions {
    /// The bits of the segments.
    at: u128,
    /// Whether the end of the pattern is in the set.
    has_end: bool,
}

/// Which segments of a pattern accept which names.
struct Table<'a> {
    /// Each name of the pattern, with the segments that accept it, including `*` but not `**`.
    names: Vec<(&'a str, u128)>,
    /// The segments that are `*`.
    one: u128,
    /// The segments that are `**`.
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
        self.skip_any(1, false)
    }

    /// The segments that accept a name, except `**`.
    fn takes(&self, name: &str) -> u128 {
        self.names.iter().find(|(known, _)| *known == name).map_or(self.one, |(_, takes)| *takes)
    }

    /// All states after one more segment of the topic. `takes` are the segments of the pattern that accept it.
    fn step(&self, from: Positions, takes: u128) -> Positions {
        let moved = from.at & takes;
        self.skip_any(((moved << 1) & self.all) | (from.at & self.any), moved & self.last != 0)
    }

    /// Whether the pattern matches however the topic continues, because a `**` at its end was reached.
    fn ends_always(&self, positions: Positions) -> bool {
        positions.at & self.any & self.last != 0
    }

    /// Adds the states after each `**`, which may match no segment. There are never two `**` in a row.
    fn skip_any(&self, at: u128, has_end: bool) -> Positions {
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

    /// Compares the results with matching all short topics. The topics must be long enough, and contain a name that no pattern
    /// has, so that there is an example for every difference.
    fn agrees_with_matching_all_topics(patterns: &[String], topics: &[String]) {
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
    fn cover_and_overlap_agree_with_matching_all_topics() {
        let mut patterns = all_of(&["a", "b", "*", "**"], 3);
        patterns.extend(patterns.clone().iter().map(|text| format!("dlq.{text}")));
        patterns.push("dlq".to_owned());
        let mut topics = all_of(&["a", "b", "c"], 6);
        topics.extend(topics.clone().iter().map(|text| format!("dlq.{text}")));
        topics.push("dlq".to_owned());
        agrees_with_matching_all_topics(&patterns, &topics);
    }

    #[test]
    fn dead_letters_in_the_middle_of_patterns_are_exact_too() {
        let patterns = all_of(&["a", "dlq", "*", "**"], 3);
        agrees_with_matching_all_topics(&patterns, &all_of(&["a", "c", "dlq"], 6));
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
    fn expensive_patterns_are_refused_in_bounded_time() {
        // Remembering which of the last 60 segments were `a` takes 2^60 states.
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
