use crate::fixture;
use prombus_protocol::{
    BodyFields, ClientFrame, ErrorCode, EventFrame, ServerFrame, parse_client_frame, put_body_end,
    put_body_head, put_client_frame, put_err, put_event, put_event_head, put_ok, put_published,
};
use serde::Deserialize;

/// A valid frame, and the form in which this crate writes it.
#[derive(Deserialize)]
struct Good {
    name: String,
    text: String,
    canonical: Option<String>,
    /// Unknown fields.
    #[serde(default)]
    ignored: Vec<String>,
}

impl Good {
    fn canonical(&self) -> &str {
        self.canonical.as_ref().unwrap_or(&self.text)
    }
}

/// A frame that is refused. `corr` is JSON text.
#[derive(Deserialize)]
struct Bad {
    name: String,
    text: String,
    code: ErrorCode,
    msg: Option<String>,
    corr: Option<String>,
}

#[test]
fn client_frames_are_read_and_written() {
    for good in fixture::<Vec<Good>>("client-frames") {
        let parsed =
            parse_client_frame(good.text.as_bytes()).unwrap_or_else(|error| panic!("{}: {error}", good.name));
        assert_eq!(parsed.ignored, good.ignored, "{}", good.name);
        let mut written = Vec::new();
        put_client_frame(&mut written, parsed.corr, &parsed.frame);
        assert_eq!(String::from_utf8_lossy(&written), good.canonical(), "{}", good.name);
        let again = parse_client_frame(&written).unwrap();
        assert_eq!(again.corr, parsed.corr);
        assert_eq!(again.frame.op(), parsed.frame.op());
    }
}

#[test]
fn bad_frames_are_refused_with_their_code_and_corr() {
    for bad in fixture::<Vec<Bad>>("bad-frames") {
        let error = parse_client_frame(bad.text.as_bytes()).expect_err(&bad.name);
        assert_eq!(error.code, bad.code, "{}: {error}", bad.name);
        assert_eq!(error.corr, bad.corr, "{}: {error}", bad.name);
        if let Some(msg) = &bad.msg {
            assert_eq!(error.msg, *msg, "{}", bad.name);
        }
        let mut answer = Vec::new();
        put_err(&mut answer, error.corr.as_deref(), error.code, &error.msg, None);
        let ServerFrame::Err(read) = <ServerFrame>::parse(&answer).unwrap() else { panic!("{}", bad.name) };
        assert_eq!((read.code, read.msg), (error.code, error.msg));
        assert_eq!(read.corr.map(|corr| corr.get().to_owned()), bad.corr);
    }
}

#[test]
fn every_error_code_has_a_golden_frame() {
    let frames = fixture::<Vec<Good>>("server-frames");
    for code in ErrorCode::ALL {
        let field = format!("\"code\":\"{}\"", code.as_str());
        assert!(frames.iter().any(|good| good.text.contains(&field)), "none for {}", code.as_str());
    }
}

#[test]
fn server_frames_are_read_and_written() {
    for good in fixture::<Vec<Good>>("server-frames") {
        let frame = <ServerFrame>::parse(good.text.as_bytes())
            .unwrap_or_else(|error| panic!("{}: {error}", good.name));
        let written = match &frame {
            ServerFrame::Ok(ok) => {
                let mut written = Vec::new();
                ok.put(&mut written);
                let mut short = Vec::new();
                let corr = ok.corr.as_ref().map(|corr| corr.get());
                match (ok.id, ok.seq) {
                    (Some(id), Some(seq)) => put_published(&mut short, corr, id, seq, ok.duplicate),
                    _ => put_ok(&mut short, corr),
                }
                if ok.id.is_some() || good.name.starts_with("ok") {
                    assert_eq!(short, written);
                }
                written
            }
            ServerFrame::Err(err) => {
                let mut written = Vec::new();
                let corr = err.corr.as_ref().map(|corr| corr.get());
                put_err(&mut written, corr, err.code, &err.msg, err.retry_after_ms);
                written
            }
            ServerFrame::Event(event) => written_event(event),
        };
        assert_eq!(String::from_utf8_lossy(&written), good.canonical(), "{}", good.name);
    }
    assert!(<ServerFrame>::parse(br#"{"op":"HELLO"}"#).is_err());
    assert!(<ServerFrame>::parse(b"[]").is_err());
}

fn written_event(EventFrame { topic, group, event, ctx }: &EventFrame) -> Vec<u8> {
    let (mut head, mut body, mut written) = (Vec::new(), Vec::new(), Vec::new());
    let fields = BodyFields {
        ts: event.ts,
        topic: event.topic.as_str(),
        sid: event.sid,
        key: event.key.as_deref(),
        partition: event.partition,
        headers: &event.headers,
        caused_by: &event.caused_by,
        tags: &event.tags,
        addressee: event.addressee.as_ref(),
    };
    put_body_head(&mut body, &fields);
    body.extend_from_slice(event.payload.get().as_bytes());
    put_body_end(&mut body);
    put_event_head(&mut head, topic, group);
    put_event(&mut written, &head, event.id, event.seq, &body, ctx);
    written
}

#[test]
fn a_frame_cut_or_changed_anywhere_never_panics() {
    for good in fixture::<Vec<Good>>("client-frames") {
        let bytes = good.text.as_bytes();
        for at in 0..bytes.len() {
            let _ = parse_client_frame(&bytes[..at]);
            for byte in [b'"', b'\\', b'{', b'}', b',', b':', b'0', 0, 0xff] {
                let mut changed = bytes.to_vec();
                changed[at] = byte;
                let _ = parse_client_frame(&changed);
            }
        }
    }
}

#[test]
fn a_payload_may_be_nested_128_deep_in_a_frame() {
    let frame = |levels| {
        let payload = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"op":"PUBLISH","topic":"a","payload":{payload},"corr":1}}"#)
    };
    assert!(parse_client_frame(frame(128).as_bytes()).is_ok());
    // Deep enough to overflow the stack if the parser were recursive.
    for levels in [129, 1_000_000] {
        let error = parse_client_frame(frame(levels).as_bytes()).unwrap_err();
        assert_eq!((error.code, error.corr.as_deref()), (ErrorCode::BadRequest, Some("1")));
    }
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let text = format!(
        r#"{{"op":"NACK","topic":"a","group":"g","id":"0196f1d0-1c2a-7b3c-8d4e-5f6071829304","reason":"x{}"}}"#,
        "ä".repeat(3000)
    );
    let ClientFrame::Nack { reason: Some(reason), .. } = parse_client_frame(text.as_bytes()).unwrap().frame
    else {
        panic!("not a NACK with a reason")
    };
    assert_eq!(reason.len(), 4095);
}

#[test]
fn a_token_does_not_show_in_debug_output() {
    let parsed = parse_client_frame(br#"{"op":"AUTH","token":"s3cret"}"#).unwrap();
    assert!(!format!("{parsed:?}").contains("s3cret"));
    let ClientFrame::Auth { token } = parsed.frame else { panic!("not an AUTH") };
    assert_eq!(token.as_deref(), Some("s3cret"));
}
