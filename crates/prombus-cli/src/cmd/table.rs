//! Formats tables with aligned columns. Characters that could control the terminal are replaced.

use super::style::escape_controls;
use std::borrow::Cow;

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

/// The lines of a table: the column names, then the rows.
pub fn lines(columns: &[(&str, Side)], rows: &[Vec<String>]) -> String {
    let cells = |row: &'_ Vec<String>| row.iter().map(|cell| escape_controls(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let width = |column: usize, name: &str| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).chain([name.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> =
        columns.iter().enumerate().map(|(column, (name, _))| width(column, name)).collect();
    let head: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(&rows) {
        let mut line = String::new();
        for ((cell, width), (_, side)) in row.iter().zip(&widths).zip(columns) {
            let gap = " ".repeat(width - cell.chars().count());
            match side {
                Side::Left => line.extend([cell.as_str(), &gap, "  "]),
                Side::Right => line.extend([gap.as_str(), cell, "  "]),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The text on one line, shortened to `chars_max` characters. Characters that could control the terminal are replaced afterwards.
pub fn shortened(text: &str, chars_max: usize) -> String {
    let mut short: String = text
        .chars()
        .take(chars_max)
        .map(|character| if matches!(character, '\n' | '\r' | '\t') { ' ' } else { character })
        .collect();
    if text.chars().nth(chars_max).is_some() {
        short.pop();
        short.push('…');
    }
    match escape_controls(&short) {
        Cow::Borrowed(_) => short,
        Cow::Owned(escaped) => escaped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_text() {
        let rows = [vec!["a".to_owned(), "1000".to_owned()], vec!["größer".to_owned(), "2".to_owned()]];
        let text = lines(&[("NAME", Side::Left), ("N", Side::Right)], &rows);
        assert_eq!(text, "NAME       N\na       1000\ngrößer     2\n");
    }

    #[test]
    fn a_shortened_text_ends_with_an_ellipsis() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcd", 3), "ab…");
        assert_eq!(shortened("a\nb", 3), "a b");
    }

    #[test]
    fn no_text_controls_the_terminal() {
        assert_eq!(shortened("a\x1b[2J\u{9b}1m", 20), "a\\u001b[2J\\u009b1m");
        let rows = [vec!["a\x1b[2J".to_owned()], vec!["b".to_owned()]];
        assert_eq!(lines(&[("NAME", Side::Left)], &rows), "NAME\na\\u001b[2J\nb\n");
    }
}
