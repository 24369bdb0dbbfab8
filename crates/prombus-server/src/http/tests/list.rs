//! Tests of the pages of `/topics` and `/groups`.

use super::{Rig, request};
use axum::body::Body;
use serde_json::{Value, json};

fn names(list: &Value, field: &str, name: &str) -> Vec<String> {
    let items = list[field].as_array().expect("a list");
    items.iter().map(|item| item[name].as_str().expect("a name").to_owned()).collect()
}

/// All pages, one after another.
async fn all_pages(rig: &Rig, path: &str, field: &str, name: &str) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    let mut next = String::new();
    loop {
        let page = rig.get(&format!("{path}{next}")).await.ok();
        pages.push(names(&page, field, name));
        match page.get("next") {
            Some(place) => {
                let place = place.as_str().expect("a text").replace('*', "%2A").replace('/', "%2F");
                next = format!("&next={place}");
            }
            None => return pages,
        }
        assert!(pages.len() < 100, "{path} never ends");
    }
}

#[tokio::test]
async fn topics_come_in_pages_by_name() {
    let rig = Rig::open();
    let mut batch = rig.bus.batch();
    for number in (0..25).rev() {
        batch
            .push(format!("a.{number:02}").as_str(), &1, &prombus::PublishOptions::default())
            .expect("an event");
    }
    for name in ["b", "a", "a-z", "ab.1"] {
        batch.push(name, &1, &prombus::PublishOptions::default()).expect("an event");
    }
    rig.bus.publish_batch(batch).await.expect("published");
    let pages = all_pages(&rig, "/topics?limit=10", "topics", "topic").await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 9]);
    let listed = pages.concat();
    assert!(listed.is_sorted(), "{listed:?}");
    assert_eq!(listed.len(), 29);
    let pages = all_pages(&rig, "/topics?limit=5&prefix=a.", "topics", "topic").await;
    assert_eq!(pages.len(), 5, "no empty page follows a full last page: {pages:?}");
    assert_eq!(pages.concat(), (0..25).map(|number| format!("a.{number:02}")).collect::<Vec<_>>());
    assert_eq!(rig.get("/topics?prefix=none").await.ok()["topics"], json!([]));
    // `next` may name a topic that does not exist any more.
    let page = rig.get("/topics?next=a.055&limit=2").await.ok();
    assert_eq!(names(&page, "topics", "topic"), ["a.06", "a.07"]);
    for bad in ["limit=0", "limit=10001", "limit=x", "limit=1&limit=2", "settings=2"] {
        rig.get(&format!("/topics?{bad}")).await.error(400, "bad_request");
    }
}

#[tokio::test]
async fn without_parameters_a_page_has_a_thousand_topics_and_next() {
    let rig = Rig::open();
    let mut batch = rig.bus.batch();
    for number in 0..1_001 {
        batch
            .push(format!("t{number:04}").as_str(), &1, &prombus::PublishOptions::default())
            .expect("an event");
    }
    rig.bus.publish_batch(batch).await.expect("published");
    let page = rig.get("/topics").await.ok();
    assert_eq!((names(&page, "topics", "topic").len(), &page["next"]), (1_000, &json!("t0999")));
    assert!(page["bytes"].as_u64().expect("a number") > 0);
    assert_eq!(
        page["topics"][0],
        json!({
            "topic": "t0000", "first_seq": 1, "last_seq": 1, "count": 1, "groups": 0,
            "bytes": page["topics"][0]["bytes"],
        })
    );
    let last = rig.get("/topics?next=t0999&settings=1").await.ok();
    assert_eq!(names(&last, "topics", "topic"), ["t1000"]);
    assert!(last.get("next").is_none());
    assert_eq!(last["topics"][0]["settings"]["compaction"], json!(false));
    assert_eq!(last["topics"][0]["set"], json!({}));
}

#[tokio::test]
async fn a_token_sees_pages_of_the_topics_that_it_may_read() {
    let rig = Rig::with_tokens(&[("few", &["subscribe:mine.*"])]);
    let mut batch = rig.bus.batch();
    for number in 0..2_500 {
        let name = if number % 500 == 0 { format!("mine.{number:04}") } else { format!("m.{number:04}") };
        batch.push(name.as_str(), &1, &prombus::PublishOptions::default()).expect("an event");
    }
    rig.bus.publish_batch(batch).await.expect("published");
    let list = |path: &'static str| {
        let request = request("GET", path).header("authorization", "Bearer few");
        rig.send(request.body(Body::empty()).expect("a request"))
    };
    let page = list("/topics?limit=3").await.ok();
    assert_eq!(names(&page, "topics", "topic"), ["mine.0000", "mine.0500", "mine.1000"]);
    assert_eq!(page["next"], json!("mine.1000"));
    let page = list("/topics?limit=3&next=mine.1000").await.ok();
    assert_eq!(names(&page, "topics", "topic"), ["mine.1500", "mine.2000"]);
    assert!(page.get("next").is_none());
}

