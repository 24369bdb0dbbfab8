//! Random frames from seeds: the server must answer with JSON and never crash. `PROMBUS_FUZZ_SECONDS=600` runs it for longer,
//! `PROMBUS_SEED=7` repeats one seed.

use prombus_protocol::Json;
use prombus_server::test_util::{TOKEN, put_masked, put_masked_deflated, talk};
use std::time::{Duration, Instant};

/// A small generator: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }
}

const OPS: &[&str] = &[
    "AUTH",
    "PUBLISH",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "ACK",
    "NACK",
    "MODACK",
    "PAUSE",
    "RESUME",
    "CURSOR",
    "SEEK",
    "EVENT",
    "OK",
    "",
    "publish",
];
const TOPICS: &[&str] =
    &["a", "a.b", "a.*", "**", "dlq.a", "", ".", "a b", "ä", "*", "a.**.b", "heartbeat.received"];
const VALUES: &[&str] = &[
    "1",
    "-1",
    "0",
    "1e400",
    "18446744073709551616",
    "null",
    "true",
    "\"\"",
    "\"x\"",
    "[]",
    "{}",
    "[1,{\"a\":[]}]",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "{\"from\":\"earliest\"}",
    "{\"from\":\"afterId\"}",
    "{\"from\":\"ts\",\"ts\":1}",
    "{\"maxInFlight\":1}",
    "{\"id\":\"018f0000-0000-7000-8000-000000000000\"}",
    "{\"key\":\"k\",\"tags\":[\"t\"]}",
    "{\"filter\":{\"key\":\"k\"}}",
    "{\"batchSize\":0}",
    "\"018f0000-0000-7000-8000-000000000000\"",
    "{",
    "]",
    "",
];
const FIELDS: &[&str] = &[
    "corr",
    "topic",
    "group",
    "payload",
    "opts",
    "id",
    "reason",
    "delay_ms",
    "extend_ms",
    "to",
    "token",
    "op",
    "zzz",
];

fn frame(random: &mut Random) -> Vec<u8> {
    if random.below(20) == 0 {
        let length = random.below(200);
        // Invalid UTF-8 ends the connection, so it is rare.
        let mask = if random.below(20) == 0 { 0xff } else { 0x7f };
        return (0..length).map(|_| random.next() as u8 & mask).collect();
    }
    let op = if random.below(3) == 0 {
        random.pick(OPS)
    } else {
        random.pick(&["PUBLISH", "SUBSCRIBE", "ACK", "NACK"])
    };
    let mut text = format!("{{\"op\":\"{op}\"");
    // Mostly valid values, so that most frames get past the first checks.
    if random.below(8) > 0 {
        let is_good = random.below(8) > 0;
        let topic = if is_good { random.pick(&["a", "a", "a.b", "a.*"]) } else { random.pick(TOPICS) };
        let value =
            if is_good { random.pick(&["1", "null", "{}", "[1,{\"a\":[]}]"]) } else { random.pick(VALUES) };
        let group = if is_good { "g" } else { random.pick(&["g", "h", ""]) };
        text += &format!(",\"topic\":\"{topic}\",\"group\":\"{group}\",\"payload\":{value}");
        text += &format!(",\"corr\":{}", random.below(1000));
        let id = format!("\"018f0000-0000-7000-8000-{:012}\"", random.below(5));
        let has_opts = matches!(op, "PUBLISH" | "SUBSCRIBE");
        if !has_opts || random.below(20) == 0 {
            text += &format!(",\"id\":{id}");
        }
        if is_good && has_opts {
            text += &format!(",\"opts\":{{\"id\":{id},\"from\":\"earliest\"}}");
        }
    }
    if random.below(4) == 0 {
        text += &format!(",\"token\":\"{}\"", random.pick(&[TOKEN, "wrong", ""]));
    }
    for _ in 0..random.below(6).saturating_sub(3) {
        text += &format!(",\"{}\":{}", random.pick(FIELDS), random.pick(VALUES));
    }
    text.push('}');
    let mut bytes = text.into_bytes();
    if random.below(10) == 0 && !bytes.is_empty() {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] = random.next() as u8 & if random.below(20) == 0 { 0xff } else { 0x7f };
    }
    bytes
}

/// Runs one conversation. Returns the numbers of received OK, ERR and EVENT frames.
fn conversation(seed: u64) -> [u64; 3] {
    let mut random = Random(seed);
    let mut bytes = Vec::new();
    let has_auth = random.below(4) == 0;
    if has_auth && random.below(4) > 0 {
        put_masked(&mut bytes, 0x81, format!("{{\"op\":\"AUTH\",\"token\":\"{TOKEN}\"}}").as_bytes());
    }
    let deflates = random.below(4) == 0;
    for _ in 0..random.below(60) {
        let frame = frame(&mut random);
        match random.below(150) {
            5..=60 if deflates => put_masked_deflated(&mut bytes, &frame),
            61 if deflates => put_masked(&mut bytes, 0xc1, &frame),
            0 => put_masked(&mut bytes, 0x82, &frame),
            1 => put_masked(&mut bytes, 0x89, &frame[..frame.len().min(125)]),
            2 => put_masked(&mut bytes, random.next() as u8, &frame),
            3 => bytes.extend_from_slice(&frame),
            4 => {
                let (start, end) = frame.split_at(frame.len() / 2);
                put_masked(&mut bytes, 0x01, start);
                put_masked(&mut bytes, 0x80, end);
            }
            _ => put_masked(&mut bytes, 0x81, &frame),
        }
    }
    let piece_bytes = 1 + random.below(300) as usize * random.below(300) as usize;
    let mut counts = [0; 3];
    for text in talk(&bytes, piece_bytes, has_auth, deflates) {
        let text = String::from_utf8(text).expect("texts are UTF-8");
        // Not checked with serde_json, which refuses some valid numbers and escapes that the server echoes.
        if let Err(error) = Json::new(text.as_bytes()) {
            panic!("{error}: {text}");
        }
        let op =
            ["OK\"", "ERR\"", "EVENT\""].iter().position(|op| text.starts_with(&format!("{{\"op\":\"{op}")));
        counts[op.unwrap_or_else(|| panic!("{text}"))] += 1;
        assert!(!text.starts_with("{\"op\":\"ERR\",\"code\":\"internal\""), "{text}");
    }
    counts
}

#[test]
fn random_frames_are_answered_and_never_kill_the_server() {
    if let Some(seed) = std::env::var("PROMBUS_SEED").ok().and_then(|seed| seed.parse().ok()) {
        conversation(seed);
        return;
    }
    let seconds = std::env::var("PROMBUS_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut seed = if until.is_some() { u64::from(std::process::id()) << 32 } else { 0 };
    let (first, mut sums) = (seed, [0; 3]);
    while until.map_or(seed < 3_000, |until| Instant::now() < until) {
        match std::panic::catch_unwind(|| conversation(seed)) {
            Ok(counts) => (0..3).for_each(|op| sums[op] += counts[op]),
            Err(_) => panic!("PROMBUS_SEED={seed} fails"),
        }
        seed += 1;
    }
    let count = seed - first;
    println!("{count} conversations from seed {first}: {sums:?} of OK, ERR, EVENT");
    assert!(sums.iter().all(|&sum| sum > count / 10), "too few frames were received: {sums:?}");
}
