//! Bad input: each case gets a typed error that says what is wrong and what is allowed, and has no other effect.

use crate::folder::Folder;
use prombus::engine::LogEngineOptions;
use prombus::{
    Bus, CursorPosition, Filter, GroupError, Limits, OpenError, PublishError, PublishOptions, Start,
    SubscribeOptions, Topic, Uuid,
};
use std::time::Duration;

/// Checks that the message contains all these parts.
#[track_caller]
fn says(error: &dyn std::error::Error, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} does not contain {part:?}");
    }
}

const ALLOWED: &str = "A-Z a-z 0-9 . _ : -";

fn bad_topics() -> Vec<(String, Vec<&'static str>)> {
    let long = "a".repeat(256);
    let bad: Vec<(&str, Vec<&'static str>)> = vec![
        ("", vec!["empty", "1 to 255", ALLOWED]),
        ("a b", vec!["' '", "byte 1", ALLOWED]),
        ("a/b", vec!["'/'", ALLOWED]),
        ("é", vec!["'é'", "byte 0", ALLOWED]),
        ("a\n", vec!["'\\n'", ALLOWED]),
        ("a\0b", vec!["\\0", ALLOWED]),
        (".a", vec!["empty segment", "byte 0"]),
        ("a.", vec!["empty segment", "byte 2"]),
        ("a..b", vec!["empty segment", "byte 2"]),
        (&long, vec!["256 bytes", "at most 255"]),
    ];
    bad.into_iter().map(|(name, parts)| (name.to_owned(), parts)).collect()
}

#[tokio::test]
async fn bad_topic_names_are_refused_by_name() {
    let bus = Bus::memory();
    let mut all = bad_topics();
    all.push(("a.*".to_owned(), vec!["\"a.*\"", "wildcard", "only patterns"]));
    for (name, parts) in all {
        let error = bus.publish(name.as_str(), &1).await.expect_err(&name);
        assert!(matches!(error, PublishError::Topic(_)), "{error:?}");
        says(&error, &parts);
        let error = bus.publish_json(&name, "1").await.expect_err(&name);
        assert!(matches!(error, PublishError::Topic(_)), "{error:?}");
    }
    for good in ["a", "A-Z_0:9.b", &"a".repeat(255), &format!("dlq.{}", "a".repeat(255))] {
        bus.publish(good, &1).await.unwrap_or_else(|error| panic!("{good}: {error}"));
    }
    assert_eq!(bus.topics().await.expect("lists topics").len(), 4, "a bad name creates no topic");
}

#[tokio::test]
async fn bad_patterns_are_refused_by_name() {
    let bus = Bus::memory();
    let mut all = bad_topics();
    for name in ["a*", "a.*b", "***", "a.**b", "*a.b"] {
        all.push((name.to_owned(), vec!["wildcard", "one whole segment", "any number of segments"]));
    }
    for (name, parts) in &all {
        let error = bus.subscribe(name.clone(), "g").await.expect_err(name);
        assert!(matches!(error, GroupError::Topic(_)), "{error:?}");
        says(&error, parts);
        let error = bus.subscribe("good", "g").topics([name.clone()]).await.expect_err(name);
        assert!(matches!(error, GroupError::Option(_)), "{error:?}");
        says(&error, &["topics"]);
        says(&error, parts);
    }
    assert!(bus.groups().await.expect("lists groups").is_empty());
    assert!(bus.topics().await.expect("lists topics").is_empty());
}

