//! The settings of the process, as `GET /settings` shows them. The program that runs the server fills the list: the server itself
//! knows neither config files nor flags.

use parking_lot::RwLock;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// A list of settings. Clones share the list, so the program can replace it while the server runs.
#[derive(Clone, Debug, Default)]
pub struct ShownSettings {
    list: Arc<RwLock<Arc<[ShownSetting]>>>,
}

/// A setting with its effective value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShownSetting {
    /// Its path in the config file, e.g. `limits.max_topics` or `topic[0].name`.
    pub name: String,
    /// Its value; null if it has none. A secret must not be in it.
    pub value: Value,
    /// What kind of source the value comes from.
    pub source: SettingSource,
    /// Where in the source the value is: `file:line`, the name of an environment variable, or a flag. `None` for defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// The kind of source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingSource {
    /// The value is the default.
    Default,
    /// A config file.
    File,
    /// An environment variable.
    Env,
    /// A command-line flag.
    Flag,
}

impl ShownSettings {
    /// A list with these settings.
    pub fn new(settings: Vec<ShownSetting>) -> Self {
        let shown = Self::default();
        shown.replace(settings);
        shown
    }

    /// Replaces all settings, for example after a reload.
    pub fn replace(&self, settings: Vec<ShownSetting>) {
        *self.list.write() = settings.into();
    }

    /// The current settings.
    pub fn list(&self) -> Arc<[ShownSetting]> {
        Arc::clone(&self.list.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_list() {
        let setting = |value: i64| ShownSetting {
            name: "limits.max_topics".to_owned(),
            value: value.into(),
            source: SettingSource::Env,
            place: Some("PROMBUS_LIMITS_MAX_TOPICS".to_owned()),
        };
        let shown = ShownSettings::new(vec![setting(1)]);
        let clone = shown.clone();
        shown.replace(vec![setting(2)]);
        assert_eq!(*clone.list(), [setting(2)]);
        let json = serde_json::to_string(&*clone.list()).expect("it is plain data");
        assert_eq!(
            json,
            r#"[{"name":"limits.max_topics","value":2,"source":"env","place":"PROMBUS_LIMITS_MAX_TOPICS"}]"#
        );
    }
}
