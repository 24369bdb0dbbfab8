//! The definition of a setting: its path in the config file, its type and range, its field in [`Settings`], its flag and its
//! documentation. The settings themselves are in `definitions`.

use super::problems::Problems;
use super::settings::Settings;
use prombus_bench::report::grouped;
use std::ops::RangeInclusive;
use std::time::Duration;
use toml::Value;

/// For a number whose range is checked where its section is parsed, not here.
pub const CHECKED_BY_SECTION: RangeInclusive<u64> = 0..=u64::MAX;

/// The definition of a setting.
pub struct Setting {
    /// The path in the config file, e.g. `limits.max_topics`; `[]` marks a list of tables.
    pub path: &'static str,
    /// Its type and range.
    pub kind: Kind,
    /// The field that its value is written to.
    pub field: Field,
    /// Its flag, if it has one.
    pub flag: Option<Flag>,
    /// The value that `prombus.toml` shows.
    pub shown: Shown,
    /// Whether SIGHUP reloads it. Also true for all keys of a section with `is_reloaded`.
    pub is_reloaded: bool,
    /// What it does, in one paragraph.
    pub doc: &'static str,
}

/// A flag of `serve`.
pub struct Flag {
    /// The name without its dashes, e.g. `tls-cert`.
    pub name: &'static str,
    /// The name of its value in `--help`; empty for switches.
    pub value_name: &'static str,
}

/// The type of a setting, and the range of numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `"text"`
    Text,
    /// `["text", …]`
    Texts,
    /// A whole number that is not negative.
    Whole(RangeInclusive<u64>),
    /// Any number.
    Number(RangeInclusive<f64>),
    /// `true` or `false`
    Switch,
}

/// The field that a setting's value is written to. The setting's default is the value of this field in [`Settings::default`].
pub enum Field {
    /// A count, a number of bytes, or a number of milliseconds.
    Number(fn(&mut Settings) -> &mut dyn Number),
    /// A switch.
    Switch(fn(&mut Settings) -> &mut bool),
    /// A list of texts, and a check of each text. The check returns a description of the expected text as its error.
    Texts(fn(&mut Settings) -> &mut Vec<String>, fn(&str) -> Result<(), &'static str>),
    /// No field: `validate` or `auth` reads the value.
    Section,
}

/// A field that holds a number. The fields of [`Settings`] that hold numbers have several types.
pub trait Number {
    /// Sets the number.
    fn set(&mut self, number: u64);
    /// The number, if the field has one.
    fn get(&self) -> Option<u64>;
}

/// Implements [`Number`] for integer types.
macro_rules! plain_number {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn set(&mut self, number: u64) {
                *self = Self::try_from(number).unwrap_or(Self::MAX);
            }

            fn get(&self) -> Option<u64> {
                u64::try_from(*self).ok()
            }
        }
    )*};
}
plain_number!(usize, u64, i64);

impl Number for Option<u64> {
    fn set(&mut self, number: u64) {
        *self = Some(number);
    }

    fn get(&self) -> Option<u64> {
        *self
    }
}

/// A duration, as a number of milliseconds.
impl Number for Duration {
    fn set(&mut self, number: u64) {
        *self = Self::from_millis(number);
    }

    fn get(&self) -> Option<u64> {
        u64::try_from(self.as_millis()).ok()
    }
}

/// The value that `prombus.toml` shows for a setting.
pub enum Shown {
    /// The default of its field.
    FieldDefault,
    /// This default, in TOML.
    Default(&'static str),
    /// An example in TOML, and the default in words.
    Example(&'static str, &'static str),
}

impl Setting {
    pub(super) const fn new(path: &'static str, kind: Kind, field: Field, doc: &'static str) -> Self {
        Self { path, kind, field, flag: None, shown: Shown::FieldDefault, is_reloaded: false, doc }
    }

    pub(super) const fn flag(self, name: &'static str, value_name: &'static str) -> Self {
        Self { flag: Some(Flag { name, value_name }), ..self }
    }

    pub(super) const fn default(self, toml: &'static str) -> Self {
        Self { shown: Shown::Default(toml), ..self }
    }

    pub(super) const fn example(self, toml: &'static str, default: &'static str) -> Self {
        Self { shown: Shown::Example(toml, default), ..self }
    }

    pub(super) const fn reloaded(self) -> Self {
        Self { is_reloaded: true, ..self }
    }

