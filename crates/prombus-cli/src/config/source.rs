//! Settings as given: each value with its origin, so that an error can name a bad value by its flag, variable, or key and line.

use super::problems::Problem;
use super::setting::number_of;
use std::collections::BTreeMap;
use std::ops::Bound;
use toml::{Table, Value};

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// A flag, a variable, or `file:line: key`.
    pub called: String,
    /// The line in the file; zero for flags and variables.
    pub line: usize,
}

/// Values with their origins: those of a file, of the environment, of flags, or a merge of these.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The values, in the structure of the config file.
    pub table: Table,
    /// The origin of each value, by path.
    pub origins: BTreeMap<String, Origin>,
}

impl Source {
    /// Sets a key outside of lists of tables. `called` is the flag or variable that gave the value.
    pub fn set(&mut self, path: &str, called: &str, value: impl Into<Value>) {
        let mut table = &mut self.table;
        let mut steps = path.split('.').peekable();
        while let Some(step) = steps.next() {
            if steps.peek().is_none() {
                table.insert(step.to_owned(), value.into());
                break;
            }
            let next = table.entry(step).or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(inner) = next else { break };
            table = inner;
        }
        self.origins.insert(path.to_owned(), Origin { called: called.to_owned(), line: 0 });
    }

    /// The value at a path outside of lists of tables.
    pub fn get(&self, path: &str) -> Option<&Value> {
        let mut steps = path.split('.');
        let first = self.table.get(steps.next()?)?;
        steps.try_fold(first, |value, step| value.get(step))
    }

    /// The text at a path.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.get(path)?.as_str()
    }

    /// The list of texts at a path.
    pub fn texts(&self, path: &str) -> Option<Vec<&str>> {
        Some(self.get(path)?.as_array()?.iter().filter_map(Value::as_str).collect())
    }

    /// The number at a path.
    pub fn number(&self, path: &str) -> Option<f64> {
        number_of(self.get(path)?)
    }

    /// The list of tables at a path, each with its own path.
    pub fn tables(&self, path: &str) -> Vec<(String, &Table)> {
        let tables =
            self.get(path).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table);
        tables.enumerate().map(|(at, table)| (format!("{path}[{at}]"), table)).collect()
    }

    /// Merges `upper` into this source. Values of `upper` take precedence.
    pub fn merge(&mut self, upper: Self) {
        merge_tables(&mut self.table, upper.table);
        for (path, origin) in upper.origins {
            // If a list is replaced, the origins of its old elements are removed too.
            let elements = format!("{path}[");
            let from = (Bound::Included(elements.clone()), Bound::Unbounded);
            let stale: Vec<_> = self
                .origins
                .range::<String, _>(from)
                .map(|(path, _)| path.clone())
                .take_while(|path| path.starts_with(&elements))
                .collect();
            for path in stale {
                self.origins.remove(&path);
            }
            self.origins.insert(path, origin);
        }
    }

    /// The origin of the value at a path, or of the nearest enclosing list or table that has one.
    pub fn origin(&self, path: &str) -> Option<&Origin> {
        let mut path = path;
        loop {
            if let Some(origin) = self.origins.get(path) {
                return Some(origin);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// A problem in one line: where it is, and what is wrong.
    pub fn describe(&self, problem: &Problem) -> String {
        let called = self.origin(&problem.path).map_or(&problem.path, |origin| &origin.called);
        format!("{called}: {}", problem.why)
    }

    /// Problems as lines, in the order of the file.
    pub fn describe_all(&self, problems: &[Problem]) -> Vec<String> {
        let mut problems: Vec<_> = problems.iter().collect();
        problems.sort_by_key(|problem| self.origin(&problem.path).map_or(0, |origin| origin.line));
        problems.into_iter().map(|problem| self.describe(problem)).collect()
    }
}

fn merge_tables(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(lower)), Value::Table(upper)) => merge_tables(lower, upper),
            (_, value) => {
                lower.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(path: &str, why: &str) -> Problem {
        Problem { path: path.to_owned(), why: why.to_owned() }
    }

    #[test]
    fn the_upper_source_takes_precedence_key_by_key() {
        let mut lower = Source::default();
        lower.set("data", "file:1: data", "a");
        lower.set("limits.max_topics", "file:2: limits.max_topics", 1);
        lower.set("limits.max_groups", "file:3: limits.max_groups", 2);
        let mut upper = Source::default();
        upper.set("limits.max_groups", "PROMBUS_LIMITS_MAX_GROUPS", 3);
        lower.merge(upper);
        assert_eq!(lower.table["limits"]["max_topics"].as_integer(), Some(1));
        assert_eq!(lower.table["limits"]["max_groups"].as_integer(), Some(3));
        let described = lower.describe(&problem("limits.max_groups", "is bad"));
        assert_eq!(described, "PROMBUS_LIMITS_MAX_GROUPS: is bad");
    }

    #[test]
    fn replacing_a_list_replaces_the_origins_of_its_elements() {
        let mut lower = Source::default();
        lower.set("listen", "file:1: listen", vec!["a"]);
        lower
            .origins
            .insert("listen[0]".to_owned(), Origin { called: "file:1: listen[0]".to_owned(), line: 1 });
        let mut upper = Source::default();
        upper.set("listen", "--listen", vec!["b"]);
        lower.merge(upper);
        assert_eq!(lower.describe(&problem("listen[0]", "no")), "--listen: no");
    }
}