#[tokio::test]
async fn bad_group_names_are_refused_by_name() {
    let bus = Bus::memory();
    let long = "g".repeat(256);
    for (name, parts) in [
        ("", vec!["empty", "1 to 255", ALLOWED]),
        ("a b", vec!["' '", "byte 1", ALLOWED]),
        ("g*", vec!["'*'", ALLOWED]),
        ("é", vec!["'é'", ALLOWED]),
        (&long, vec!["256 bytes", "at most 255"]),
        (".", vec!["cannot be named", "\".\""]),
        ("..", vec!["cannot be named", "\"..\""]),
    ] {
        let error = bus.subscribe("orders", name).await.expect_err(name);
        assert!(matches!(error, GroupError::Group(_)), "{error:?}");
        says(&error, &parts);
    }
    for good in ["g", "a..b", "...", &"g".repeat(255)] {
        bus.subscribe("orders", good).await.unwrap_or_else(|error| panic!("{good}: {error}"));
    }
}

#[tokio::test]
async fn subscribe_options_out_of_range_are_refused() {
    let bus = Bus::memory();
    let group = || bus.subscribe("orders", "g");
    let ms = Duration::from_millis;
    for (subscribe, parts) in [
        (group().batch_size(0), ["batchSize", "0", "from 1 to 10000"]),
        (group().batch_size(10_001), ["batchSize", "10001", "from 1 to 10000"]),
        (group().max_in_flight(0), ["maxInFlight", "0", "from 1 to 100000"]),
        (group().max_in_flight(u32::MAX), ["maxInFlight", "4294967295", "from 1 to 100000"]),
        (group().ack_timeout(ms(0)), ["ackTimeoutMs", "0", "from 1 to 86400000"]),
        (group().ack_timeout(ms(86_400_001)), ["ackTimeoutMs", "86400001", "from 1 to 86400000"]),
        (group().ack_timeout(Duration::MAX), ["ackTimeoutMs", "", "from 1 to 86400000"]),
        (group().max_attempts(0), ["maxAttempts", "0", "from 1 to 1000"]),
        (group().max_attempts(1_001), ["maxAttempts", "1001", "from 1 to 1000"]),
        (group().max_unsettled(0), ["maxUnsettled", "0", "from 1 to 1000000"]),
        (group().max_unsettled(1_000_001), ["maxUnsettled", "1000001", "from 1 to 1000000"]),
        (group().from(Start::Ts(-1)), ["ts", "-1", "from 0 to"]),
        (group().from(Start::Ts(i64::MAX)), ["ts", "9223372036854775807", "from 0 to"]),
        (group().topics(vec!["t"; 101]), ["topics", "101 items", "at most 100"]),
        (group().key(""), ["filter.key", "0 bytes", "1 to 1024"]),
        (group().tag("x".repeat(257)), ["filter.tag", "257 bytes", "1 to 256"]),
        (group().header("h", "x".repeat(4_097)), ["filter.header", "4097 bytes", "0 to 4096"]),
    ] {
        let error = subscribe.await.expect_err(parts[0]);
        assert!(matches!(error, GroupError::Option(_)), "{error:?}");
        says(&error, &parts);
    }
    assert!(bus.groups().await.expect("lists groups").is_empty());
    let most = group().batch_size(10_000).max_in_flight(100_000).ack_timeout(ms(86_400_000));
    most.max_attempts(1_000).max_unsettled(1_000_000).await.expect("the most is fine");
    bus.subscribe("orders", "least")
        .batch_size(1)
        .max_in_flight(1)
        .ack_timeout(ms(1))
        .max_attempts(1)
        .max_unsettled(1)
        .await
        .expect("the least is fine");
}

