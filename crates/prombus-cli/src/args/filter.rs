//! Event filters of commands: `key=…`, `tag=…`, `header.NAME=…`.

use clap::Args as ClapArgs;
use prombus_client::EventRecord;
use prombus_protocol::Filter;
use std::str::FromStr;

/// Which events a command uses.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct FilterArgs {
    /// Only events that match: key=…, tag=… or header.NAME=…; may be given more than once
    #[arg(long = "filter", value_name = "FILTER")]
    pub filters: Vec<Condition>,
}

/// One condition on an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The event's key equals this text.
    Key(String),
    /// The event has this tag.
    Tag(String),
    /// The event has this header with this value.
    Header(String, String),
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let value = value.to_owned();
        match (name, name.strip_prefix("header.")) {
            _ if !text.contains('=') => Err("expected key=…, tag=… or header.NAME=…".to_owned()),
            ("key", _) => Ok(Self::Key(value)),
            ("tag", _) => Ok(Self::Tag(value)),
            (_, Some(header)) if !header.is_empty() => Ok(Self::Header(header.to_owned(), value)),
            _ => Err(format!("unknown filter {name:?}; expected key, tag or header.NAME")),
        }
    }
}

/// The part of the conditions that a server can check: one key, one tag, and one value per header.
pub fn for_server(conditions: &[Condition]) -> Filter {
    let mut filter = Filter::default();
    for condition in conditions {
        match condition {
            Condition::Key(key) => filter.key = Some(key.clone()),
            Condition::Tag(tag) => filter.tag = Some(tag.clone()),
            // The server's query syntax ends a header name at the first colon.
            Condition::Header(name, _) if name.contains(':') => {}
            Condition::Header(name, value) => {
                filter.header.insert(name.clone(), value.clone());
            }
        }
    }
    filter
}

/// Whether a server can check all conditions: [`for_server`] leaves out none of them.
pub fn is_for_server(conditions: &[Condition]) -> bool {
    let filter = for_server(conditions);
    conditions.iter().all(|condition| match condition {
        Condition::Key(key) => filter.key.as_ref() == Some(key),
        Condition::Tag(tag) => filter.tag.as_ref() == Some(tag),
        Condition::Header(name, value) => filter.header.get(name) == Some(value),
    })
}

/// The conditions as the filter of a group.
///
/// # Errors
/// When there are several conditions on the key, the tag or the same header.
pub fn for_group(conditions: &[Condition]) -> Result<Option<Filter>, String> {
    let mut filter = Filter::default();
    for condition in conditions {
        let (name, before) = match condition {
            Condition::Key(key) => ("key".to_owned(), filter.key.replace(key.clone())),
            Condition::Tag(tag) => ("tag".to_owned(), filter.tag.replace(tag.clone())),
            Condition::Header(name, value) => {
                (format!("header.{name}"), filter.header.insert(name.clone(), value.clone()))
            }
        };
        if before.is_some() {
            return Err(format!("a group's filter can have only one {name}"));
        }
    }
    Ok((!filter.is_empty()).then_some(filter))
}

/// Whether an event meets all conditions.
pub fn matches(conditions: &[Condition], event: &EventRecord) -> bool {
    conditions.iter().all(|condition| match condition {
        Condition::Key(key) => event.key.as_ref() == Some(key),
        Condition::Tag(tag) => event.tags.contains(tag),
        Condition::Header(name, value) => event.headers.get(name) == Some(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_conditions_must_hold() {
        let text = r#"{"id":"0196f1d0-0000-7000-8000-000000000001","ts":5,"topic":"a","key":"k=1","tags":["t"],
            "headers":{"h":"v"},"payload":1}"#;
        let event: EventRecord = serde_json::from_str(text).unwrap();
        let fits = |texts: &[&str]| {
            let conditions: Vec<Condition> = texts.iter().map(|text| text.parse().unwrap()).collect();
            matches(&conditions, &event)
        };
        assert!(fits(&[]) && fits(&["key=k=1"]) && fits(&["tag=t", "header.h=v"]));
        assert!(!fits(&["key=k"]) && !fits(&["tag=t", "tag=u"]) && !fits(&["header.h=w"]));
        let parsed =
            |texts: &[&str]| -> Vec<Condition> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        assert!(is_for_server(&parsed(&["key=a", "tag=b", "header.h=v"])));
        assert!(!is_for_server(&parsed(&["tag=a", "tag=b"])) && !is_for_server(&parsed(&["header.a:b=v"])));
        assert!(for_group(&parsed(&["tag=a", "tag=b"])).is_err() && for_group(&[]) == Ok(None));
        assert_eq!(for_group(&parsed(&["key=a"])).unwrap().unwrap().key.as_deref(), Some("a"));
        for text in ["key", "name=x", "header.=x", "header=x"] {
            assert!(text.parse::<Condition>().is_err(), "{text}");
        }
    }
}
