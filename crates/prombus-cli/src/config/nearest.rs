//! The known name nearest to one that is not known: what somebody who mistyped it probably meant.

/// The nearest of `known`, if any is near enough to be worth a word. Names are paths with dots: one that only stands in the
/// wrong table counts as near.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.len() / 3).clamp(1, 4);
    known
        .into_iter()
        .map(|candidate| (distance_of_paths(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn distance_of_paths(left: &str, right: &str) -> usize {
    let whole = distance(left, right);
    let last = |path: &str| path.rsplit('.').next().map(str::to_owned).unwrap_or_default();
    let (left, right) = (last(left), last(right));
    // Short names such as `key` say little without their table.
    if left.len() < 5 {
        return whole;
    }
    whole.min(distance(&left, &right) + 1)
}

/// Edits that turn one into the other: a byte more, less, changed, or two neighbours swapped.
fn distance(left: &str, right: &str) -> usize {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for i in 1..=left.len() {
        let mut row = vec![i];
        for j in 1..=right.len() {
            let changed = above[j - 1] + usize::from(left[i - 1] != right[j - 1]);
            let mut best = changed.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("lisetn", "listen"), 1);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn a_typo_finds_its_name_and_nonsense_finds_none() {
        let known = ["listen", "limits", "limits.max_connections", "limits.max_groups", "tls.key"];
        assert_eq!(nearest("lisen", known), Some("listen"));
        assert_eq!(nearest("limit", known), Some("limits"));
        assert_eq!(nearest("limits.max_conections", known), Some("limits.max_connections"));
        assert_eq!(nearest("max_groups", known), Some("limits.max_groups"));
        assert_eq!(nearest("frobnicate", known), None);
        assert_eq!(nearest("x", known), None);
    }
}
