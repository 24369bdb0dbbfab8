//! Parses a client frame. A frame that parses is encoded, parsed again and encoded again: both encodings must be equal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prombus_protocol::{parse_client_frame, put_client_frame};

fuzz_target!(|bytes: &[u8]| {
    let Ok(parsed) = parse_client_frame(bytes) else { return };
    let mut written = Vec::new();
    put_client_frame(&mut written, parsed.corr, &parsed.frame);
    let again = parse_client_frame(&written).expect("an encoded frame can be parsed");
    let mut rewritten = Vec::new();
    put_client_frame(&mut rewritten, again.corr, &again.frame);
    assert_eq!(written, rewritten);
});
