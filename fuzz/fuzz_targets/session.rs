//! Runs a whole WebSocket session. Each line of the input is one message, which this target masks, so that the fuzzer does not have to
//! find valid masks. The first byte of a line can change that: a line with a 0 is sent as raw bytes, with a 1 it is compressed, with a
//! 2 it is sent in a frame that claims to be compressed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prombus_protocol::Json;
use prombus_server::test_util::{put_masked, put_masked_deflated, talk};

fuzz_target!(|input: &[u8]| {
    let Some((&first, input)) = input.split_first() else { return };
    let mut bytes = Vec::new();
    for line in input.split(|&byte| byte == b'\n') {
        match line.split_first() {
            Some((0, raw)) => bytes.extend_from_slice(raw),
            Some((1, text)) => put_masked_deflated(&mut bytes, text),
            Some((2, deflated)) => put_masked(&mut bytes, 0xc1, deflated),
            _ => put_masked(&mut bytes, 0x81, line),
        }
    }
    for text in talk(&bytes, 1 + usize::from(first) * 16, first % 2 == 1, first % 4 > 1) {
        assert!(Json::new(&text).is_ok(), "{:?}", String::from_utf8_lossy(&text));
    }
});
