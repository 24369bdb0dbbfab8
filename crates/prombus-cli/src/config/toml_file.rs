//! Parses a config file and reports every unknown key and every value of the wrong type, each with its line.

use super::definitions;
use super::problems::{Problem, Problems};
use super::setting::Kind;
use super::source::{Origin, Source};
use super::suggestion::nearest;
use std::collections::BTreeSet;
use toml::Table;
use toml::de::{DeTable, DeValue};

/// A parsed config file.
#[derive(Debug)]
pub struct TomlFile {
    /// The line of each key and, if the file is valid, its value.
    pub source: Source,
    /// Unknown keys and values of the wrong type.
    pub problems: Vec<Problem>,
}

/// Parses the text of a config file.
///
/// # Errors
/// A message of one line if the text is not valid TOML.
pub fn read(file: &str, text: &str) -> Result<TomlFile, String> {
    let not_toml = |error: toml::de::Error| {
        let line = error.span().map_or(1, |span| line_at(text, span.start));
        format!("{file}:{line}: {}", error.message())
    };
    let table = DeTable::parse(text).map_err(not_toml)?;
    let mut walk = Walk { file, text, source: Source::default(), problems: Problems::default() };
    walk.table("", "", table.get_ref());
    let Walk { mut source, problems: Problems { found: problems }, .. } = walk;
    if problems.is_empty() {
        source.table = toml::from_str::<Table>(text).map_err(not_toml)?;
    }
    Ok(TomlFile { source, problems })
}

fn line_at(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}

/// A walk over the tables of a config file.
struct Walk<'a> {
    /// The name of the file.
    file: &'a str,
    /// The content of the file.
    text: &'a str,
    source: Source,
    problems: Problems,
}

impl Walk<'_> {
    /// Checks a table. `defined` is its path in the definitions (`topic[]`), `path` its path in the file (`topic[0]`).
    fn table(&mut self, defined: &str, path: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let defined = join(defined, key.get_ref());
            let path = join(path, key.get_ref());
            self.locate(&path, key.span().start);
            let value = value.get_ref();
            match defined_at(&defined) {
                None => self.unknown(&path),
                Some(Defined::Key(kind)) => self.value(&path, kind, value),
                Some(Defined::Table) => match value.as_table() {
                    Some(inner) => self.table(&defined, &path, inner),
                    None => {
                        self.problems
                            .add(&path, format!("must be a table: write [{path}] and its keys below"));
                    }
                },
                Some(Defined::Tables) => self.tables(&defined, &path, value),
            }
        }
    }

    fn tables(&mut self, defined: &str, path: &str, value: &DeValue<'_>) {
        let expected =
            format!("must be a list of tables: write [[{path}]] for each table, and its keys below");
        let Some(array) = value.as_array() else { return self.problems.add(path, expected) };
        for (number, element) in array.iter().enumerate() {
            let element_path = format!("{path}[{number}]");
            self.locate(&element_path, element.span().start);
            match element.get_ref().as_table() {
                Some(inner) => self.table(&format!("{defined}[]"), &element_path, inner),
                None => self.problems.add(element_path, expected.clone()),
            }
        }
    }

    fn value(&mut self, path: &str, kind: &Kind, value: &DeValue<'_>) {
        let fits = match kind {
            Kind::Text => value.is_str(),
            Kind::Switch => value.is_bool(),
            Kind::Number(_) => value.is_integer() || value.is_float(),
            Kind::Whole(_) => is_whole(value),
            Kind::Texts => value.as_array().is_some_and(|array| {
                for (number, element) in array.iter().enumerate() {
                    self.locate(&format!("{path}[{number}]"), element.span().start);
                }
                array.iter().all(|element| element.get_ref().is_str())
            }),
        };
        if !fits {
            self.problems.add(path, format!("expected {}", kind.expected()));
        }
    }

    fn unknown(&mut self, path: &str) {
        let plain = without_numbers(path);
        let known = known_paths();
        let why = match nearest(&plain, known.iter().map(String::as_str)) {
            Some(near) => format!("unknown key; did you mean {near}?"),
            None => "unknown key; `prombus config default` prints all keys".to_owned(),
        };
        self.problems.add(path, why);
    }

    fn locate(&mut self, path: &str, offset: usize) {
        let line = line_at(self.text, offset);
        let called = format!("{}:{line}: {path}", self.file);
        self.source.origins.insert(path.to_owned(), Origin { called, line });
    }
}

