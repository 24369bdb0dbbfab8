//! Collects the problems of the settings, so that the user sees all of them at once. Problems never contain a secret.

use crate::messages::{io_reason, one_line};
use prombus_protocol::Pattern;
use std::error::Error;
use std::path::Path;
use std::str::FromStr;

/// A problem with the value at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The path, e.g. `auth.token[0].hash`.
    pub path: String,
    /// The problem.
    pub why: String,
}

/// The problems found so far.
#[derive(Debug, Default)]
pub struct Problems {
    /// In the order in which they were found.
    pub found: Vec<Problem>,
}

impl Problems {
    /// Adds a problem with the value at a path.
    pub fn add(&mut self, path: impl Into<String>, why: impl Into<String>) {
        self.found.push(Problem { path: path.into(), why: why.into() });
    }

    /// Parses a text. A parse error becomes a problem.
    pub fn parsed<T: FromStr<Err: Error + Send + Sync + 'static>>(
        &mut self,
        path: &str,
        text: &str,
    ) -> Option<T> {
        let parsed = text.parse().map_err(anyhow::Error::from);
        parsed.map_err(|error| self.add(path, one_line(&error))).ok()
    }

    /// Parses a topic pattern.
    pub fn pattern(&mut self, path: &str, text: &str) -> Option<Pattern> {
        Pattern::new(text).map_err(|error| self.add(path, error.to_string())).ok()
    }

    /// Returns a required text, trimmed. A missing or empty one is a problem.
    pub fn required<'a>(&mut self, table: &str, key: &str, value: Option<&'a str>) -> Option<&'a str> {
        match value.map(str::trim) {
            None => self.add(table, format!("{key} is missing")),
            Some("") => self.add(format!("{table}.{key}"), "is empty"),
            Some(text) => return Some(text),
        }
        None
    }

    /// Checks that a file can be read.
    pub fn file(&mut self, path: &str, file: &str) {
        if Path::new(file).is_dir() {
            self.add(path, format!("{file} is a folder, not a file"));
        } else if let Err(error) = std::fs::File::open(file) {
            self.add(path, format!("cannot read {file}: {}", io_reason(&error)));
        }
    }
}
