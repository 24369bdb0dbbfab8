//! Compares the frame reader, which keeps the previous frame, with the parser, which keeps nothing, on random sequences of frames that
//! repeat each other, or nearly do. `PROMBUS_SEED` and `PROMBUS_ROUNDS` set the seed and the number of sequences.

use prombus_protocol::{FrameReader, parse_client_frame};

/// Pseudorandom numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

/// Whitespace between tokens; mostly none.
fn put_space(random: &mut Random, into: &mut String) {
    if random.one_in(25) {
        into.push_str(random.pick(&[" ", " ", "\n", "\n", "\r\n", "\r", "\t", "\t", "  ", "  ", "\u{b}"]));
    }
}

fn id(random: &mut Random) -> String {
    let (high, low) = (random.next(), random.next());
    let digits = format!("{high:016x}{low:016x}");
    let dashed = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-");
    match random.below(24) {
        0 => digits,
        1 => dashed.to_uppercase(),
        2 => format!("{{{dashed}}}"),
        3 => format!("urn:uuid:{dashed}"),
        4 => dashed.replace('-', "\\u002d"),
        5 => dashed.replacen('-', "0", 1),
        6 => format!("\\u003{}{}", random.below(10), &dashed[1..]),
        7 => dashed[..35].to_owned(),
        8 => format!("{}é", &dashed[..34]),
        _ => dashed,
    }
}

fn text(random: &mut Random) -> String {
    let inside = match random.below(14) {
        0 => String::new(),
        1 => "\\".repeat(1 + random.below(4)),
        2 => "x".repeat([30, 31, 32, 33, 250, 253, 254, 255, 256, 257, 1_100][random.below(11)]),
        3 => (0..1 + random.below(4)).map(|_| random.pick(BAD_PIECES)).collect(),
        _ => (0..1 + random.below(4)).map(|_| random.pick(PIECES)).collect(),
    };
    format!("\"{inside}\"")
}

const PIECES: &[&str] =
    &["a", "orders", ".", "é", "\u{1f600}", "\\n", "\\u0061", "\\\"", "\\/", ":", "_-", "\u{7f}", "payload"];
const BAD_PIECES: &[&str] =
    &["a", "..", "\\ud800", "\\u00", "\",\"payload\":", "\n", "*", "b c", "dlq.", "\\x"];

fn number(random: &mut Random) -> String {
    match random.below(12) {
        0 => random.pick(&["-", "01", "-0", "1e5", "1E+", "1.5", "1.", "0x1", "9e999", "+1"]).to_owned(),
        1 => "7".repeat(1 + random.below(300)),
        _ => (random.next() >> random.below(64)).to_string(),
    }
}

fn value(random: &mut Random, depth: usize) -> String {
    match random.below(if depth > 3 { 5 } else { 9 }) {
        0 => random.pick(&["null", "null", "true", "true", "false", "truefalse"]).to_owned(),
        1 | 2 => number(random),
        3 | 4 => text(random),
        5 if random.one_in(4) => {
            // Around the greatest depth that is allowed.
            let (levels, open) = (125 + random.below(6), random.below(2));
            let (open, close) = [("[", "]"), ("{\"a\":", "}")][open];
            format!("{}1{}", open.repeat(levels), close.repeat(levels - usize::from(random.one_in(9))))
        }
        5 | 6 => {
            let mut list = String::from("[");
            for at in 0..random.below(4) {
                list.push_str(if at > 0 { "," } else { "" });
                put_space(random, &mut list);
                list.push_str(&value(random, depth + 1));
                put_space(random, &mut list);
            }
            list + "]"
        }
        _ => {
            let mut object = String::from("{");
            for at in 0..random.below(4) {
                object.push_str(if at > 0 { "," } else { "" });
                put_space(random, &mut object);
                object.push_str(&if random.one_in(2) { name(random) } else { text(random) });
                put_space(random, &mut object);
                object.push(':');
                put_space(random, &mut object);
                object.push_str(&value(random, depth + 1));
                put_space(random, &mut object);
            }
            object + "}"
        }
    }
}

fn opts(random: &mut Random) -> String {
    match random.below(8) {
        0..=2 => format!("{{\"id\":\"{}\"}}", id(random)),
        3 => format!("{{\"id\":\"{}\",\"key\":{}}}", id(random), text(random)),
        4 => format!("{{\"ts\":{},\"tags\":[{}]}}", number(random), text(random)),
        5 => format!("{{\"id\":{},\"headers\":{{{}:{}}}}}", value(random, 3), text(random), text(random)),
        6 => random.pick(&["null", "{}", "[]", "{\"id\":null}", "\"{}\"", "7", "{ \"id\":\"\"}"]).to_owned(),
        _ => value(random, 0),
    }
}

fn topic(random: &mut Random) -> String {
    if random.one_in(12) {
        return text(random);
    }
    format!(
        "\"{}\"",
        random.pick(&["orders", "orders", "orders.a", "others", "dlq.orders", "o", "orders", "*"])
    )
}

const NAMES: [&str; 8] = ["op", "topic", "group", "corr", "payload", "opts", "id", "x"];

fn name(random: &mut Random) -> String {
    let name = NAMES[random.below(NAMES.len())];
    if random.one_in(20) {
        format!("\"\\u00{:02x}{}\"", name.as_bytes()[0], &name[1..])
    } else {
        format!("\"{name}\"")
    }
}

