//! `GET /topics`: which topics there are. A token sees those that it may read; an admin sees all.

use super::call::Call;
use super::{Answered, ApiError, answer};
use axum::http::StatusCode;
use prombus::TopicInfo;
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
    groups: usize,
}

impl From<TopicInfo> for TopicView {
    fn from(info: TopicInfo) -> Self {
        Self {
            topic: info.topic.to_string(),
            first_seq: info.first_seq,
            last_seq: info.last_seq,
            count: info.first_seq.map_or(0, |first_seq| (info.last_seq + 1).saturating_sub(first_seq)),
            groups: info.groups,
        }
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
    let mut topics = call.gateway.backend.topics().await?.into_iter();
    match topics.find(|info| info.topic == topic) {
        Some(info) => answer::json(&TopicView::from(info)),
        None => {
            let message = format!("there is no topic {:?}", topic.as_str());
            Err(ApiError::bad_request(message).with_status(StatusCode::NOT_FOUND))
        }
    }
}
