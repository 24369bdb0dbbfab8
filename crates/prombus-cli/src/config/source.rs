//! Settings as they were given: values, and for each where it came from, so that a bad value can be named the way it was
//! written.

use super::problems::Problem;
use super::setting::number_of;
use std::collections::BTreeMap;
use std::ops::Bound;
use toml::{Table, Value};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// A flag, a variable, or `file:line: key`.
    pub called: String,
    /// Its line in the file, zero for others.
    pub line: usize,
}

/// Values and where they came from: those of a file, of the environment, of flags, or of several put together.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The values, shaped as the config file is.
    pub table: Table,
    /// By path.
    pub origins: BTreeMap<String, Origin>,
}

impl Source {
    /// Sets a key outside of lists of tables, which a flag or a variable gave.
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

    /// Puts the values of `upper` over these: they replace those of the same keys.
    pub fn put_over(&mut self, upper: Self) {
        merge(&mut self.table, upper.table);
        for (path, origin) in upper.origins {
            // The elements of a replaced list are gone, and so is where they came from.
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

    /// Where the value at a path came from, or that of the nearest thing around it.
    pub fn origin(&self, path: &str) -> Option<&Origin> {
        let mut path = path;
        loop {
            if let Some(origin) = self.origins.get(path) {
                return Some(origin);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// A problem in one line: where, and what is wrong.
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

fn merge(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(lower)), Value::Table(upper)) => merge(lower, upper),
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
    fn the_upper_source_wins_key_by_key() {
        let mut lower = Source::default();
        lower.set("data", "file:1: data", "a");
        lower.set("limits.max_topics", "file:2: limits.max_topics", 1);
        lower.set("limits.max_groups", "file:3: limits.max_groups", 2);
        let mut upper = Source::default();
        upper.set("limits.max_groups", "PROMBUS_LIMITS_MAX_GROUPS", 3);
        lower.put_over(upper);
        assert_eq!(lower.table["limits"]["max_topics"].as_integer(), Some(1));
        assert_eq!(lower.table["limits"]["max_groups"].as_integer(), Some(3));
        let described = lower.describe(&problem("limits.max_groups", "is bad"));
        assert_eq!(described, "PROMBUS_LIMITS_MAX_GROUPS: is bad");
    }

    #[test]
    fn a_replaced_list_takes_its_elements_lines_along() {
        let mut lower = Source::default();
        lower.set("listen", "file:1: listen", vec!["a"]);
        lower
            .origins
            .insert("listen[0]".to_owned(), Origin { called: "file:1: listen[0]".to_owned(), line: 1 });
        let mut upper = Source::default();
        upper.set("listen", "--listen", vec!["b"]);
        lower.put_over(upper);
        assert_eq!(lower.describe(&problem("listen[0]", "no")), "--listen: no");
    }
}