fn field(random: &mut Random, name: &str) -> String {
    if random.one_in(25) {
        return value(random, 0);
    }
    match name.trim_matches('"') {
        "op" => {
            let op = ["\"NACK\"", "\"PUBLISH\"", "\"ACK\"", "\"P\\u0055BLISH\"", "null"];
            random.pick(&op).to_owned()
        }
        "topic" => topic(random),
        "group" => format!("\"{}\"", random.pick(&["g", "g", "g", "group", "group", "\\u0067", ""])),
        "corr" if random.one_in(3) => text(random),
        "corr" => number(random),
        "opts" => opts(random),
        "id" => format!("\"{}\"", id(random)),
        _ => value(random, 0),
    }
}

/// A frame as names and values: the next frame has the same names and other values.
type Frame = Vec<(String, String)>;

fn frame(random: &mut Random) -> Frame {
    let kind = random.below(7);
    let mut names: Vec<String> = match kind {
        0..=2 => ["op", "topic", "payload"].map(|name| format!("\"{name}\"")).to_vec(),
        3..=5 => ["op", "topic", "group", "id"].map(|name| format!("\"{name}\"")).to_vec(),
        _ => Vec::new(),
    };
    for _ in 0..random.below(4) {
        let at = random.below(names.len() + 1);
        let more = random.pick(&["corr", "corr", "opts", "opts", "x", "payload"]);
        let more = if random.one_in(6) { name(random) } else { format!("\"{more}\"") };
        names.insert(at, more);
    }
    let mut frame: Frame = Vec::new();
    for name in names {
        let value = match &*name {
            "\"op\"" if kind < 6 => format!("\"{}\"", if kind < 3 { "PUBLISH" } else { "ACK" }),
            _ => field(random, &name),
        };
        frame.push((name, value));
    }
    let first = random.below(frame.len().max(1));
    frame.rotate_left(if random.one_in(3) { first } else { 0 });
    frame
}

/// What changes from a frame to the next.
fn change(random: &mut Random, frame: &mut Frame) {
    if frame.is_empty() || random.one_in(40) {
        return *frame = self::frame(random);
    }
    for _ in 0..random.below(3) {
        let at = random.below(frame.len());
        if frame[at].0 != "\"op\"" || random.one_in(10) {
            let changed = field(random, &frame[at].0);
            frame[at].1 = changed;
        }
    }
    match random.below(30) {
        0 => frame.push((name(random), value(random, 1))),
        1 => drop(frame.remove(random.below(frame.len()))),
        2 => {
            let (one, other) = (random.below(frame.len()), random.below(frame.len()));
            frame.swap(one, other);
        }
        3 => {
            let again = frame[random.below(frame.len())].0.clone();
            let value = field(random, &again);
            frame.insert(random.below(frame.len() + 1), (again, value));
        }
        _ => {}
    }
}

fn put(frame: &Frame, spaces: u64) -> Vec<u8> {
    // Every frame of a sequence has the same whitespace; otherwise no frame would repeat the previous one.
    let mut random = Random(spaces);
    let mut json = String::from("{");
    for (at, (name, value)) in frame.iter().enumerate() {
        json.push_str(if at > 0 { "," } else { "" });
        for part in [name, ":", value] {
            put_space(&mut random, &mut json);
            json.push_str(part);
        }
        put_space(&mut random, &mut json);
    }
    json.push('}');
    put_space(&mut random, &mut json);
    json.into_bytes()
}

/// Changes random bytes.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(2) {
        let at = random.below(bytes.len() + 1);
        let byte = b"\"\\{}[],:  \n\r0a-.*\x00\x1f\x7f\xc3\xa9\xff\xf0"[random.below(24)];
        match random.below(5) {
            0 => bytes.insert(at, byte),
            1 if at < bytes.len() => bytes[at] = byte,
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 => bytes.truncate(at),
            _ => {
                let end = (at + random.below(40)).min(bytes.len());
                let again = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, again);
            }
        }
    }
}

#[test]
fn the_reader_returns_what_the_parser_returns_whatever_came_before() {
    let number_of = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number_of("PROMBUS_SEED").unwrap_or(1);
    let rounds = number_of("PROMBUS_ROUNDS").unwrap_or(3_000);
    let mut taken = 0;
    for round in 0..rounds {
        let mut random = Random(seed.wrapping_mul(0x1_0000_0000).wrapping_add(round));
        let mut reader = FrameReader::default();
        let mut frames = [frame(&mut random), frame(&mut random)];
        let spaces = random.next();
        for step in 0..40 {
            let which = usize::from(random.one_in(4));
            change(&mut random, &mut frames[which]);
            let mut bytes = put(&frames[which], spaces);
            if random.one_in(8) {
                damage(&mut random, &mut bytes);
            }
            let expected = parse_client_frame(&bytes);
            taken += u64::from(expected.is_ok());
            let said =
                || format!("seed {seed}, round {round}, step {step}: {:?}", String::from_utf8_lossy(&bytes));
            assert_eq!(reader.read(&bytes), expected, "{}", said());
        }
    }
    println!("{taken} of {} frames were accepted", rounds * 40);
    // If all frames were refused, the test would prove nothing.
    assert!(taken > rounds * 4, "{taken} of {} frames were accepted", rounds * 40);
}
