//! JSON on one line, without spaces between its parts, in light colours.

use super::style::{Painter, Style, escape_controls};

/// Appends valid JSON. Characters that could control a terminal are escaped.
pub fn put_json(out: &mut String, json: &str, painter: Painter) {
    let mut rest = json;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string_length(rest),
            '{' | '}' | '[' | ']' | ':' | ',' => 1,
            ' ' | '\t' | '\r' | '\n' => {
                rest = &rest[1..];
                continue;
            }
            _ => rest.find(['{', '}', '[', ']', ':', ',', '"', ' ', '\t', '\r', '\n']).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(length);
        let token = escape_controls(token);
        match first {
            '"' if after.trim_start().starts_with(':') => painter.put(out, Style::JsonName, &token),
            '"' => painter.put(out, Style::JsonString, &token),
            '{' | '}' | '[' | ']' | ':' | ',' => out.push_str(&token),
            _ => painter.put(out, Style::JsonScalar, &token),
        }
        rest = after;
    }
}

/// The length of the string at the start of the text, with its quotes.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ColorWhen;

    fn text(json: &str, when: ColorWhen) -> String {
        let mut out = String::new();
        put_json(&mut out, json, Painter::new(when, false));
        out
    }

    #[test]
    fn json_is_compact_and_its_strings_are_untouched() {
        let json =
            "{ \"a b\" : [ 1 , -2.5e3,\n true ],\t\"q\\\"\\\\\": \" x : y \", \"e\": {}, \"n\": null }";
        let compact = r#"{"a b":[1,-2.5e3,true],"q\"\\":" x : y ","e":{},"n":null}"#;
        assert_eq!(text(json, ColorWhen::Never), compact);
        assert_eq!(text("\"ä\u{9b}\"", ColorWhen::Never), "\"ä\\u009b\"");
        assert_eq!(text(" 12 ", ColorWhen::Never), "12");
    }

    #[test]
    fn names_strings_and_other_values_have_different_colours() {
        let colored = text(r#"{"a": "b", "c": 1}"#, ColorWhen::Always);
        assert_eq!(
            colored,
            "{\x1b[34m\"a\"\x1b[0m:\x1b[32m\"b\"\x1b[0m,\x1b[34m\"c\"\x1b[0m:\x1b[33m1\x1b[0m}"
        );
    }

    #[test]
    fn an_incomplete_text_does_not_panic() {
        for json in ["", "\"", "\"\\", "\"ä", "{\"a", "é", "{]\"\\\""] {
            text(json, ColorWhen::Never);
        }
    }
}