#[test]
fn subscribe_options_as_json_are_refused_by_field() {
    for (json, parts) in [
        (r#"{"batchSize": -1}"#, ["batchSize", "-1", "from 1 to 10000"]),
        (r#"{"batchSize": 1.5}"#, ["batchSize", "1.5", "whole number"]),
        (r#"{"maxInFlight": -1000}"#, ["maxInFlight", "-1000", "from 1 to 100000"]),
        (r#"{"maxInFlight": 1e30}"#, ["maxInFlight", "1e30", "from 1 to 100000"]),
        (r#"{"ackTimeoutMs": -30000}"#, ["ackTimeoutMs", "-30000", "from 1 to 86400000"]),
        (r#"{"ackTimeoutMs": "30"}"#, ["ackTimeoutMs", "\"30\"", "whole number"]),
        (r#"{"maxAttempts": 0}"#, ["maxAttempts", "0", "from 1 to 1000"]),
        (r#"{"maxUnsettled": 99999999999999999999}"#, ["maxUnsettled", "1e20", "from 1 to 1000000"]),
        (r#"{"from": "now"}"#, ["from", "\"now\"", "\"latest\", \"earliest\", \"ts\" or \"afterId\""]),
        (r#"{"from": "ts"}"#, ["\"ts\"", "missing", "\"from\": \"ts\""]),
        (r#"{"from": "ts", "ts": -5}"#, ["\"ts\"", "-5", "from 0 to"]),
        (r#"{"from": "afterId"}"#, ["afterId", "missing", "needs it"]),
        (r#"{"from": "afterId", "afterId": "x"}"#, ["afterId", "not a UUID", "\"x\""]),
        (r#"{"topics": "a"}"#, ["topics", "\"a\"", "a list"]),
        (r#"{"topics": ["a b"]}"#, ["topics", "' '", ALLOWED]),
        (r#"{"manualAck": "yes"}"#, ["manualAck", "\"yes\"", "true or false"]),
        (r#"{"filter": {"color": "red"}}"#, ["filter", "\"color\"", "key, tag and header"]),
        (r#"[]"#, ["opts", "a list", "an object"]),
        (r#"{"#, ["cannot be read", "", ""]),
    ] {
        let error = SubscribeOptions::from_json(json).expect_err(json);
        says(&error, &parts);
    }
}

#[tokio::test]
async fn payloads_that_are_not_json_are_refused_with_the_position() {
    let bus = Bus::memory();
    for (json, parts) in [
        (&b""[..], ["payload", "empty"]),
        (b"  \n", ["payload", "empty"]),
        (b"{\"a\":}", ["not JSON", "byte 5"]),
        (b"{\"a\":1", ["not JSON", "byte"]),
        (b"nul", ["not JSON", "byte"]),
        (b"1 2", ["not JSON", "byte 2"]),
        (b"'a'", ["not JSON", "byte 0"]),
        (b"NaN", ["not JSON", "byte 0"]),
        (b"\"a\tb\"", ["not JSON", "byte 2"]),
        (b"[01]", ["not JSON", "byte"]),
        (b"\"\xff\"", ["not UTF-8", "byte 1"]),
    ] {
        let error = bus.publish_json("orders", json).await.expect_err("not JSON");
        assert!(matches!(error, PublishError::Payload(_)), "{error:?}");
        says(&error, &parts);
    }
    let error = bus.publish("orders", &std::collections::BTreeMap::from([((1, 2), 3)])).await;
    let error = error.expect_err("a map whose keys are not strings");
    assert!(matches!(error, PublishError::Serialize(_)), "{error:?}");
    assert!(bus.topics().await.expect("lists topics").is_empty());
}

#[tokio::test]
async fn payloads_over_the_limit_are_refused_with_the_limit() {
    for (limit, bus) in
        [(1 << 20, Bus::memory()), (1_000, Bus::builder().max_payload_bytes(1_000).memory().expect("opens"))]
    {
        let fitting = format!("\"{}\"", "x".repeat(limit - 2));
        bus.publish_json("orders", fitting.clone()).await.expect("exactly at the limit is fine");
        bus.publish("orders", &fitting[1..fitting.len() - 1]).await.expect("exactly at the limit is fine");
        let over = format!("\"{}\"", "x".repeat(limit - 1));
        let error = bus.publish_json("orders", over.clone()).await.expect_err("too large");
        assert_eq!(error, PublishError::TooLarge { bytes: limit + 1, limit_bytes: limit });
        says(&error, &[&(limit + 1).to_string(), &limit.to_string(), "at most"]);
        let error = bus.publish("orders", &over[1..over.len() - 1]).await.expect_err("too large");
        assert_eq!(error, PublishError::TooLarge { bytes: limit + 1, limit_bytes: limit });
        let mut batch = bus.batch();
        let topic = Topic::new("orders").expect("a good name");
        batch.push_json(topic.clone(), b"1", &PublishOptions::default()).expect("a good event");
        batch.push_json(topic, over.as_bytes(), &PublishOptions::default()).expect_err("too large");
        assert_eq!(bus.publish_batch(batch).await.expect("publishes").len(), 1);
        assert_eq!(bus.topics().await.expect("lists topics")[0].last_seq, 3);
    }
}

#[tokio::test]
async fn payloads_nested_deeper_than_128_are_refused() {
    let bus = Bus::memory();
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let objects = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    bus.publish_json("orders", nested(128)).await.expect("128 is fine");
    bus.publish_json("orders", objects(128)).await.expect("128 is fine");
    for json in [nested(129), objects(129), nested(100_000)] {
        let error = bus.publish_json("orders", json).await.expect_err("too deep");
        assert!(matches!(error, PublishError::Payload(_)), "{error:?}");
        says(&error, &["nested deeper than 128", "byte"]);
    }
    // It is delivered, and can be given up, like any other event.
    let mut orders = bus.subscribe("orders", "g").from_earliest().max_attempts(1).await.expect("subscribes");
    let delivery = orders.next().await.expect("an event").expect("a delivery");
    assert_eq!(delivery.payload(), nested(128));
    assert_eq!(delivery.record().expect("a record").payload.get(), nested(128));
    delivery.nack("boom").await.expect("nacks");
    let mut letters = bus.subscribe("dlq.orders", "g").from_earliest().await.expect("subscribes");
    let letter = letters.next().await.expect("an event").expect("a delivery");
    let letter = letter.json::<prombus::DeadLetter>().expect("a dead letter");
    assert_eq!(letter.original.payload.get(), nested(128));
}

#[tokio::test]
async fn a_payload_that_may_be_published_can_be_read_as_a_value() {
    let bus = Bus::memory();
    let nested = format!("{}1{}", "[".repeat(128), "]".repeat(128));
    bus.publish_json("orders", nested).await.expect("128 is fine");
    let mut orders = bus.subscribe("orders", "g").from_earliest().await.expect("subscribes");
    let delivery = orders.next().await.expect("an event").expect("a delivery");
    delivery.json::<serde_json::Value>().expect("a published payload can be read");
}

#[tokio::test]
async fn publish_options_out_of_range_are_refused() {
    let bus = Bus::memory();
    let event = || bus.publish("orders", &1);
    let many = |count: usize| (0..count).map(|at| (format!("h{at}"), String::new())).collect();
    let all = |options: PublishOptions| bus.publish("orders", &1).options(options);
    let none = PublishOptions::default;
    for (publish, parts) in [
        (event().ts(-1), ["ts", "-1", "from 0 to 253402300799999"]),
        (event().ts(i64::MIN), ["ts", "-9223372036854775808", "from 0 to"]),
        (event().ts(253_402_300_800_000), ["ts", "253402300800000", "from 0 to 253402300799999"]),
        (event().ts(i64::MAX), ["ts", "9223372036854775807", "from 0 to"]),
        (event().key(""), ["key", "0 bytes", "1 to 1024"]),
        (event().key("k".repeat(1_025)), ["key", "1025 bytes", "1 to 1024"]),
        (event().tag(""), ["tags", "0 bytes", "1 to 256"]),
        (event().header("", "v"), ["headers", "0 bytes", "1 to 128"]),
        (event().header("h".repeat(129), "v"), ["headers", "129 bytes", "1 to 128"]),
        (event().header("h", "v".repeat(4_097)), ["headers", "4097 bytes", "0 to 4096"]),
        (all(PublishOptions { headers: many(65), ..none() }), ["headers", "65 items", "at most 64"]),
        (all(PublishOptions { tags: vec!["t".to_owned(); 65], ..none() }), ["tags", "65", "at most 64"]),
        (
            all(PublishOptions { caused_by: vec![Uuid::nil(); 65], ..none() }),
            ["caused_by", "65", "at most 64"],
        ),
    ] {
        let error = publish.await.expect_err(parts[0]);
        assert!(matches!(error, PublishError::Option(_)), "{error:?}");
        says(&error, &parts);
    }
    assert!(bus.topics().await.expect("lists topics").is_empty());
    event().ts(0).await.expect("the earliest time is fine");
    event().ts(253_402_300_799_999).key("k".repeat(1_024)).await.expect("the most is fine");
}

#[test]
fn publish_options_as_json_are_refused_by_field() {
    for (json, parts) in [
        (r#"{"id": "42"}"#, ["id", "not a UUID", "\"42\""]),
        (r#"{"id": 42}"#, ["id", "not a UUID", "42"]),
        (r#"{"id": "0196f1d0-0000-7000-8000-00000000000"}"#, ["id", "not a UUID", ""]),
        (r#"{"ts": -1}"#, ["ts", "-1", "from 0 to"]),
        (r#"{"ts": 1e300}"#, ["ts", "1e300", "from 0 to"]),
        (r#"{"ts": "2024-01-01"}"#, ["ts", "\"2024-01-01\"", "whole number"]),
        (r#"{"key": 7}"#, ["key", "7", "a string"]),
        (r#"{"headers": []}"#, ["headers", "a list", "an object"]),
        (r#"{"headers": {"a": 1}}"#, ["headers", "1", "a string"]),
        (r#"{"tags": "a"}"#, ["tags", "\"a\"", "a list"]),
        (r#"{"caused_by": ["x"]}"#, ["caused_by", "not a UUID", "\"x\""]),
        (r#"{"sid": "x"}"#, ["sid", "not a UUID", "\"x\""]),
        (r#"7"#, ["opts", "7", "an object"]),
    ] {
        let error = PublishOptions::from_json(json).expect_err(json);
        says(&error, &parts);
    }
}

#[tokio::test]
async fn an_unknown_group_is_named() {
    let bus = Bus::memory();
    let published = bus.publish("orders", &1).await.expect("publishes");
    let cursor = CursorPosition { topic: "orders".to_owned(), last_id: None, last_ts: None };
    let errors = [
        bus.ack("orders", "unknown", published.id).await.err(),
        bus.nack("orders", "unknown", published.id, Some("boom")).await.err(),
        bus.seek("orders", "unknown", Start::Earliest).await.err(),
        bus.set_cursor("orders", "unknown", &cursor).await.err(),
        bus.delete_group("orders", "unknown").await.err(),
    ];
    for error in errors {
        let error = error.expect("there is no such group");
        assert!(matches!(error, GroupError::UnknownGroup { .. }), "{error:?}");
        says(&error, &["no group \"unknown\" on \"orders\""]);
    }
    assert!(bus.groups().await.expect("lists groups").is_empty(), "the calls create no group");
    bus.subscribe("orders", "g").await.expect("subscribes");
    let error = bus.seek("orders", "g", Start::Ts(-1)).await.expect_err("a bad time");
    says(&error, &["ts", "-1", "from 0 to"]);
    let cursor = CursorPosition { last_id: Some(Uuid::nil()), ..cursor };
    let error = bus.set_cursor("orders", "g", &cursor).await.expect_err("no such event");
    assert_eq!(error, GroupError::UnknownId(Uuid::nil()));
    says(&error, &["no event with the id", &Uuid::nil().to_string()]);
}

#[tokio::test]
async fn too_many_topics_are_refused_with_the_limit() {
    let bus = Bus::builder().max_topics(2).memory().expect("opens");
    bus.publish("a", &1).await.expect("publishes");
    bus.publish("b", &1).await.expect("publishes");
    let error = bus.publish("c", &1).await.expect_err("one too many");
    assert_eq!(error, PublishError::TooManyTopics(2));
    says(&error, &["topic limit", "max_topics = 2"]);
    let error = bus.subscribe("c", "g").await.expect_err("one too many");
    assert_eq!(error, GroupError::TooManyTopics(2));
    bus.publish("a", &2).await.expect("existing ones still work");
    bus.subscribe("**", "g").await.expect("a pattern creates no topic");
}

#[tokio::test]
async fn a_refused_batch_publishes_nothing() {
    let bus = Bus::builder().max_topics(2).memory().expect("opens");
    bus.publish("a", &1).await.expect("publishes");
    let mut batch = bus.batch();
    for name in ["a", "b", "c"] {
        batch.push(name, &2, &PublishOptions::default()).expect("a good event");
    }
    assert_eq!(bus.publish_batch(batch).await, Err(PublishError::TooManyTopics(2)));
    let topics = bus.topics().await.expect("lists topics");
    let names: Vec<_> = topics.iter().map(|it| (it.topic.as_str(), it.last_seq)).collect();
    assert_eq!(names, [("a", 1)], "no event of the batch was stored");
    bus.publish("other", &1).await.expect("there is still room for one topic");
}

#[tokio::test]
async fn a_refused_subscription_creates_nothing() {
    let bus = Bus::memory();
    bus.subscribe("orders", "g").from(Start::AfterId(Uuid::nil())).await.expect_err("no such event");
    assert!(bus.topics().await.expect("lists topics").is_empty(), "no topic was created");
    assert!(bus.groups().await.expect("lists groups").is_empty(), "no group was created");
}

#[tokio::test]
async fn dead_letter_topics_do_not_count_against_the_limit() {
    let bus = Bus::builder().max_topics(2).memory().expect("opens");
    bus.publish("a", &1).await.expect("publishes");
    let mut group = bus.subscribe("a", "g").from_earliest().max_attempts(1).await.expect("subscribes");
    let give_up = async |group: &mut prombus::Subscription| {
        group.next().await.expect("an event").expect("a delivery").nack("boom").await.expect("nacks");
    };
    give_up(&mut group).await;
    assert_eq!(bus.topics().await.expect("lists topics").len(), 2);
    bus.publish("b", &1).await.expect("dead-letter topics that the bus creates are not counted");
    let mut other = bus.subscribe("b", "g").from_earliest().max_attempts(1).await.expect("subscribes");
    give_up(&mut other).await;
    let names: Vec<String> =
        bus.topics().await.expect("lists topics").iter().map(|it| it.topic.to_string()).collect();
    assert_eq!(names, ["a", "b", "dlq.a", "dlq.b"], "dead letters are written even at the limit");
}

#[tokio::test]
async fn too_many_groups_are_refused_with_the_limit() {
    let bus = Bus::builder().max_groups(2).memory().expect("opens");
    bus.subscribe("a", "one").await.expect("subscribes");
    bus.subscribe("a", "two").await.expect("subscribes");
    let error = bus.subscribe("a", "three").await.expect_err("one too many");
    assert_eq!(error, GroupError::TooManyGroups(2));
    says(&error, &["group limit", "max_groups = 2"]);
    bus.subscribe("a", "two").await.expect("existing ones still work");
    bus.delete_group("a", "one").await.expect("deletes");
    bus.subscribe("a", "three").await.expect("there is room again");
}

#[tokio::test]
async fn bad_settings_are_refused_by_name() {
    let limits = Limits::default();
    for (limits, parts) in [
        (Limits { max_payload_bytes: 0, ..limits }, ["max_payload_bytes is 0", "1 to 16777216"]),
        (
            Limits { max_payload_bytes: (16 << 20) + 1, ..limits },
            ["max_payload_bytes is 16777217", "16777216"],
        ),
        (Limits { max_topics: 0, ..limits }, ["max_topics is 0", "1 to 10000000"]),
        (Limits { max_topics: usize::MAX, ..limits }, ["max_topics", "1 to 10000000"]),
        (Limits { max_groups: 0, ..limits }, ["max_groups is 0", "1 to 10000000"]),
        (Limits { max_groups: usize::MAX, ..limits }, ["max_groups", "1 to 10000000"]),
    ] {
        let folder = Folder::new();
        for refused in [
            Bus::builder().limits(limits).memory(),
            Bus::builder().limits(limits).open(folder.path()).await,
            Bus::builder().limits(limits).open_blocking(folder.path()),
        ] {
            let error = refused.expect_err("a bad setting");
            assert!(matches!(error, OpenError::BadSetting { .. }), "{error:?}");
            says(&error, &parts);
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 0, "the folder is unchanged");
    }
}

#[tokio::test]
async fn bad_settings_of_the_log_are_refused_by_name() {
    let set = |change: fn(&mut LogEngineOptions)| {
        let mut options = LogEngineOptions::default();
        change(&mut options);
        options
    };
    for (options, parts) in [
        (set(|it| it.log.segment_bytes = 0), ["segment_bytes is 0", "8192 to 2147483648"]),
        (set(|it| it.log.segment_bytes = u64::MAX), ["segment_bytes", "8192 to 2147483648"]),
        (set(|it| it.log.reserve_bytes = 1), ["reserve_bytes is 1", "8192 to 2147483648"]),
        (set(|it| it.log.prepared_segments = 0), ["prepared_segments is 0", "at least 1"]),
        (set(|it| it.log.batch_bytes = 0), ["batch_bytes is 0", "at least 1024"]),
        (set(|it| it.log.checkpoint_bytes = 0), ["checkpoint_bytes is 0", "at least 1024"]),
    ] {
        let folder = Folder::new();
        let error = Bus::builder().log(options).open(folder.path()).await.expect_err("a bad setting");
        assert!(matches!(error, OpenError::Log(_)), "{error:?}");
        says(&error, &parts);
        assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 0, "the folder is unchanged");
    }
}

#[tokio::test]
async fn a_folder_that_another_bus_has_open_is_refused() {
    let folder = Folder::new();
    let bus = Bus::open(folder.path()).await.expect("opens");
    bus.publish("orders", &1).await.expect("publishes");
    let error = Bus::open(folder.path()).await.expect_err("it is locked");
    assert!(matches!(error, OpenError::Log(prombus_log::OpenError::Locked { .. })), "{error:?}");
    says(&error, &[&folder.path().display().to_string(), "in use by another process", "stop it first"]);
    bus.publish("orders", &2).await.expect("the first bus still works");
    bus.close().await.expect("closes");
    let again = Bus::open(folder.path()).await.expect("it is free again");
    assert_eq!(again.topics().await.expect("lists topics")[0].last_seq, 2);
}

#[tokio::test]
async fn a_folder_that_is_not_a_log_is_refused() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("thesis.txt"), "precious").expect("writes");
    let error = Bus::open(folder.path()).await.expect_err("not a log");
    says(&error, &["not a prombus log", "thesis.txt", "empty folder"]);
    assert_eq!(std::fs::read(folder.path().join("thesis.txt")).expect("reads"), b"precious");
    let file = folder.path().join("thesis.txt");
    let error = Bus::open(&file).await.expect_err("not a folder");
    assert!(matches!(error, OpenError::Log(_)), "{error:?}");
    says(&error, &[&file.display().to_string()]);
}

#[tokio::test]
async fn a_filter_without_conditions_is_the_same_as_none() {
    let bus = Bus::memory();
    let options = SubscribeOptions { filter: Some(Filter::default()), ..SubscribeOptions::default() };
    bus.subscribe("orders", "g").options(options).await.expect("subscribes");
    bus.subscribe("orders", "g").await.expect("the same as without a filter");
}
