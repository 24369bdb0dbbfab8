//! `/topics`: lists topics, changes their settings, and deletes them. A token sees the topics that it may read; an admin sees
//! all.

use super::ApiError;
use super::answer::{self, Answered, Deleted};
use super::call::Call;
use super::fields::{IgnoredNames, Shape};
use super::json_body::{body_of, options_of};
use super::list_query::{ListQuery, NAMES_AT_ONCE};
use crate::auth::Principal;
use axum::http::{HeaderValue, StatusCode, header};
use prombus::{Backend, ReadError, TopicAdminError, TopicDetails, TopicInfo, TopicOptions, TopicSettings};
use prombus_protocol::Topic;
use serde::Serialize;

/// The fields of [`TopicOptions`]; a test checks that the lists are the same.
const OPTIONS: Shape = Shape::flat(&[
    "retention_days",
    "retention_ms",
    "retention_bytes",
    "compaction",
    "tombstone_ms",
    "snapshot_interval_ms",
    "snapshot_topic",
    "max_attempts",
    "publish_rate",
    "publish_burst",
]);

#[derive(Serialize)]
struct Topics {
    topics: Vec<TopicView>,
    /// Bytes of the whole store, for callers that may see all of it; otherwise bytes of the topics on this page or, on the last
    /// page, on all pages.
    bytes: u64,
    /// The last topic on this page, after which the next page starts; `None` on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Serialize)]
struct TopicView {
    topic: String,
    /// The seq of the oldest stored event; `None` if there is none.
    first_seq: Option<u64>,
    /// The highest seq that was ever assigned.
    last_seq: u64,
    /// The number of stored events.
    count: u64,
    /// The size of the stored events.
    bytes: u64,
    /// The number of groups that read the topic.
    groups: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// The settings that apply to the topic; `None` if they were not requested.
    settings: Option<TopicSettings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// The settings that were set for this topic alone; `None` if they were not requested.
    set: Option<TopicOptions>,
}

impl From<TopicInfo> for TopicView {
    fn from(info: TopicInfo) -> Self {
        Self {
            topic: info.topic.to_string(),
            first_seq: info.first_seq,
            last_seq: info.last_seq,
            count: info.events,
            bytes: info.bytes,
            groups: info.groups,
            settings: None,
            set: None,
        }
    }
}

impl From<TopicDetails> for TopicView {
    fn from(details: TopicDetails) -> Self {
        Self { settings: Some(details.settings), set: Some(details.own), ..Self::from(details.info) }
    }
}

pub(super) async fn topics(call: Call) -> Answered {
    let query = ListQuery::of(&call.query)?;
    let with_settings = call.query.flag("settings")?.unwrap_or(false);
    let backend = &*call.gateway.backend;
    let (names, has_more) = visible_names(backend, &call.principal, &query).await;
    let next = names.last().filter(|_| has_more).map(Topic::to_string);
    let topics = backend.topics_by_name(names).await?.into_iter();
    let topics = topics.map(|it| if with_settings { TopicView::from(it) } else { TopicView::from(it.info) });
    let topics: Vec<TopicView> = topics.collect();
    let bytes = match sees_everything(&call.principal) {
        true => backend.stored_bytes(),
        // Only on the last page: the sum costs as much as a list of all topics.
        false if next.is_none() && query.next.is_some() => {
            readable_bytes(backend, &call.principal, query.prefix).await?
        }
        false => topics.iter().map(|topic| topic.bytes).sum(),
    };
    answer::json(&Topics { topics, bytes, next })
}

/// Whether the caller may see the size of the whole store. Topics that a token may not read must not show in a sum.
fn sees_everything(principal: &Principal) -> bool {
    principal.is_admin() || (principal.may_subscribe("**", None) && principal.may_subscribe("dlq.**", None))
}

/// The size of the topics with this prefix that the caller may read.
async fn readable_bytes(
    backend: &dyn Backend,
    principal: &Principal,
    prefix: &str,
) -> Result<u64, ReadError> {
    let mut bytes = 0;
    let mut after: Option<String> = None;
    loop {
        let mut names = backend.topic_names(prefix, after.as_deref(), NAMES_AT_ONCE);
        let is_last = names.len() < NAMES_AT_ONCE;
        after = names.last().map(Topic::to_string);
        names.retain(|name| principal.may_subscribe(name.as_str(), None));
        bytes += backend.topics_by_name(names).await?.iter().map(|it| it.info.bytes).sum::<u64>();
        if is_last {
            return Ok(bytes);
        }
        // There may be very many topics.
        tokio::task::yield_now().await;
    }
}

/// The names on a page, and whether another page follows.
async fn visible_names(
    backend: &dyn Backend,
    principal: &Principal,
    query: &ListQuery<'_>,
) -> (Vec<Topic>, bool) {
    let mut names: Vec<Topic> = Vec::new();
    let mut after = query.next.map(str::to_owned);
    loop {
        let part = backend.topic_names(query.prefix, after.as_deref(), NAMES_AT_ONCE);
        let is_last = part.len() < NAMES_AT_ONCE;
        after = part.last().map(Topic::to_string);
        names.extend(
            part.into_iter()
                .filter(|name| principal.is_admin() || principal.may_subscribe(name.as_str(), None)),
        );
        let has_more = names.len() > query.limit;
        if is_last || has_more {
            names.truncate(query.limit);
            return (names, has_more);
        }
        // The loop can be long for a token that may read few of very many topics.
        tokio::task::yield_now().await;
    }
}

pub(super) async fn topic(call: Call) -> Answered {
    let topic = call.topic()?;
    if !call.principal.is_admin() {
        call.check_may_read(topic.as_str())?;
    }
    show(&*call.gateway.backend, &topic, &IgnoredNames::default()).await
}

async fn show(backend: &dyn Backend, topic: &Topic, ignored: &IgnoredNames) -> Answered {
    match backend.topic_details(topic).await? {
        Some(details) => answer::done(&TopicView::from(details), ignored),
        None => Err(TopicAdminError::UnknownTopic(topic.to_string()).into()),
    }
}

/// `PUT /topics/{topic}`: replaces the settings of a topic. A topic that does not exist is created.
pub(super) async fn set(mut call: Call) -> Answered {
    let topic = call.topic()?;
    let body = body_of(&mut call).await?;
    let options: TopicOptions = options_of(&body, &OPTIONS, &mut call.ignored)?;
    let is_new = call.gateway.backend.set_topic(&topic, options).await?;
    let mut response = show(&*call.gateway.backend, &topic, &call.ignored).await?;
    if is_new {
        *response.status_mut() = StatusCode::CREATED;
        // A topic's name needs no escapes.
        let place = HeaderValue::from_str(&format!("/topics/{topic}")).map_err(ApiError::internal)?;
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// `DELETE /topics/{topic}`.
pub(super) async fn delete(call: Call) -> Answered {
    call.gateway.backend.delete_topic(&call.topic()?).await?;
    answer::done(&Deleted { deleted: true }, &call.ignored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_names_are_the_fields_of_topic_options() {
        let options = TopicOptions {
            retention_days: Some(1.0),
            retention_ms: Some(1),
            retention_bytes: Some(1),
            compaction: Some(true),
            tombstone_ms: Some(1),
            snapshot_interval_ms: Some(1),
            snapshot_topic: Some("t".to_owned()),
            max_attempts: Some(1),
            publish_rate: Some(1.0),
            publish_burst: Some(1.0),
        };
        let json = serde_json::to_value(options).expect("JSON");
        let mut names: Vec<&str> = json.as_object().expect("an object").keys().map(String::as_str).collect();
        let mut known = OPTIONS.names.to_vec();
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
    }
}