#[tokio::test]
async fn the_last_page_has_the_bytes_of_all_topics_that_the_token_may_read() {
    let rig = Rig::with_tokens(&[("few", &["subscribe:mine.**"])]);
    let mut batch = rig.bus.batch();
    for number in 0..1_100 {
        for (name, size) in [("mine.a", 10), ("mine.b", 20), ("other", 40)] {
            let payload = "x".repeat(size);
            let name = format!("{name}.{number:04}");
            batch.push(name.as_str(), &payload, &prombus::PublishOptions::default()).expect("an event");
        }
    }
    rig.bus.publish_batch(batch).await.expect("published");
    let page = async |path: &str| {
        let request = request("GET", path).header("authorization", "Bearer few");
        rig.send(request.body(Body::empty()).expect("a request")).await.ok()
    };
    for prefix in ["", "mine.b.", "mine.b.10"] {
        let whole = page(&format!("/topics?limit=10000&prefix={prefix}")).await;
        let sizes = whole["topics"].as_array().expect("a list").iter().map(|it| it["bytes"].as_u64());
        assert_eq!(whole["bytes"].as_u64(), sizes.sum::<Option<u64>>());
        let first = page(&format!("/topics?limit=1&prefix={prefix}")).await;
        assert_eq!(first["bytes"], first["topics"][0]["bytes"], "{prefix}");
        let last = page(&format!("/topics?limit=10&prefix={prefix}&next=mine.b.1098")).await;
        assert_eq!((names(&last, "topics", "topic").len(), &last["bytes"]), (1, &whole["bytes"]), "{prefix}");
    }
}

#[tokio::test]
async fn a_token_sees_pages_of_the_groups_that_it_may_join() {
    let rig = Rig::with_tokens(&[
        ("last", &["subscribe:z"]),
        ("two", &["subscribe:a.0000", "subscribe:z"]),
        ("admin", &["admin"]),
    ]);
    for number in 0..1_100 {
        drop(rig.bus.subscribe(format!("a.{number:04}").as_str(), "g").await.expect("joined"));
    }
    drop(rig.bus.subscribe("z", "both").topics(["a.0001"]).await.expect("joined"));
    drop(rig.bus.subscribe("z", "g").await.expect("joined"));
    let list = async |path: &str, token: &str| {
        let request = request("GET", path).header("authorization", format!("Bearer {token}"));
        let page = rig.send(request.body(Body::empty()).expect("a request")).await.ok();
        let topics = names(&page, "groups", "topic").into_iter().zip(names(&page, "groups", "group"));
        let topics: Vec<_> = topics.map(|(topic, group)| format!("{topic}/{group}")).collect();
        (topics, page.get("next").map(|next| next.as_str().expect("a place").to_owned()))
    };
    let page = |names: &[&str], next: Option<&str>| {
        (names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), next.map(str::to_owned))
    };
    assert_eq!(list("/groups?limit=1", "last").await, page(&["z/g"], None));
    assert_eq!(list("/groups?limit=1", "two").await, page(&["a.0000/g"], Some("a.0000/g")));
    assert_eq!(list("/groups?limit=1&next=a.0000%2Fg", "two").await, page(&["z/g"], None));
    assert_eq!(list("/groups?limit=2", "two").await, page(&["a.0000/g", "z/g"], None));
    let mut listed = Vec::new();
    let mut path = "/groups?limit=400".to_owned();
    loop {
        let (names, next) = list(&path, "admin").await;
        listed.push(names.len());
        let Some(next) = next else { break };
        path = format!("/groups?limit=400&next={}", next.replace('/', "%2F"));
    }
    assert_eq!(listed, [400, 400, 302]);
}

#[tokio::test]
async fn groups_come_in_pages_by_subscription_and_name() {
    let rig = Rig::open();
    let mut made = Vec::new();
    for topic in ["orders", "orders.new", "orders.**", "z"] {
        for group in ["a", "b", "c:/x", "d"] {
            let path = format!("/groups/{}/{}", topic.replace('*', "%2A"), group.replace('/', "%2F"));
            let request = request("PUT", &path).body(Body::from("{}")).expect("a request");
            if rig.send(request).await.status == 200 {
                made.push((topic.to_owned(), group.to_owned()));
            }
        }
    }
    made.sort();
    assert!(made.len() >= 12, "{made:?}");
    let pages = all_pages(&rig, "/groups?limit=3", "groups", "group").await;
    assert_eq!(pages.concat(), made.iter().map(|(_, group)| group.clone()).collect::<Vec<_>>());
    assert!(pages[..pages.len() - 1].iter().all(|page| page.len() == 3), "{pages:?}");
    let of = |wanted: &dyn Fn(&str) -> bool| made.iter().filter(|(topic, _)| wanted(topic)).count();
    let pages = all_pages(&rig, "/groups?limit=2&prefix=orders.", "groups", "topic").await.concat();
    assert_eq!(pages.len(), of(&|topic| topic.starts_with("orders.")));
    let pages = all_pages(&rig, "/groups?limit=2&topic=orders", "groups", "topic").await.concat();
    assert_eq!(pages.len(), of(&|topic| topic == "orders"));
    assert!(pages.iter().all(|topic| topic == "orders"), "{pages:?}");
    assert_eq!(rig.get("/groups?topic=z&prefix=orders").await.ok()["groups"], json!([]));
    rig.get("/groups?next=nonsense").await.error(400, "bad_request");
}
