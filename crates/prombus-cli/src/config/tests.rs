//! Tests of merged settings, and of the default file and the docs against the definitions.

#[cfg(feature = "mongodb")]
mod shared_store;

use super::setting::{Kind, Setting, Shown};
use super::*;
use crate::args::{Args, Command, ServeArgs};
use clap::Parser;
use prombus_bench::report::grouped;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

fn environment(variables: &[(&str, &str)]) -> Environment {
    let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Environment::new(variables).unwrap()
}

struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("prombus-config-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> String {
        self.0.to_str().unwrap().to_owned()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The arguments of `prombus serve <words>`.
fn serve(words: &[&str]) -> ServeArgs {
    let words = ["prombus", "serve"].iter().chain(words);
    match Args::try_parse_from(words).unwrap().command {
        Command::Serve(args) => args,
        other => panic!("{other:?}"),
    }
}

fn loaded(words: &[&str], variables: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let args = serve(words);
    load(args.config.as_deref(), &args.settings, &environment(variables))
}

fn try_load(words: &[&str], variables: &[(&str, &str)]) -> Result<Settings, ConfigError> {
    loaded(words, variables).map(|loaded| loaded.settings)
}

fn load_with(words: &[&str], variables: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
    try_load(words, variables).map_err(|error| error.lines)
}

fn listen_of(settings: &Settings) -> Vec<String> {
    settings.server.listen.iter().map(ToString::to_string).collect()
}

/// The default file with its settings uncommented. A commented-out setting begins with `#` and no space; examples end with
/// `# example`.
fn uncommented(with_examples: bool) -> String {
    let mut text = String::new();
    for line in default_file().lines() {
        let setting = line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', '#']) && !rest.is_empty());
        match setting {
            Some(setting) if with_examples || !setting.contains("# example") => text.push_str(setting),
            Some(_) => {}
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_default_file_sets_nothing() {
    assert!(check("prombus.toml", &default_file()).is_empty());
    let settings = validated(&toml_file::read("d", &default_file()).unwrap().source).unwrap();
    let nothing = validated(&Source::default()).unwrap();
    assert_eq!(format!("{settings:?}"), format!("{nothing:?}"));
}

#[test]
fn the_default_file_shows_the_defaults() {
    let text = uncommented(false);
    assert_eq!(check("prombus.toml", &text), Vec::<String>::new());
    let settings = validated(&toml_file::read("d", &text).unwrap().source).unwrap();
    let nothing = validated(&Source::default()).unwrap();
    assert_eq!(format!("{settings:#?}"), format!("{nothing:#?}"));
}

#[test]
fn the_default_file_has_every_key_and_no_other() {
    let file = toml_file::read("d", &uncommented(true)).unwrap();
    assert!(file.problems.is_empty(), "{:?}", file.problems);
    let seen: BTreeSet<String> =
        file.source.origins.keys().map(|path| path.replace("[0]", "[]").replace("[1]", "[]")).collect();
    for Setting { path, .. } in definitions::all() {
        assert!(seen.contains(*path), "{path} is not in the default file");
    }
    // The files that the examples name do not exist; nothing else is reported.
    for line in check("d", &uncommented(true)) {
        assert!(line.contains("no such file"), "{line}");
    }
}

#[test]
fn precedence_is_flag_then_environment_then_file_then_default() {
    let file = TempFile::new(
        "order",
        "listen = [\"127.0.0.1:1\"]\ndata = \"file\"\nlog = \"warn\"\n[limits]\nmax_topics = 5\n",
    );
    let path = file.path();
    let settings = load_with(&["--config", &path], &[]).unwrap();
    assert_eq!(settings.bus.store, StoreChoice::Log("file".into()));
    assert_eq!(settings.bus.limits.max_topics, 5);
    assert_eq!(settings.bus.limits.max_groups, 100_000);
    assert_eq!(settings.log.filter, "warn");
    let variables = [("PROMBUS_DATA", "variable"), ("PROMBUS_LIMITS_MAX_TOPICS", "6")];
    let settings = load_with(&["--config", &path], &variables).unwrap();
    assert_eq!(settings.bus.store, StoreChoice::Log("variable".into()));
    assert_eq!(settings.bus.limits.max_topics, 6);
    let settings = load_with(&["--config", &path, "--data", "flag"], &variables).unwrap();
    assert_eq!(settings.bus.store, StoreChoice::Log("flag".into()));
}

#[test]
fn ws_port_replaces_the_default_port_and_http_port_adds_a_listener() {
    let listen = |flags: &[&str], variables: &[(&str, &str)]| {
        let words: Vec<&str> = flags.iter().flat_map(|address| ["--listen", address]).collect();
        listen_of(&load_with(&words, variables).unwrap())
    };
    assert_eq!(listen(&[], &[]), ["127.0.0.1:8090"]);
    assert_eq!(listen(&[], &[("WS_PORT", "9000")]), ["127.0.0.1:9000"]);
    assert_eq!(listen(&["127.0.0.1:1"], &[("WS_PORT", "9000")]), ["127.0.0.1:1"]);
    assert_eq!(listen(&[], &[("HTTP_PORT", "8091")]), ["127.0.0.1:8090", "127.0.0.1:8091"]);
    assert_eq!(listen(&[], &[("HTTP_PORT", "8090")]), ["127.0.0.1:8090"]);
    assert_eq!(listen(&["localhost:7"], &[("HTTP_PORT", "8")]), ["127.0.0.1:7", "127.0.0.1:8"]);
}

#[test]
fn ws_token_allows_everything() {
    let settings = load_with(&[], &[("WS_TOKEN", "secret")]).unwrap();
    let token = &settings.server.auth.tokens[0];
    assert_eq!((token.name.as_str(), token.scopes.len()), ("ws_token", Scope::all().len()));
    assert!(!format!("{settings:?}").contains("secret"));
}

#[test]
fn a_secret_belongs_to_one_token() {
    let token = |name: &str| {
        let hash = TokenHash::of("secret");
        format!("[[auth.token]]\nname = \"{name}\"\nhash = \"{hash}\"\nscopes = [\"admin\"]\n")
    };
    let problems = check("f", &(token("a") + &token("b")));
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with("f:7: auth.token[1].hash: the token \"a\" has the same hash"),
        "{problems:?}"
    );
    let file = TempFile::new("secret", &token("a"));
    let path = file.path();
    let warnings = |ws_token: &str| {
        loaded(&["--config", path.as_str()], &[("WS_TOKEN", ws_token)]).expect("valid").warnings
    };
    assert_eq!(warnings("another secret"), [""; 0]);
    let found = warnings("secret");
    assert!(found[0].starts_with("WS_TOKEN is also the token \"a\" of the config file"), "{found:?}");
}

#[test]
fn other_machines_have_access_only_with_auth_or_insecure() {
    let open = ["--listen", "0.0.0.0:8090"];
    let error = try_load(&open, &[]).unwrap_err();
    assert!(error.lines[0].starts_with("--listen: 0.0.0.0:8090 is open to other machines"), "{error:?}");
    assert!(error.is_usage);
    assert!(load_with(&open, &[("WS_TOKEN", "x")]).is_ok());
    assert!(load_with(&["--listen", "0.0.0.0:8090", "--insecure"], &[]).is_ok());
    assert!(load_with(&open, &[("PROMBUS_INSECURE", "1")]).is_ok());
}

#[test]
fn rules_without_auth_are_refused_unless_the_environment_has_a_token() {
    let file = TempFile::new("rules", "data = \"x\"\n\n[[auth.rule]]\neffect = \"deny\"\n");
    let path = file.path();
    let args = ["--config", path.as_str()];
    let lines = load_with(&args, &[]).unwrap_err();
    assert!(lines[0].contains(":3: auth.rule: rules have no effect"), "{lines:?}");
    assert!(load_with(&args, &[("WS_TOKEN", "x")]).is_ok());
    assert!(check("f", "[[auth.rule]]\neffect = \"deny\"\n").is_empty());
}

#[test]
fn an_unknown_store_is_refused_without_showing_its_password() {
    let lines = load_with(&["--store", "nats://user:hunter2@host"], &[]).unwrap_err();
    assert!(lines[0].starts_with("--store: this build has no store for nats:"), "{lines:?}");
    assert!(!lines[0].contains("hunter2"));
    assert_eq!(load_with(&["--store", "memory:"], &[]).unwrap().bus.store, StoreChoice::Memory);
    assert!(load_with(&["--store", "sqlite:"], &[]).is_err());
}

#[test]
fn invalid_values_are_reported_with_key_and_line() {
    let text = "listen = [\"127.0.0.1:1\", \"nowhere\"]\nlog_format = \"xml\"\nlog = \"a=b=c\"\n\
                [tls]\ncert = \"/no/such/file\"\n\
                [limits]\nmax_connections = 0\n\
                [rate]\nconnection_publish_per_second = 0\n\
                [[topic]]\nname = \"a.*b\"\npublish_rate = 5\n\
                [[auth.token]]\nname = \"a\"\nhash = \"sha256:abc\"\nscopes = [\"publish:**\", \"write:**\"]\n\
                [[auth.token]]\nhash = \"\"\n\
                [auth.jwt]\nsecret = \"short\"\npem_files = [\"/no/such/key\"]\n\
                [[auth.rule]]\neffect = \"maybe\"\nactions = [\"read\"]\ntopics = [\"**\", \"a b\"]\n";
    let lines = check("p.toml", text);
    let starts = [
        "p.toml:1: listen[1]: \"nowhere\" is not an address",
        "p.toml:2: log_format: \"xml\"",
        "p.toml:3: log: \"a=b=c\" is not a filter",
        "p.toml:5: tls.cert: the certificate's key is missing",
        "p.toml:7: limits.max_connections: 0: expected 1 to",
        "p.toml:9: rate.connection_publish_per_second: 0: expected more than 0",
        "p.toml:11: topic[0].name: ",
        "p.toml:15: auth.token[0].hash: is not the hash",
        "p.toml:16: auth.token[0].scopes[1]: unknown scope \"write:**\"",
        "p.toml:17: auth.token[1]: name is missing",
        "p.toml:17: auth.token[1]: a token without scopes",
        "p.toml:18: auth.token[1].hash: is empty",
        "p.toml:20: auth.jwt.secret: is shorter than 32 bytes",
        "p.toml:21: auth.jwt.pem_files[0]: cannot read /no/such/key: no such file",
        "p.toml:23: auth.rule[0].effect: \"maybe\"",
        "p.toml:24: auth.rule[0].actions[0]: \"read\"",
        "p.toml:25: auth.rule[0].topics[1]: ",
    ];
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}\n expected {start}");
    }
    assert_eq!(lines.len(), starts.len(), "{lines:#?}");
    assert!(!lines.concat().contains("short\""), "a secret is shown");
}

#[test]
fn jwt_without_a_key_is_refused() {
    assert!(check("p", "[auth.jwt]\n")[0].contains("no key to check tokens with"));
    assert!(check("p", "[auth.jwt]\nissuer = \"x\"\n")[0].starts_with("p:1: auth.jwt: "));
}

#[test]
fn a_missing_config_file_is_reported_with_the_flag_or_variable_that_names_it() {
    assert_eq!(
        load_with(&["--config", "/no/such.toml"], &[]).unwrap_err(),
        ["--config: cannot read /no/such.toml: no such file"]
    );
    let lines = load_with(&[], &[("PROMBUS_CONFIG", "/no/such.toml")]).unwrap_err();
    assert!(lines[0].starts_with("PROMBUS_CONFIG: "));
}

#[test]
fn a_file_with_unknown_keys_is_refused() {
    let file = TempFile::new("unknown", "[auht]\n");
    let lines = load_with(&["--config", &file.path()], &[]).unwrap_err();
    assert!(lines[0].ends_with(":1: auht: unknown key; did you mean auth?"), "{lines:?}");
}

/// The default as the docs write it: `1 MiB`, `10 s`, `10,000`.
fn default_in_words(setting: &Setting) -> String {
    let Some(number) = setting.default_number() else {
        return match setting.shown {
            Shown::Example(_, words) => words.to_owned(),
            _ => format!("`{}`", setting.default_toml()),
        };
    };
    let key = setting.key();
    let units: &[(u64, &str)] = match () {
        () if key.ends_with("_bytes") => &[(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")],
        () if key.ends_with("_ms") => &[(24 * 3_600_000, "days"), (1_000, "s")],
        () => &[],
    };
    match units.iter().find(|(unit, _)| number >= *unit && number % unit == 0) {
        Some((unit, name)) => format!("{} {name}", grouped((number / unit) as f64)),
        None => grouped(number as f64),
    }
}

/// The table of all settings in docs/operating.md.
fn table_of_settings() -> String {
    let mut text = "| setting | values | default | SIGHUP | meaning |\n|---|---|---|---|---|\n".to_owned();
    for (setting, is_reloaded) in definitions::all_with_reload() {
        let values = match (&setting.kind, setting.kind.range_text()) {
            (_, Some(range)) => range,
            (Kind::Text, _) => "string".to_owned(),
            (Kind::Texts, _) => "list of strings".to_owned(),
            (Kind::Whole(_), _) => "whole number".to_owned(),
            (Kind::Number(_), _) => "number".to_owned(),
            (Kind::Switch, _) => "true, false".to_owned(),
        };
        let flag = setting.flag.as_ref().map(|flag| format!(", `--{}`", flag.name)).unwrap_or_default();
        let (path, default) = (setting.path, default_in_words(setting));
        let reload = if is_reloaded { "reloads" } else { "restart" };
        text.push_str(&format!("| `{path}`{flag} | {values} | {default} | {reload} | {} |\n", setting.doc));
    }
    text
}

/// The table of flags in docs/operating.md.
fn table_of_flags() -> String {
    let mut text = "| flag | key | default | meaning |\n|---|---|---|---|\n".to_owned();
    for setting in definitions::all() {
        let Some(flag) = &setting.flag else { continue };
        let flag = format!("--{} {}", flag.name, flag.value_name);
        let (path, default) = (setting.path, default_in_words(setting));
        text.push_str(&format!("| `{}` | `{path}` | {default} | {} |\n", flag.trim(), setting.doc));
    }
    text
}

/// The generated lines of a document, which are between two comments.
fn generated<'a>(document: &'a str, name: &str) -> &'a str {
    let text = document.split(&format!("<!-- {name}, from `config/definitions.rs` -->\n")).nth(1).unwrap();
    text.split(&format!("<!-- end of {name} -->")).next().unwrap()
}

/// Fails if the text differs from the generated one, and writes the generated text to a file for copying.
fn assert_same_text(file: &str, written: &str, expected: &str) {
    if written != expected {
        let new = std::env::temp_dir().join(format!("prombus-{file}.new"));
        std::fs::write(&new, expected).unwrap();
        panic!("{file} differs from the definitions; {} has the generated text", new.display());
    }
}

#[test]
fn the_shipped_config_file_is_the_default_file() {
    assert_same_text("prombus.toml", include_str!("../../../../prombus.toml"), &default_file());
}

#[test]
fn operating_md_lists_every_setting_with_its_range_default_and_flag() {
    let document = include_str!("../../../../docs/operating.md");
    assert_same_text("flags.md", generated(document, "flags"), &table_of_flags());
    assert_same_text("settings.md", generated(document, "settings"), &table_of_settings());
}

/// The tables of limits and topics are written by hand, because they say more than the definitions. Their defaults are checked.
#[test]
fn the_hand_written_tables_of_operating_md_have_the_right_defaults() {
    let document = include_str!("../../../../docs/operating.md");
    for (section, tables) in
        [("Limits", ["limits.", "", ""]), ("Topics", ["topic[].", "topic[].", "topic[]."])]
    {
        let text = document.split(&format!("\n## {section}\n")).nth(1).unwrap();
        let rows = text.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("| `"));
        let mut count = 0;
        for row in rows {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            for key in cells[1].split('`').skip(1).step_by(2) {
                let paths = tables.map(|table| format!("{table}{key}"));
                let setting =
                    definitions::all().find(|setting| paths.iter().any(|path| path == setting.path));
                let setting = setting.unwrap_or_else(|| panic!("{key} is not a setting"));
                let default = default_in_words(setting);
                assert!(cells[2].starts_with(&default), "{key}: {} should begin with {default}", cells[2]);
                count += 1;
            }
        }
        assert!(count > 8, "{section}: {count}");
    }
}

#[test]
fn the_help_of_serve_has_every_flag_with_its_default() {
    let mut command = <Args as clap::CommandFactory>::command();
    let serve = command.find_subcommand_mut("serve").unwrap();
    let help = serve.render_long_help().to_string();
    // Removes line breaks, because the help may be wrapped anywhere.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let flags: Vec<&str> =
        definitions::all().filter_map(|setting| Some(setting.flag.as_ref()?.name)).collect();
    assert_eq!(flags.len(), 10);
    for flag in flags {
        assert!(help.contains(&format!("--{flag}")), "{flag}: {help}");
    }
    for default in ["127.0.0.1:8090", DATA, "log:", "info", "text"] {
        assert!(help.contains(&format!("[default: {default}]")), "{default}: {help}");
    }
}
