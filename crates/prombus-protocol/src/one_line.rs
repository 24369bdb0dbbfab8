//! Foreign text in a line for people: in logs, in errors, on terminals.

/// A text as one line of at most `most` characters, with `…` if it was cut. White space becomes single spaces, and characters that
/// control a terminal are written as `\u001b`.
pub fn one_line(text: &str, most: usize) -> String {
    let mut line = String::new();
    let mut count = 0;
    for word in text.split_whitespace() {
        for (at, character) in std::iter::once(' ').chain(word.chars()).enumerate() {
            if at == 0 && line.is_empty() {
                continue;
            }
            if count == most {
                line.push('…');
                return line;
            }
            count += 1;
            if character.is_control() {
                line.push_str(&format!("\\u{:04x}", u32::from(character)));
            } else {
                line.push(character);
            }
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn a_text_becomes_one_line_without_control_characters() {
        assert_eq!(
            one_line("assertion failed\n  left: 1\n right: 2\n", 100),
            "assertion failed left: 1 right: 2"
        );
        assert_eq!(one_line("\u{1b}[31mred\u{9b}", 100), "\\u001b[31mred\\u009b");
        assert_eq!((one_line("ä ö ü", 3).as_str(), one_line("ä ö ü", 5).as_str()), ("ä ö…", "ä ö ü"));
        assert_eq!((one_line("", 5).as_str(), one_line(" \n", 5).as_str()), ("", ""));
    }
}
