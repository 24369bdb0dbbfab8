//! Colours for people, and text from outside that is safe to print on a terminal.

use crate::args::ColorWhen;
use crate::output::stdout;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;

/// The meaning of a piece of text, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text that readers skip, such as times.
    Faint,
    Topic,
    Seq,
    Key,
    /// The name of a field in JSON.
    JsonName,
    JsonString,
    /// A number, `true`, `false` or `null` in JSON.
    JsonScalar,
    Warning,
}

impl Style {
    /// The parameter of the SGR escape sequence.
    fn code(self) -> &'static str {
        match self {
            Self::Faint => "2",
            Self::Topic => "36",
            Self::Seq => "33",
            Self::Key => "35",
            Self::JsonName => "34",
            Self::JsonString => "32",
            Self::JsonScalar => "33",
            Self::Warning => "31",
        }
    }
}

/// Writes text with colours, or without.
#[derive(Clone, Copy, Debug)]
pub struct Painter {
    is_on: bool,
}

impl Painter {
    /// A painter for an output that is a terminal or not. `--color` takes precedence over `NO_COLOR`.
    pub fn new(when: ColorWhen, is_terminal: bool) -> Self {
        let is_on = match when {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => is_terminal && allows_colors(|name| std::env::var_os(name)),
        };
        Self { is_on }
    }

    /// Appends text in a style.
    pub fn put(self, out: &mut String, style: Style, text: &str) {
        match self.is_on {
            // Writing to a String cannot fail.
            true => drop(write!(out, "\x1b[{}m{text}\x1b[0m", style.code())),
            false => out.push_str(text),
        }
    }
}

/// Whether the environment allows colours: `NO_COLOR` is unset or empty, and the terminal is not `dumb`.
fn allows_colors(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> bool {
    variable("NO_COLOR").is_none_or(|value| value.is_empty())
        && variable("TERM").is_none_or(|value| value != "dumb")
}

/// Text in which characters that could control a terminal are replaced by `\uXXXX`. Inside of JSON strings, the result is the same
/// JSON.
pub fn escape_controls(text: &str) -> Cow<'_, str> {
    if !text.chars().any(controls_terminal) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match controls_terminal(character) {
            // All these characters have at most four digits. Writing to a String cannot fail.
            true => drop(write!(escaped, "\\u{:04x}", u32::from(character))),
            false => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

/// Text of several lines in which characters that could control a terminal are replaced, except for line breaks.
pub fn escape_lines(text: &str) -> String {
    text.split('\n').map(escape_controls).collect::<Vec<_>>().join("\n")
}

/// Prints a line to standard output. On a terminal, characters that could control it are replaced; JSON stays the same JSON.
///
/// # Errors
/// When standard output cannot be written.
pub fn put_line(line: &[u8]) -> std::io::Result<()> {
    let out = stdout();
    let is_terminal = out.is_terminal();
    let mut out = out.lock();
    match is_terminal {
        true => out.write_all(escape_controls(&String::from_utf8_lossy(line)).as_bytes())?,
        false => out.write_all(line)?,
    }
    out.write_all(b"\n")
}

/// Prints the result of a command as one line of JSON.
///
/// # Errors
/// When standard output cannot be written.
pub fn put_json_line(value: &serde_json::Value) -> std::io::Result<()> {
    put_line(value.to_string().as_bytes())
}

/// Control characters (C0, DEL, C1), line separators, and characters that change the direction of text.
fn controls_terminal(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_can_turn_colours_off() {
        let with = |name: &'static str, value: &'static str| {
            allows_colors(move |asked| (asked == name).then(|| value.into()))
        };
        assert!(with("NO_COLOR", "") && with("TERM", "xterm") && with("OTHER", "1"));
        assert!(!with("NO_COLOR", "1") && !with("NO_COLOR", "0") && !with("TERM", "dumb"));
    }

    #[test]
    fn the_flag_takes_precedence_over_the_output() {
        let painted = |when, is_terminal| {
            let mut out = String::new();
            Painter::new(when, is_terminal).put(&mut out, Style::Key, "k");
            out
        };
        assert_eq!(painted(ColorWhen::Always, false), "\x1b[35mk\x1b[0m");
        assert_eq!(painted(ColorWhen::Never, true), "k");
        assert_eq!(painted(ColorWhen::Auto, false), "k");
    }

    #[test]
    fn no_character_of_an_event_controls_the_terminal() {
        let hostile = "a\x1b]0;title\x07\u{9b}31m\n\r\u{7f}\u{202e}\u{2028}é";
        let escaped = escape_controls(hostile);
        assert_eq!(escaped, "a\\u001b]0;title\\u0007\\u009b31m\\u000a\\u000d\\u007f\\u202e\\u2028é");
        assert!(matches!(escape_controls("größer 日本"), Cow::Borrowed(_)));
        assert_eq!(escape_lines("a\x1b[2J\nb\r"), "a\\u001b[2J\nb\\u000d");
    }
}
