//! Writes JSON, as far as the results need it.

use std::fmt;

/// A JSON value.
#[derive(Clone, Debug)]
pub enum Json {
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl From<f64> for Json {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::Number(number as f64)
    }
}

impl From<usize> for Json {
    fn from(number: usize) -> Self {
        Self::Number(number as f64)
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) if number.is_finite() => write!(formatter, "{number}"),
            Self::Number(_) => write!(formatter, "null"),
            Self::Text(text) => write_text(text, formatter),
            Self::List(items) => {
                write!(formatter, "[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(formatter, "{}\n{item}", if at > 0 { "," } else { "" })?;
                }
                write!(formatter, "]")
            }
            Self::Object(fields) => {
                write!(formatter, "{{")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    write!(formatter, "{}\"{name}\": {value}", if at > 0 { ", " } else { "" })?;
                }
                write!(formatter, "}}")
            }
        }
    }
}

fn write_text(text: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(formatter, "\"")?;
    for character in text.chars() {
        match character {
            '"' | '\\' => write!(formatter, "\\{character}")?,
            control if control < ' ' => write!(formatter, "\\u{:04x}", control as u32)?,
            other => write!(formatter, "{other}")?,
        }
    }
    write!(formatter, "\"")
}
