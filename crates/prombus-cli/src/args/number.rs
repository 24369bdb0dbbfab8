//! Parsers for numeric arguments.

/// A number above zero.
pub fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 1e9);
    number.ok_or_else(|| "expected a number above 0 and at most 1e9".to_owned())
}

/// A whole number from 1 to ten million.
pub fn count(text: &str) -> Result<usize, String> {
    let number = text.parse::<usize>().ok().filter(|number| (1..=10_000_000).contains(number));
    number.ok_or_else(|| "expected a whole number from 1 to 10000000".to_owned())
}
