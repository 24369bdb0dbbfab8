//! The file of contexts. It contains tokens: only its owner may read it, as with the private keys of ssh.

use anyhow::{Context as _, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A named server.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_cert: Option<PathBuf>,
}

/// All contexts of the user.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// The context that commands use by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default, rename = "context", skip_serializing_if = "BTreeMap::is_empty")]
    pub by_name: BTreeMap<String, Context>,
}

impl Contexts {
    /// The file: `PROMBUS_CONTEXTS`, or `prombus/contexts.toml` in the user's config folder. `None` if the user has none.
    pub fn path() -> Option<PathBuf> {
        path_from(set_variable(NAMES_FILE), set_variable("XDG_CONFIG_HOME"), set_variable("HOME"))
    }

    /// Reads the user's contexts. A file that does not exist contains none. The same holds for the default file in a folder without access: a
    /// program that changed its user often still has the HOME of the other.
    pub fn load() -> anyhow::Result<Self> {
        let Some(path) = Self::path() else { return Ok(Self::default()) };
        let is_default = set_variable(NAMES_FILE).is_none();
        match fs::metadata(&path) {
            Err(error) if is_default && is_inaccessible(error.kind()) => Ok(Self::default()),
            _ => Self::read(&path),
        }
    }

    /// Reads a file of contexts.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let mode = fs::metadata(path)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let file = path.display();
            bail!(
                "other users can access {file} (mode {mode:04o}), which may contain tokens; run: chmod 600 {file}"
            );
        }
        let found: Result<Self, toml::de::Error> = toml::from_str(&text);
        // The error's own text would show the line, which may contain a token.
        found.map_err(|error| {
            let line =
                error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count());
            anyhow::anyhow!("{}, line {}: {}", path.display(), line + 1, error.message())
        })
    }

    /// Changes the user's file. Another command that changes it waits, and a reader sees the old file or the new one.
    pub fn change(change: impl FnOnce(&mut Self) -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let path = Self::path().context(
            "there is no place for contexts: none of PROMBUS_CONTEXTS, XDG_CONFIG_HOME and HOME is set",
        )?;
        // A link, for example into a folder of dotfiles, stays: the file that it names is replaced.
        let path = fs::canonicalize(&path).unwrap_or(path);
        let failed = || format!("cannot write {}", path.display());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(failed)?;
        let lock = File::open(folder).with_context(failed)?;
        // Some network file systems have no locks for folders: the file is replaced at once all the same.
        let _ = flock(&lock, FlockOperation::LockExclusive);
        let mut contexts = Self::read(&path)?;
        change(&mut contexts)?;
        contexts.write(&path, folder).with_context(failed)?;
        Ok(contexts)
    }

    fn write(&self, path: &Path, folder: &Path) -> anyhow::Result<()> {
        let mut name = path.file_name().context("it has no file name")?.to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let new = folder.join(name);
        let written = self.write_new(&new).and_then(|()| Ok(fs::rename(&new, path)?));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }

    fn write_new(&self, path: &Path) -> anyhow::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(toml::to_string(self)?.as_bytes())?;
        Ok(file.sync_all()?)
    }

    /// The context with this name.
    pub fn get(&self, name: &str) -> anyhow::Result<&Context> {
        self.by_name.get(name).with_context(|| {
            format!("there is no context {name:?}; `prombus context list` lists the contexts")
        })
    }
}

/// The variable that names the file.
const NAMES_FILE: &str = "PROMBUS_CONTEXTS";

/// The value of a variable, unless it is empty.
fn set_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn is_inaccessible(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PermissionDenied | ErrorKind::NotADirectory)
}

fn path_from(named: Option<OsString>, config: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    // The XDG specification has relative paths ignored.
    let config = config.map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = || config.or_else(|| Some(PathBuf::from(home?).join(".config")));
    named.map(PathBuf::from).or_else(|| Some(folder()?.join("prombus/contexts.toml")))
}

/// Checks the name of a context.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    if name.is_empty() || name.len() > 100 || !name.chars().all(is_plain) || name.starts_with('-') {
        bail!("{name:?} cannot be the name of a context: use letters, digits, '-', '_' and '.', at most 100");
    }
    Ok(())
}

/// A token as people may see it: at most its last four characters, and none of a short token.
pub fn masked(token: &str) -> String {
    let count = token.chars().count();
    let shown: String = token.chars().skip(if count >= 16 { count - 4 } else { count }).collect();
    format!("***{shown}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_in_the_config_folder_unless_it_is_named() {
        let of = |named: Option<&str>, config: Option<&str>, home: Option<&str>| {
            path_from(named.map(Into::into), config.map(Into::into), home.map(Into::into))
        };
        assert_eq!(of(Some("/c"), Some("/x"), Some("/h")), Some("/c".into()));
        assert_eq!(of(None, Some("/x"), Some("/h")), Some("/x/prombus/contexts.toml".into()));
        assert_eq!(of(None, Some("x"), Some("/h")), Some("/h/.config/prombus/contexts.toml".into()));
        assert_eq!(of(None, None, None), None);
    }

    #[test]
    fn a_token_is_shown_by_its_last_characters_only() {
        assert_eq!(masked("prombus_0123456789abcdef"), "***cdef");
        assert_eq!(masked("fifteen-letters"), "***");
        assert_eq!(masked(""), "***");
    }

    #[test]
    fn names_are_plain_words() {
        for name in ["prod", "eu-west.1", "a_b"] {
            check_name(name).unwrap();
        }
        for name in ["", "a b", "-x", "a/b", "ü", "a\n"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
