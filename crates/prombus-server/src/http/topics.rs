//! `/topics`: which topics there are, what is set about them, deletion. A token sees those that it may read; an admin sees all.

use super::admin::{Deleted, body_of, object_of};
use super::call::Call;
use super::{Answered, ApiError, answer};
use axum::http::{HeaderValue, StatusCode, header};
use prombus::{Backend, TopicAdminError, TopicDetails, TopicInfo, TopicOptions, TopicSettings};
use prombus_protocol::{ErrorCode, Topic};
use serde::Serialize;

#[derive(Serialize)]
struct Topics {
    topics: Vec<TopicView>,
    bytes: u64,
}

#[derive(Serialize)]
struct TopicView {
    topic: String,
    first_seq: Option<u64>,
    last_seq: u64,
    count: u64,
    bytes: u64,
    groups: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<TopicSettings>,
    #[serde(skip_serializing_if = "Option::is_none")]
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
    let mut topics = call.gateway.backend.topics().await?;
    let principal = &call.principal;
    topics.retain(|info| principal.is_admin() || principal.may_subscribe(info.topic.as_str(), None));
    topics.sort_by(|one, other| one.topic.as_str().cmp(other.topic.as_str()));
    let topics = topics.into_iter().map(TopicView::from).collect();
    answer::json(&Topics { topics, bytes: call.gateway.backend.figures().store.bytes })
}

pub(super) async fn topic(call: Call) -> Answered {
    let topic = call.topic()?;
    if !call.principal.is_admin() {
        call.check_may_read(topic.as_str())?;
    }
    show(&*call.gateway.backend, &topic).await
}

async fn show(backend: &dyn Backend, topic: &Topic) -> Answered {
    match backend.topic_details(topic).await? {
        Some(details) => answer::json(&TopicView::from(details)),
        None => Err(TopicAdminError::UnknownTopic(topic.to_string()).into()),
    }
}

/// `PUT /topics/{topic}`: sets something about a topic, in place of what was set before. A topic that does not exist is made.
pub(super) async fn set(mut call: Call) -> Answered {
    let topic = call.topic()?;
    let body = body_of(&mut call).await?;
    let options: TopicOptions = object_of(&body)?;
    let is_new = call.gateway.backend.set_topic(&topic, options).await?;
    let mut response = show(&*call.gateway.backend, &topic).await?;
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
    answer::json(&Deleted { deleted: true })
}

impl From<TopicAdminError> for ApiError {
    fn from(error: TopicAdminError) -> Self {
        match error {
            TopicAdminError::UnknownTopic(_) => Self::not_found(error),
            TopicAdminError::Setting(_) => Self::bad_request(error),
            TopicAdminError::TooManyTopics(_) => Self::new(ErrorCode::LimitReached, error),
            TopicAdminError::StorageFull => Self::new(ErrorCode::StorageFull, error),
            TopicAdminError::Unavailable(_) => Self::new(ErrorCode::Unavailable, error),
            error => Self::internal(error),
        }
    }
}
