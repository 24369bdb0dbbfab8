//! Generates text from the definitions: the config file that `prombus config default` prints, and the keys in the help of
//! `topic set`. Parses the values of these keys.

use super::definitions::{SECTIONS, Section};
use super::environment::value_of;
use super::setting::{Setting, Shown};
use super::suggestion::nearest;

/// The maximum width of a comment.
const WIDTH: usize = 118;

const HEAD: &str = "\
# Configuration of prombus. Every key is listed, commented out, with its default; `# example` marks an example value instead.
# The server reads this file only if it is named: prombus serve --config prombus.toml (or PROMBUS_CONFIG=prombus.toml).
# Check it with: prombus config check prombus.toml
#
# Precedence: flag, then environment variable, then this file, then default. Every key has an environment variable, except
# those in [[topic]], [[auth.token]] and [[auth.rule]]: PROMBUS_<KEY> or PROMBUS_<SECTION>_<KEY>, e.g. PROMBUS_DATA or
# PROMBUS_LIMITS_MAX_TOPICS.
# SIGHUP (kill -HUP) reloads the sections and keys that say so. All others need a restart.
# Paths are relative to the folder in which prombus is started. Values of keys that end in _ms are milliseconds.
";

/// The config file with every setting and its default, commented out.
pub fn default_file() -> String {
    let mut text = HEAD.to_owned();
    for section in SECTIONS {
        text.push('\n');
        head_of(section, &mut text);
        for (number, setting) in section.settings.iter().enumerate() {
            if number > 0 || has_head(section) {
                text.push('\n');
            }
            setting_lines(setting, &mut text);
        }
    }
    text
}

/// A paragraph, followed by a note if SIGHUP reloads what it describes.
fn with_reload(doc: &str, is_reloaded: bool) -> String {
    let note = if is_reloaded { " Reloaded by SIGHUP." } else { "" };
    format!("{doc}{note}")
}

fn has_head(section: &Section) -> bool {
    section.example.is_some() || section.is_reloaded || !section.doc.is_empty()
}

fn head_of(section: &Section, text: &mut String) {
    let head = match section.path.strip_suffix("[]") {
        Some(list) => format!("[[{list}]]"),
        None => format!("[{}]", section.path),
    };
    match section.example {
        Some(lines) => {
            comment(&with_reload(section.doc, section.is_reloaded && !section.doc.is_empty()), text);
            text.push_str(&format!("#{head} # example\n"));
            lines.lines().for_each(|line| text.push_str(&format!("#{line} # example\n")));
        }
        None => {
            if !section.path.is_empty() {
                text.push_str(&format!("{head}\n"));
            }
            comment(&with_reload(section.doc, section.is_reloaded), text);
        }
    }
}

fn setting_lines(setting: &Setting, text: &mut String) {
    let key = setting.key();
    let doc = &with_reload(setting.doc, setting.is_reloaded);
    match setting.shown {
        Shown::Example(toml, "required") => {
            comment(doc, text);
            text.push_str(&format!("#{key} = {toml} # example\n"));
        }
        Shown::Example(toml, default) => {
            comment(&format!("{doc} Default: {default}."), text);
            text.push_str(&format!("#{key} = {toml} # example\n"));
        }
        Shown::Default(_) | Shown::FieldDefault => {
            comment(doc, text);
            text.push_str(&format!("#{key} = {}\n", setting.default_toml()));
        }
    }
}

/// Appends a paragraph as wrapped comment lines.
fn comment(paragraph: &str, text: &mut String) {
    let mut line = String::new();
    for word in paragraph.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            text.push_str(&format!("#{line}\n"));
            line.clear();
        }
        line.push(' ');
        line.push_str(word);
    }
    if !line.is_empty() {
        text.push_str(&format!("#{line}\n"));
    }
}

/// The settings of `[[topic]]`.
fn topic_settings() -> impl Iterator<Item = &'static Setting> {
    let sections = SECTIONS.iter().filter(|section| section.path == "topic[]");
    sections.flat_map(|section| section.settings).filter(|setting| setting.key() != "name")
}

/// The value of a setting of a topic as it is typed, in TOML.
///
/// # Errors
/// If there is no such setting, or the text has the wrong type.
pub fn topic_value(key: &str, text: &str) -> Result<toml::Value, String> {
    let Some(setting) = topic_settings().find(|setting| setting.key() == key) else {
        return Err(match nearest(key, topic_settings().map(Setting::key)) {
            Some(near) => format!("unknown setting {key:?}; did you mean {near}?"),
            None => format!("unknown setting {key:?}; `prombus topic set --help` lists all settings"),
        });
    };
    value_of(&setting.kind, text).map_err(|why| format!("{key}={text}: {why}"))
}

/// The keys of `[[topic]]` for the help of `topic set`.
pub fn topic_keys() -> String {
    topic_settings()
        .map(|setting| format!("  {:22}{}\n", setting.key(), setting.doc.trim_end_matches('.')))
        .collect()
}
