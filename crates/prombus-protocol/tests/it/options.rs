use crate::fixture;
use prombus_protocol::{
    Body, BodyFields, Filter, OptionError, PublishOptions, Start, SubscribeOptions, put_body_end,
    put_body_head,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Options {
    publish: Vec<Case>,
    subscribe: Vec<Case>,
}

/// Options to read (`in`), and either the form in which they are written (`out`, or the same as `in`) or the `error`.
#[derive(Deserialize)]
struct Case {
    r#in: Value,
    out: Option<Value>,
    error: Option<String>,
}

fn run<T: Serialize + DeserializeOwned>(cases: &[Case], read: impl Fn(&str) -> Result<T, OptionError>) {
    for Case { r#in, out, error } in cases {
        let text = r#in.to_string();
        match (read(&text), error) {
            (Ok(options), None) => {
                let written = serde_json::to_value(options).expect("options can be written");
                assert_eq!(written, *out.as_ref().unwrap_or(r#in));
                assert!(serde_json::from_value::<T>(r#in.clone()).is_ok());
            }
            (Err(got), Some(error)) => {
                assert_eq!(got.to_string(), *error);
                let by_serde =
                    serde_json::from_str::<T>(&text).err().expect("serde refuses it too").to_string();
                assert!(by_serde.starts_with(error), "{by_serde}");
            }
            (result, _) => panic!("{text}: {:?}", result.map(|_| "accepted")),
        }
    }
}

#[test]
fn options_are_read_checked_and_written() {
    let options: Options = fixture("options");
    run(&options.publish, PublishOptions::from_json);
    run(&options.subscribe, SubscribeOptions::from_json);
}

#[test]
fn options_built_in_rust_are_checked_too() {
    assert_eq!(SubscribeOptions::default().check(), Ok(()));
    let error_of = |options: SubscribeOptions| options.check().unwrap_err().to_string();
    assert_eq!(
        error_of(SubscribeOptions { max_attempts: Some(0), ..Default::default() }),
        r#""maxAttempts": 0 is not allowed, only a whole number from 1 to 1000"#
    );
    assert_eq!(
        error_of(SubscribeOptions { ack_timeout_ms: Some(u64::MAX), ..Default::default() }),
        format!(r#""ackTimeoutMs": {} is not allowed, only a whole number from 1 to 86400000"#, i64::MAX)
    );
    assert!(
        error_of(SubscribeOptions { from: Start::Ts(-1), ..Default::default() }).starts_with("\"ts\": -1")
    );
    let options = PublishOptions { ts: Some(-1), ..Default::default() };
    assert!(options.check().unwrap_err().to_string().starts_with("\"ts\": -1"));
}

#[test]
fn all_parts_of_a_filter_must_match() {
    let headers = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "\"2\"".to_owned())]);
    let tags = ["#duck".to_owned(), "#stt".to_owned()];
    let mut bytes = Vec::new();
    let fields = BodyFields {
        ts: 1,
        topic: "a",
        sid: None,
        key: Some("k"),
        partition: None,
        headers: &headers,
        caused_by: &[],
        tags: &tags,
        addressee: None,
    };
    put_body_head(&mut bytes, &fields);
    bytes.extend_from_slice(br##"{"tags":["#other"],"headers":{"c":"3"}}"##);
    put_body_end(&mut bytes);
    let body = Body::new(&bytes);
    for (filter, expected) in [
        (r#"{}"#, true),
        (r#"{"key":"k"}"#, true),
        (r#"{"key":"l"}"#, false),
        (r##"{"tag":"#stt"}"##, true),
        (r##"{"tag":"#other"}"##, false),
        (r#"{"header":{"b":"\"2\""}}"#, true),
        (r#"{"header":{"a":"1","b":"2"}}"#, false),
        (r#"{"header":{"c":"3"}}"#, false),
        (r##"{"key":"k","tag":"#duck","header":{"a":"1"}}"##, true),
        (r##"{"key":"l","tag":"#duck","header":{"a":"1"}}"##, false),
    ] {
        let filter: Filter = serde_json::from_str(filter).unwrap();
        assert_eq!(filter.matches(Some("k"), &body), expected, "{filter:?}");
        assert_eq!(filter.is_empty(), filter == Filter::default());
        assert_eq!(filter.matches(None, &body), expected && filter.key.is_none());
    }
}
