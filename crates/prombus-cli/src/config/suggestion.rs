//! Suggests the known name that is nearest to a mistyped one.

use strsim::osa_distance;

/// The nearest of `known`; `None` if no name is near enough to be suggested. Names are dotted paths, and a key in the wrong table
/// counts as near.
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
    let whole = osa_distance(left, right);
    let (left, right) = (last_part(left), last_part(right));
    // Short names such as `key` occur in several tables, so only whole paths are compared.
    if left.len() < 5 {
        return whole;
    }
    whole.min(osa_distance(left, right) + 1)
}

fn last_part(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_the_intended_name_and_nonsense_finds_none() {
        let known = ["listen", "limits", "limits.max_connections", "limits.max_groups", "tls.key"];
        assert_eq!(nearest("lisen", known), Some("listen"));
        assert_eq!(nearest("lisetn", known), Some("listen"));
        assert_eq!(nearest("limit", known), Some("limits"));
        assert_eq!(nearest("limits.max_conections", known), Some("limits.max_connections"));
        assert_eq!(nearest("max_groups", known), Some("limits.max_groups"));
        assert_eq!(nearest("frobnicate", known), None);
        assert_eq!(nearest("x", known), None);
    }
}
