use super::super::frame_encoder::{extent_of, head_bytes, put_deflated, put_ping, put_text, write_head};
use super::super::permessage_deflate::Deflate;
use super::*;

fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; head_bytes(payload.len())];
    write_head(&mut frame, 0, payload.len());
    frame[0] = first;
    frame[1] |= 0x80;
    let mask = [7, 250, 33, 91];
    frame.extend_from_slice(&mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

fn text_of(decoder: &mut FrameDecoder, bytes: &mut [u8]) -> (usize, Option<Vec<u8>>) {
    match decoder.next(bytes).expect("good frames") {
        (used, Some(Incoming::Text(text))) => (used, Some(text.to_vec())),
        (used, other) => {
            assert_eq!(other, None);
            (used, None)
        }
    }
}

#[test]
fn texts_of_all_lengths_are_read_and_written() {
    for length in [0, 1, 7, 8, 9, 125, 126, 127, 1000, 65_535, 65_536, 100_000] {
        let payload: Vec<u8> = (0..length).map(|at| (at % 127) as u8).collect();
        let mut decoder = FrameDecoder::new(1 << 20, false);
        let mut bytes = masked(0x81, &payload);
        for cut in [0, 1, 2, bytes.len() - 1] {
            assert_eq!(decoder.next(&mut bytes[..cut].to_vec()), Ok((0, None)), "cut at {cut}");
        }
        let whole = bytes.len();
        assert_eq!(text_of(&mut decoder, &mut bytes), (whole, Some(payload.clone())));
        for guess in [0, 200, 70_000] {
            let mut written = b"before".to_vec();
            put_text(&mut written, guess, |into| into.extend_from_slice(&payload));
            let mut expected = b"before".to_vec();
            let start = expected.len();
            expected.resize(start + head_bytes(length), 0);
            write_head(&mut expected[start..], TEXT, length);
            expected.extend_from_slice(&payload);
            assert!(written == expected, "length {length}, guess {guess}");
        }
    }
}

#[test]
fn fragments_become_a_message_and_control_frames_may_come_between() {
    let mut decoder = FrameDecoder::new(100, false);
    let mut bytes =
        [masked(0x01, b"he"), masked(0x89, b"p"), masked(0x00, b"l"), masked(0x80, b"lo")].concat();
    let (mut at, mut seen) = (0, Vec::new());
    while at < bytes.len() {
        let (used, incoming) = decoder.next(&mut bytes[at..]).expect("good frames");
        seen.extend(incoming.map(|it| format!("{it:?}")));
        at += used;
    }
    assert_eq!(seen, [format!("{:?}", Incoming::Ping(b"p")), format!("{:?}", Incoming::Text(b"hello"))]);
    assert!(!decoder.is_inside_message());
}

#[test]
fn protocol_violations_are_refused() {
    let mut unmasked = Vec::new();
    put_text(&mut unmasked, 0, |into| into.extend_from_slice(b"x"));
    let mut unfinished = FrameDecoder::new(100, false);
    assert_eq!(unfinished.next(&mut masked(0x01, b"a")), Ok((7, None)));
    assert!(matches!(unfinished.next(&mut masked(0x81, b"b")), Err(Violation::Protocol(_))));
    let bad = [
        unmasked,
        masked(0xc1, b"x"),
        masked(0x83, b"x"),
        masked(0x80, b"x"),
        masked(0x09, b"x"),
        masked(0x88, b"x"),
        masked(0x89, &[0; 126]),
    ];
    for mut bytes in bad {
        assert!(
            matches!(FrameDecoder::new(1000, false).next(&mut bytes), Err(Violation::Protocol(_))),
            "{bytes:?}"
        );
    }
}

#[test]
fn a_message_over_the_limit_is_refused_by_its_head_alone() {
    let mut decoder = FrameDecoder::new(100, false);
    assert_eq!(decoder.next(&mut masked(0x81, &[b' '; 101])[..4]), Err(Violation::TooLarge(100)));
    let mut huge = vec![0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(decoder.next(&mut huge), Err(Violation::TooLarge(100)));
    assert_eq!(text_of(&mut decoder, &mut masked(0x01, &[b'a'; 60])).1, None);
    assert_eq!(decoder.next(&mut masked(0x00, &[b'b'; 41])), Err(Violation::TooLarge(100)));
}

/// Decodes frames with these first bytes and payloads, which arrive in pieces of this size.
fn arriving(frames: &[(u8, &[u8])], piece_bytes: usize) -> Result<Vec<Vec<u8>>, Violation> {
    let bytes: Vec<u8> = frames.iter().flat_map(|(first, payload)| masked(*first, payload)).collect();
    let (mut decoder, mut unread, mut texts) = (FrameDecoder::new(1 << 20, true), Vec::new(), Vec::new());
    for piece in bytes.chunks(piece_bytes) {
        unread.extend_from_slice(piece);
        loop {
            let (used, incoming) = decoder.next(&mut unread)?;
            if let Some(Incoming::Text(text) | Incoming::Binary(text)) = incoming {
                texts.push(text.to_vec());
            }
            decoder.release();
            unread.drain(..used);
            if used == 0 {
                break;
            }
        }
    }
    Ok(texts)
}

#[test]
fn invalid_utf8_is_refused_as_early_as_possible() {
    let (good, bad) = ("κόσμε€𝄞".as_bytes(), b"\xce\xba\xed\xa0\x80 and more that never comes");
    for piece_bytes in 1..40 {
        let frames: [&[(u8, &[u8])]; 3] = [
            &[(0x81, good)],
            &[(0x01, &good[..5]), (0x89, b"ping"), (0x00, &good[5..6]), (0x80, &good[6..])],
            &[(0x01, b""), (0x00, good), (0x80, b"")],
        ];
        for frames in frames {
            assert_eq!(arriving(frames, piece_bytes), Ok(vec![good.to_vec()]), "{piece_bytes}");
        }
        // The frame is incomplete.
        let mut half = masked(0x81, bad);
        half.truncate(6 + 4);
        let mut decoder = FrameDecoder::new(1 << 20, false);
        assert_eq!(decoder.next(&mut half), Err(Violation::Data(NOT_UTF8)));
        assert_eq!(arriving(&[(0x01, bad)], piece_bytes), Err(Violation::Data(NOT_UTF8)));
        let cut_short = [(0x01, &good[..1]), (0x80, b"".as_slice())];
        assert_eq!(arriving(&cut_short, piece_bytes), Err(Violation::Data(NOT_UTF8)));
        // Binary messages may contain any bytes.
        assert_eq!(arriving(&[(0x02, bad), (0x80, b"")], piece_bytes), Ok(vec![bad.to_vec()]));
    }
    assert_eq!(arriving(&[(0x88, b"\x03\xe8\xff")], 99), Err(Violation::Data("a close reason is not UTF-8")));
}

#[test]
fn compressed_messages_are_read_and_written_whole_or_fragmented() {
    let headers = [(
        axum::http::header::SEC_WEBSOCKET_EXTENSIONS,
        axum::http::HeaderValue::from_static("permessage-deflate"),
    )];
    let deflate = Deflate::negotiate(&headers.into_iter().collect()).expect("an offer");
    let texts: Vec<String> = [0, 10, 200, 70_000].map(|length| "abc €".repeat(length)).to_vec();
    let mut frames = Vec::new();
    for text in &texts {
        put_text(&mut frames, 0, |into| into.extend_from_slice(text.as_bytes()));
    }
    put_ping(&mut frames);
    let (mut sent, mut ends) = (Vec::new(), Vec::new());
    put_deflated(deflate, &frames, &mut sent, &mut ends);
    assert!(sent.len() < 20_000 && ends.last() == Some(&(frames.len(), sent.len())), "{}", sent.len());
    let mut start = 0;
    for (text, &(_, end)) in texts.iter().zip(&ends) {
        let (payload_at, payload_end) = extent_of(&sent, start);
        assert_eq!(payload_end, end);
        let (first, payload) = (sent[start], &sent[payload_at..end]);
        assert_eq!(first & DEFLATED != 0, text.len() >= 64);
        // As a client would send it.
        let whole = [(first, payload)];
        assert!(arriving(&whole, 1_000) == Ok(vec![text.as_bytes().to_vec()]), "{}", text.len());
        let cut = payload.len() / 2;
        let in_pieces = [(first & 0x7f, &payload[..cut]), (0x80, &payload[cut..])];
        assert!(arriving(&in_pieces, 7) == Ok(vec![text.as_bytes().to_vec()]), "{}", text.len());
        start = end;
    }
    assert!(matches!(arriving(&[(0xc9, b"x")], 9), Err(Violation::Protocol(_))), "a compressed ping");
    let twice = [(0x41, b"x".as_slice()), (0xc0, b"x")];
    assert!(matches!(arriving(&twice, 9), Err(Violation::Protocol(_))), "a compressed continuation");
    let bad = arriving(&[(0xc1, &[0xff; 9])], 99);
    assert_eq!(bad, Err(Violation::Data("a compressed message is invalid")));
    let mut bomb = Vec::new();
    assert!(deflate.deflate(&vec![b' '; 2 << 20], &mut bomb));
    assert_eq!(arriving(&[(0xc1, &bomb)], 99), Err(Violation::TooLarge(1 << 20)));
}
