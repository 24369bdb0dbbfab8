//! Tests of request bodies: compressed, slow, and with ambiguous framing.

use super::{Answer, Rig, request};
use crate::auth::Principal;
use crate::http::request_body::BodyReader;
use crate::live::Standing;
use crate::options::ServerOptions;
use axum::body::Body;
use axum::http::HeaderMap;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use std::io::Write as _;
use std::time::Duration;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).expect("in memory");
    encoder.finish().expect("in memory")
}

fn zstd(text: &[u8]) -> Vec<u8> {
    let mut compressed = Vec::with_capacity(zstd_safe::compress_bound(text.len()));
    zstd_safe::compress(&mut compressed, text, 3).expect("in memory");
    compressed
}

/// A client without auth.
fn anyone(rig: &Rig) -> Standing {
    Standing::new(&rig.gateway.live, &Principal::anyone(), 0)
}

/// A body that arrives in pieces of this size.
fn pieces(whole: &[u8], size: usize) -> Body {
    let pieces: Vec<_> =
        whole.chunks(size).map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece))).collect();
    Body::from_stream(stream::iter(pieces))
}

async fn publish(rig: &Rig, encoding: &str, content_type: &str, body: Body) -> Answer {
    let request = request("POST", "/publish/t")
        .header("content-encoding", encoding)
        .header("content-type", content_type);
    rig.send(request.body(body).expect("a request")).await
}

async fn count(rig: &Rig) -> usize {
    rig.get("/export?topic=t").await.lines().len()
}

#[tokio::test]
async fn gzip_and_zstd_bodies_are_accepted_in_pieces_of_any_size() {
    let rig = Rig::open();
    let lines = (0..5_000).map(|number| format!("{{\"number\":{number}}}\n")).collect::<String>();
    let mut expected = 0;
    for (encoding, compressed) in [
        ("gzip", gzip(lines.as_bytes())),
        ("X-GZip", gzip(lines.as_bytes())),
        ("zstd", zstd(lines.as_bytes())),
        ("identity", lines.clone().into_bytes()),
        // Two concatenated streams count as one.
        ("gzip", [gzip(&lines.as_bytes()[..100]), gzip(&lines.as_bytes()[100..])].concat()),
        ("zstd", [zstd(&lines.as_bytes()[..100]), zstd(&lines.as_bytes()[100..])].concat()),
    ] {
        for size in [1 << 20, 100] {
            let body = pieces(&compressed, size);
            let answer = publish(&rig, encoding, "application/x-ndjson", body).await;
            assert_eq!(answer.ok()["count"], 5_000, "{encoding}");
            expected += 5_000;
        }
        let one = if encoding == "zstd" { zstd(b"[1]") } else { gzip(b"[1]") };
        let one = if encoding == "identity" { b"[1]".to_vec() } else { one };
        publish(&rig, encoding, "application/json", one.into()).await.ok();
        expected += 1;
    }
    assert_eq!(count(&rig).await, expected);
    // Other routes accept compressed bodies too.
    let put = request("PUT", "/groups/t/g").header("content-encoding", "gzip");
    let put = put.body(gzip(b"{\"from\":\"earliest\"}").into()).expect("a request");
    assert_eq!(rig.send(put).await.ok()["created"], true);
}

#[tokio::test]
async fn compressed_bodies_that_fill_whole_buffers_are_accepted() {
    let rig = Rig::open();
    for length in [65_535, 65_536, 65_537, 131_072, 1 << 20] {
        let text = format!("\"{}\"", "x".repeat(length - 2)).into_bytes();
        for (encoding, compressed) in [
            ("gzip", gzip(&text)),
            ("zstd", zstd(&text)),
            ("zstd", [zstd(&text[..length / 2]), zstd(&text[length / 2..])].concat()),
        ] {
            for size in [1 << 20, 7] {
                let mut headers = HeaderMap::new();
                headers.insert("content-encoding", encoding.parse().expect("a header"));
                let body = pieces(&compressed, size);
                let mut incoming =
                    BodyReader::new(&rig.gateway, &headers, body, length, anyone(&rig)).expect("a body");
                let mut read = Vec::new();
                while let Some(piece) =
                    incoming.next().await.unwrap_or_else(|error| panic!("{encoding}: {error:?}"))
                {
                    read.extend_from_slice(&piece);
                }
                assert!(read == text, "{encoding} {length} {size}: {} bytes", read.len());
            }
        }
        // A truncated body is still refused.
        let cut = zstd(&text);
        publish(&rig, "zstd", "application/json", cut[..cut.len() - 1].to_vec().into())
            .await
            .error(400, "bad_request");
    }
    let text = format!("\"{}\"", "x".repeat(65_534)).into_bytes();
    publish(&rig, "zstd", "application/json", zstd(&text).into()).await.ok();
}

