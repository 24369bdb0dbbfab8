//! Placeholders for values that vary in a documented answer: `<number>` and `<text>` match any number or text, `<id>` matches a
//! UUID and `<ts>` a time. A suffix (`<id-2>`) makes a separate placeholder. After its first match, an `<id>` or `<ts>` has that
//! value in all later answers and sent frames.

use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The values of the placeholders.
#[derive(Debug, Default)]
pub struct Placeholders {
    bound: HashMap<String, Value>,
}

/// Parses JSON in which a placeholder may also replace a number, without quotes. `None`: not JSON.
pub fn parse(text: &str) -> Option<Value> {
    let (mut quoted, mut in_string, mut is_escaped) = (String::new(), false, false);
    for character in text.chars() {
        if in_string {
            in_string = is_escaped || character != '"';
            is_escaped = character == '\\' && !is_escaped;
        } else if character == '"' {
            in_string = true;
        }
        match character {
            '<' if !in_string => quoted.push_str("\"<"),
            '>' if !in_string => quoted.push_str(">\""),
            other => quoted.push(other),
        }
    }
    serde_json::from_str(&quoted).ok()
}

fn name_of(value: &Value) -> Option<&str> {
    value.as_str()?.strip_prefix('<')?.strip_suffix('>')
}

impl Placeholders {
    /// Checks that an answer is as documented. The error says where it differs.
    pub fn check(&mut self, expected: &Value, got: &Value) -> Result<(), String> {
        if let Some(name) = name_of(expected) {
            return self.check_one(name, got);
        }
        let differs = || Err(format!("expected {expected}, got {got}"));
        match (expected, got) {
            (Value::Object(expected), Value::Object(got)) => self.check_fields(expected, got),
            (Value::Array(expected), Value::Array(got)) if expected.len() == got.len() => {
                expected.iter().zip(got).try_for_each(|(expected, got)| self.check(expected, got))
            }
            _ if expected == got => Ok(()),
            _ => differs(),
        }
    }

    fn check_fields(
        &mut self,
        expected: &Map<String, Value>,
        got: &Map<String, Value>,
    ) -> Result<(), String> {
        if let Some(name) = got.keys().find(|name| !expected.contains_key(*name)) {
            return Err(format!("{name:?} is not documented: {}", got[name]));
        }
        for (name, expected) in expected {
            let got = got.get(name).ok_or_else(|| format!("{name:?} is missing"))?;
            self.check(expected, got).map_err(|error| format!("{name:?}: {error}"))?;
        }
        Ok(())
    }

    fn check_one(&mut self, name: &str, got: &Value) -> Result<(), String> {
        let kind = name.split('-').next().unwrap_or(name);
        let fits = match kind {
            "number" | "ts" => got.is_u64(),
            "text" => got.is_string(),
            "id" => got.as_str().is_some_and(|text| uuid::Uuid::try_parse(text).is_ok()),
            _ => return Err(format!("<{name}> is not a placeholder")),
        };
        if !fits {
            return Err(format!("expected <{name}>, got {got}"));
        }
        if matches!(kind, "id" | "ts") {
            let bound = self.bound.entry(name.to_owned()).or_insert_with(|| got.clone());
            if bound != got {
                return Err(format!("<{name}> is {bound}, got {got}"));
            }
        }
        Ok(())
    }

    /// A frame to send: placeholders are replaced by their values, and `<1000 bytes>` by a text of that size.
    pub fn fill(&self, value: &Value) -> Value {
        if let Some(name) = name_of(value) {
            if let Some(bytes) = name.strip_suffix(" bytes") {
                return json!("x".repeat(bytes.parse().expect("a number of bytes")));
            }
            return self.bound.get(name).unwrap_or_else(|| panic!("<{name}> is not known yet")).clone();
        }
        match value {
            Value::Array(items) => items.iter().map(|item| self.fill(item)).collect(),
            Value::Object(fields) => {
                Value::Object(fields.iter().map(|(name, value)| (name.clone(), self.fill(value))).collect())
            }
            other => other.clone(),
        }
    }

    /// Replaces the placeholders in a text that is not JSON.
    pub fn fill_text(&self, text: &str) -> String {
        self.bound.iter().fold(text.to_owned(), |text, (name, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.replace(&format!("<{name}>"), &value)
        })
    }
}

#[test]
fn a_placeholder_keeps_its_first_value() {
    let mut placeholders = Placeholders::default();
    let (one, other) = ("0196f1d0-1c2a-7b3c-8d4e-5f6071829304", "0196f1d0-1c2a-7b3c-8d4e-5f6071829305");
    let expected = parse("{\"id\": \"<id>\", \"n\": [<number>, \"a < b\"]}").expect("JSON");
    assert_eq!(placeholders.check(&expected, &json!({"id": one, "n": [1, "a < b"]})), Ok(()));
    assert_eq!(placeholders.check(&expected, &json!({"id": one, "n": [2, "a < b"]})), Ok(()));
    for wrong in [
        json!({"id": other, "n": [1, "a < b"]}),
        json!({"id": one, "n": ["1", "a < b"]}),
        json!({"id": one, "n": [1]}),
        json!({"id": one}),
        json!({"id": one, "n": [1, "a < b"], "more": 1}),
    ] {
        assert!(placeholders.check(&expected, &wrong).is_err(), "{wrong}");
    }
    assert_eq!(
        placeholders.fill(&json!({"after": "<id>", "big": "<3 bytes>"})),
        json!({"after": one, "big": "xxx"})
    );
    assert_eq!(placeholders.fill_text("?id=<id>"), format!("?id={one}"));
}