/// An entry of the definitions.
enum Defined {
    /// A key with a value.
    Key(&'static Kind),
    /// A table, `[path]`.
    Table,
    /// A list of tables, `[[path]]`.
    Tables,
}

/// The entry at a path of the definitions, e.g. `auth.token[].name`.
fn defined_at(path: &str) -> Option<Defined> {
    definitions::all().find_map(|setting| {
        let rest = setting.path.strip_prefix(path)?;
        match rest.as_bytes() {
            [] => Some(Defined::Key(&setting.kind)),
            [b'.', ..] => Some(Defined::Table),
            [b'[', ..] => Some(Defined::Tables),
            _ => None,
        }
    })
}

/// Every valid path: keys and their tables, without list indexes.
fn known_paths() -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for setting in definitions::all() {
        let key = setting.path.replace("[]", "");
        paths.extend(key.match_indices('.').map(|(at, _)| key[..at].to_owned()));
        paths.insert(key);
    }
    paths
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Whether the value is a whole number that is not negative and fits TOML's 64-bit signed integers.
fn is_whole(value: &DeValue<'_>) -> bool {
    value.as_integer().is_some_and(|integer| {
        u64::from_str_radix(integer.as_str(), integer.radix())
            .is_ok_and(|number| i64::try_from(number).is_ok())
    })
}

fn without_numbers(path: &str) -> String {
    let mut plain = String::new();
    for part in path.split('[') {
        plain.push_str(part.split_once(']').map_or(part, |(_, rest)| rest));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let document = read("p.toml", text).unwrap();
        document.source.describe_all(&document.problems)
    }

    #[test]
    fn every_unknown_key_is_reported_with_its_line_and_the_nearest_known_key() {
        let text = "lisen = []\n\n[limits]\nmax_conections = 5\nmax_topics = 7\n[limit]\na = 1\nb = 2\n\
                    [[auth.token]]\nnme = \"x\"\n[frobnicate]\n";
        assert_eq!(
            problems(text),
            [
                "p.toml:1: lisen: unknown key; did you mean listen?",
                "p.toml:4: limits.max_conections: unknown key; did you mean limits.max_connections?",
                "p.toml:6: limit: unknown key; did you mean limits?",
                "p.toml:10: auth.token[0].nme: unknown key; did you mean auth.token.name?",
                "p.toml:11: frobnicate: unknown key; `prombus config default` prints all keys",
            ]
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_is_reported_with_its_line_and_without_the_value() {
        let text = "listen = \"x\"\ninsecure = 1\n[limits]\nmax_topics = -1\nmax_groups = 1.5\n[auth.jwt]\nsecret = 4711\n";
        let found = problems(text);
        assert_eq!(found[0], "p.toml:1: listen: expected a list of strings, e.g. [\"one\", \"two\"]");
        assert_eq!(found[1], "p.toml:2: insecure: expected true or false");
        assert_eq!(found[2], "p.toml:4: limits.max_topics: expected a whole number that is not negative");
        assert_eq!(found[3], "p.toml:5: limits.max_groups: expected a whole number that is not negative");
        assert_eq!(found[4], "p.toml:7: auth.jwt.secret: expected a string in quotes");
        assert!(!found.join("").contains("4711"));
    }

    #[test]
    fn a_table_in_the_wrong_form_is_reported_with_the_right_form() {
        assert_eq!(
            problems("limits = 5"),
            ["p.toml:1: limits: must be a table: write [limits] and its keys below"]
        );
        assert!(problems("[topic]\nname = \"a\"")[0].contains("write [[topic]]"));
        assert!(problems("topic = [1]")[0].starts_with("p.toml:1: topic[0]: must be a list of tables"));
    }

    #[test]
    fn a_toml_syntax_error_is_reported_with_its_line() {
        let error = read("p.toml", "data = \"x\"\nlisten = [\n\n").unwrap_err();
        assert!(error.starts_with("p.toml:"), "{error}");
        let error = read("p.toml", "data = \"x\"\ndata = \"y\"\n").unwrap_err();
        assert!(error.starts_with("p.toml:2: "), "{error}");
    }

    #[test]
    fn tables_are_distinguished_from_keys_with_the_same_prefix() {
        assert!(matches!(defined_at("log"), Some(Defined::Key(Kind::Text))));
        assert!(matches!(defined_at("auth"), Some(Defined::Table)));
        assert!(matches!(defined_at("auth.token"), Some(Defined::Tables)));
        assert!(matches!(defined_at("auth.token[].hash"), Some(Defined::Key(Kind::Text))));
        assert!(defined_at("aut").is_none());
        assert!(defined_at("limits.max").is_none());
    }

    #[test]
    fn every_toml_notation_of_a_whole_number_is_accepted() {
        assert!(problems("[limits]\nmax_topics = 1_000\nmax_groups = 0x10\nmax_connections = +5").is_empty());
        assert_eq!(problems("[limits]\nmax_topics = 99999999999999999999").len(), 1);
    }
}
