use crate::fixture;
use prombus_protocol::{GroupName, Pattern, Topic};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Names {
    good: Vec<String>,
    bad: Vec<String>,
    good_groups: Vec<String>,
    bad_groups: Vec<String>,
}

#[derive(Deserialize)]
struct Patterns {
    matches: Vec<Match>,
    bad: Vec<String>,
}

#[derive(Deserialize)]
struct Match {
    pattern: String,
    topic: String,
    matches: bool,
}

#[test]
fn topic_and_group_names_are_checked() {
    let names: Names = fixture("topic-names");
    for name in names.good {
        let topic = Topic::new(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(topic.as_str(), name);
        assert_eq!(Pattern::new(&name).unwrap().as_topic(), Some(topic.clone()));
        assert!(Topic::new(topic.dead_letter()).unwrap().is_dead_letter());
    }
    for name in names.bad {
        assert!(Topic::new(&name).is_err(), "{name}");
    }
    for name in names.good_groups {
        assert_eq!(GroupName::new(&name).unwrap().as_str(), name);
    }
    for name in names.bad_groups {
        assert!(GroupName::new(&name).is_err(), "{name}");
    }
}

#[test]
fn patterns_match_as_the_fixtures_say() {
    let patterns: Patterns = fixture("patterns");
    for Match { pattern, topic, matches } in patterns.matches {
        assert_eq!(Pattern::new(&pattern).unwrap().matches(&topic), matches, "{pattern} on {topic}");
    }
    for pattern in patterns.bad {
        assert!(Pattern::new(&pattern).is_err(), "{pattern}");
    }
}
