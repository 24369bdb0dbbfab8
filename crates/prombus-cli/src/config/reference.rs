//! Generates text from the definitions: the config file that `prombus config default` prints, and the keys in the help of
//! `topic set`.

use super::definitions::{SECTIONS, Section};
use super::setting::{Setting, Shown};

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

fn has_head(section: &Section) -> bool {
    section.example.is_some() || !section.doc.is_empty()
}

fn head_of(section: &Section, text: &mut String) {
    let head = match section.path.strip_suffix("[]") {
        Some(list) => format!("[[{list}]]"),
        None => format!("[{}]", section.path),
    };
    match section.example {
        Some(lines) => {
            comment(section.doc, text);
            text.push_str(&format!("#{head} # example\n"));
            lines.lines().for_each(|line| text.push_str(&format!("#{line} # example\n")));
        }
        None => {
            if !section.path.is_empty() {
                text.push_str(&format!("{head}\n"));
            }
            comment(section.doc, text);
        }
    }
}

fn setting_lines(setting: &Setting, text: &mut String) {
    let key = setting.key();
    match setting.shown {
        Shown::Example(toml, "required") => {
            comment(setting.doc, text);
            text.push_str(&format!("#{key} = {toml} # example\n"));
        }
        Shown::Example(toml, default) => {
            comment(&format!("{} Default: {default}.", setting.doc), text);
            text.push_str(&format!("#{key} = {toml} # example\n"));
        }
        Shown::Default(_) | Shown::FieldDefault => {
            comment(setting.doc, text);
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

/// The keys of `[[topic]]` for the help of `topic set`.
pub fn topic_keys() -> String {
    let keys =
        SECTIONS.iter().filter(|section| section.path == "topic[]").flat_map(|section| section.settings);
    let keys = keys.filter(|setting| setting.key() != "name");
    keys.map(|setting| format!("  {:22}{}\n", setting.key(), setting.doc.trim_end_matches('.'))).collect()
}