    /// The last part of the path.
    pub fn key(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    /// Whether it is a key of a list of tables. Such keys can be set only in the config file.
    pub fn is_in_list(&self) -> bool {
        self.path.contains('[')
    }

    /// The environment variable; `None` for keys of lists of tables.
    pub fn variable(&self) -> Option<String> {
        (!self.is_in_list()).then(|| format!("PROMBUS_{}", self.path.replace('.', "_").to_uppercase()))
    }

    /// Writes a value to the setting's field. A value that is out of range is not written, but reported as a problem.
    pub fn apply(&self, settings: &mut Settings, value: &Value, problems: &mut Problems) {
        if let Err(why) = self.kind.check_range(value) {
            return problems.add(self.path, why);
        }
        match &self.field {
            Field::Number(place) => place(settings).set(value.as_integer().map_or(0, i64::unsigned_abs)),
            Field::Switch(place) => *place(settings) = value.as_bool().unwrap_or_default(),
            Field::Texts(place, check) => {
                let texts: Vec<&str> =
                    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                for (at, text) in texts.iter().enumerate() {
                    if let Err(expected) = check(text) {
                        problems
                            .add(format!("{}[{at}]", self.path), format!("{text:?}: expected {expected}"));
                    }
                }
                *place(settings) = texts.into_iter().map(str::to_owned).collect();
            }
            Field::Section => {}
        }
    }

    /// The default of the field, if it is a number.
    pub fn default_number(&self) -> Option<u64> {
        match &self.field {
            Field::Number(place) => place(&mut Settings::default()).get(),
            _ => None,
        }
    }

    /// The default in TOML, or in words if TOML cannot express it.
    pub fn default_toml(&self) -> String {
        let mut settings = Settings::default();
        match (&self.shown, &self.field) {
            (Shown::Default(toml), _) => (*toml).to_owned(),
            (Shown::Example(_, words), _) => (*words).to_owned(),
            (_, Field::Switch(place)) => place(&mut settings).to_string(),
            (_, Field::Texts(place, _)) => format!("{:?}", place(&mut settings)),
            _ => self
                .default_number()
                .map(|number| grouped(number as f64).replace(',', "_"))
                .unwrap_or_default(),
        }
    }
}

impl Kind {
    /// The expected type, for error messages.
    pub fn expected(&self) -> &'static str {
        match self {
            Self::Text => "a string in quotes",
            Self::Texts => "a list of strings, e.g. [\"one\", \"two\"]",
            Self::Whole(_) => "a whole number that is not negative",
            Self::Number(_) => "a number",
            Self::Switch => "true or false",
        }
    }

    /// The range in words, for numbers with a range.
    pub fn range_text(&self) -> Option<String> {
        match self {
            Self::Whole(range) if *range == CHECKED_BY_SECTION => None,
            Self::Whole(range) if *range.end() == u64::MAX => Some(format!("at least {}", range.start())),
            Self::Whole(range) => Some(format!("{} to {}", range.start(), range.end())),
            Self::Number(range) if range.end().is_infinite() => None,
            Self::Number(range) if *range.start() == f64::MIN_POSITIVE => {
                Some(format!("more than 0 and at most {}", range.end()))
            }
            Self::Number(range) => Some(format!("{} to {}", range.start(), range.end())),
            Self::Text | Self::Texts | Self::Switch => None,
        }
    }

    fn check_range(&self, value: &Value) -> Result<(), String> {
        let is_inside = match (self, value) {
            (Self::Whole(range), Value::Integer(number)) => {
                u64::try_from(*number).is_ok_and(|number| range.contains(&number))
            }
            // NaN is in no range.
            (Self::Number(range), _) => number_of(value).is_some_and(|number| range.contains(&number)),
            _ => true,
        };
        match self.range_text() {
            Some(range) if !is_inside => Err(format!("{value}: expected {range}")),
            _ => Ok(()),
        }
    }
}

/// A number with or without a fraction.
pub fn number_of(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|number| number as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_out_of_range_is_a_problem_and_keeps_the_default() {
        let setting = |range| {
            Setting::new("a", Kind::Whole(range), Field::Number(|s| &mut s.bus.limits.max_topics), "")
        };
        let (mut settings, mut problems) = (Settings::default(), Problems::default());
        setting(1..=u64::MAX).apply(&mut settings, &Value::Integer(0), &mut problems);
        setting(1..=10).apply(&mut settings, &Value::Integer(11), &mut problems);
        let whys: Vec<&str> = problems.found.iter().map(|problem| problem.why.as_str()).collect();
        assert_eq!(whys, ["0: expected at least 1", "11: expected 1 to 10"]);
        assert_eq!(settings.bus.limits.max_topics, Settings::default().bus.limits.max_topics);
        setting(1..=10).apply(&mut settings, &Value::Integer(3), &mut problems);
        assert_eq!((settings.bus.limits.max_topics, problems.found.len()), (3, 2));
    }

    #[test]
    fn a_rate_is_a_number_above_zero() {
        let kind = Kind::Number(f64::MIN_POSITIVE..=1e9);
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(kind.check_range(&Value::Float(bad)).is_err(), "{bad}");
        }
        assert!(kind.check_range(&Value::Integer(200)).is_ok());
        assert!(kind.check_range(&Value::Float(0.5)).is_ok());
    }
}