#[tokio::test]
async fn limits_apply_to_the_decompressed_size() {
    let mut options = ServerOptions::default();
    options.connections.max_body_bytes = 1 << 20;
    options.max_payload_bytes = 64 << 10;
    let rig = Rig::with(options);
    let zeros = vec![b'0'; 64 << 20];
    for (encoding, bomb) in [("gzip", gzip(&zeros)), ("zstd", zstd(&zeros))] {
        assert!(bomb.len() < 100_000, "{}", bomb.len());
        for content_type in ["application/json", "application/x-ndjson"] {
            let answer = publish(&rig, encoding, content_type, bomb.clone().into()).await;
            answer.error(413, "too_large");
        }
    }
    let lines = zstd("1\n".repeat(600_000).as_bytes());
    publish(&rig, "zstd", "application/x-ndjson", lines.into()).await.error(413, "too_large");
    assert_eq!(count(&rig).await, 0);
    assert_eq!(rig.gateway.budget.used_bytes(), 0);
}

#[tokio::test]
async fn other_encodings_are_415_and_broken_ones_400() {
    let rig = Rig::open();
    for encoding in ["br", "deflate", "gzip, zstd", "compress", "aws-chunked"] {
        let answer = publish(&rig, encoding, "application/json", "1".into()).await;
        let message = answer.error(415, "bad_request");
        assert!(message.contains("supported: gzip, zstd, identity"), "{message}");
        assert_eq!(answer.headers["accept-encoding"], "gzip, zstd");
    }
    let (gzip, zstd) = (gzip(b"[1,2,3]"), zstd(b"[1,2,3]"));
    let mut wide_window = zstd.clone();
    // Clear the single-segment flag, and declare a window of 3.75 TiB.
    wide_window[4] &= !0x20;
    wide_window[5] = 0xff;
    for (encoding, broken) in [
        ("gzip", b"[1]".to_vec()),
        ("gzip", gzip[..gzip.len() - 1].to_vec()),
        ("gzip", [gzip.clone(), b"more".to_vec()].concat()),
        ("gzip", gzip[..5].to_vec()),
        ("zstd", b"[1]".to_vec()),
        ("zstd", zstd[..zstd.len() - 1].to_vec()),
        ("zstd", wide_window),
    ] {
        let message =
            publish(&rig, encoding, "application/json", broken.into()).await.error(400, "bad_request");
        assert!(message.starts_with(&format!("the body is not valid {encoding}")), "{message}");
    }
    publish(&rig, "gzip", "application/json", Body::empty()).await.error(400, "bad_json");
    assert_eq!(count(&rig).await, 0);
}

/// A body of `count` pieces, with a pause before each.
fn slow(piece: &'static [u8], count: usize, pause: Duration) -> Body {
    let pieces = stream::unfold(0, move |at| async move {
        if at == count {
            return None;
        }
        tokio::time::sleep(pause).await;
        Some((Ok::<_, std::io::Error>(Bytes::from_static(piece)), at + 1))
    });
    Body::from_stream(pieces)
}

#[tokio::test(start_paused = true)]
async fn a_body_below_the_minimum_rate_is_refused_and_a_slow_one_is_not() {
    let rig = Rig::open();
    let started = tokio::time::Instant::now();
    let message =
        rig.post("/publish/t", slow(b"1", 1_000, Duration::from_secs(1))).await.error(408, "bad_request");
    assert!(message.contains("the minimum is 500 bytes per second"), "{message}");
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    // 10 kB/s, also in bursts.
    static PIECE: [u8; 80_000] = [b' '; 80_000];
    rig.post("/publish/t", slow(&PIECE[..10_000], 60, Duration::from_secs(1))).await.error(400, "bad_json");
    rig.post("/publish/t", slow(&PIECE, 10, Duration::from_secs(8))).await.error(400, "bad_json");

    let mut options = ServerOptions::default();
    options.connections.min_body_bytes_per_second = 0;
    let rig = Rig::with(options);
    rig.post("/publish/t", slow(b"1", 300, Duration::from_secs(1))).await.ok();
}

#[tokio::test(start_paused = true)]
async fn time_in_which_the_server_does_not_read_does_not_count() {
    let rig = Rig::open();
    let body = pieces(&[b'1'; 20], 1);
    let mut incoming =
        BodyReader::new(&rig.gateway, &HeaderMap::new(), body, 100, anyone(&rig)).expect("a body");
    for _ in 0..20 {
        assert!(incoming.next().await.expect("no error").is_some());
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert!(incoming.next().await.expect("no error").is_none());
}

#[tokio::test]
async fn requests_with_ambiguous_framing_are_refused() {
    let rig = Rig::open();
    let locked = Rig::with_tokens(&[("t", &["subscribe:**"])]);
    for rig in [rig, locked] {
        let mut bare = request("GET", "/healthz").body(Body::empty()).expect("a request");
        bare.headers_mut().remove("host");
        let answer = rig.send(bare).await;
        answer.error(400, "bad_request");
        assert_eq!(answer.headers["connection"], "close");
        for codings in [&["gzip, chunked"][..], &["gzip", "chunked"], &["chunked, chunked"], &["identity"]] {
            let mut request = request("POST", "/publish/t");
            for coding in codings {
                request = request.header("transfer-encoding", *coding);
            }
            let answer = rig.send(request.body("1".into()).expect("a request")).await;
            answer.error(501, "bad_request");
            assert_eq!(answer.headers["connection"], "close");
        }
    }
}
