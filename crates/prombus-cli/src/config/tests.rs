//! Settings from all sources together, and the default file against the code.

use super::shape::KEYS;
use super::*;
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

fn load_with(args: ServeArgs, variables: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
    match load(&args, &environment(variables)) {
        Ok(loaded) => Ok(loaded.settings),
        Err(error) => Err(error.lines),
    }
}

fn listen_of(settings: &Settings) -> Vec<String> {
    settings.server.listen.iter().map(ToString::to_string).collect()
}

/// Lines that set something stand behind a `#` without a space; those with an example say so.
fn uncommented(with_examples: bool) -> String {
    let mut text = String::new();
    for line in DEFAULT_TEXT.lines() {
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
fn the_default_file_as_it_is_sets_nothing() {
    assert!(check("prombus.toml", DEFAULT_TEXT).is_empty());
    let settings = validated(&document::read("d", DEFAULT_TEXT).unwrap().layer).unwrap();
    let nothing = validated(&Layer::default()).unwrap();
    assert_eq!(format!("{settings:?}"), format!("{nothing:?}"));
}

#[test]
fn the_default_file_shows_the_defaults() {
    let text = uncommented(false);
    assert_eq!(check("prombus.toml", &text), Vec::<String>::new());
    let settings = validated(&document::read("d", &text).unwrap().layer).unwrap();
    let nothing = validated(&Layer::default()).unwrap();
    assert_eq!(format!("{settings:#?}"), format!("{nothing:#?}"));
}

#[test]
fn the_default_file_has_every_key_and_no_other() {
    let document = document::read("d", &uncommented(true)).unwrap();
    assert!(document.problems.is_empty(), "{:?}", document.problems);
    let seen: BTreeSet<String> =
        document.layer.origins.keys().map(|path| path.replace("[0]", "[]").replace("[1]", "[]")).collect();
    for (path, _) in KEYS {
        assert!(seen.contains(*path), "{path} is not in prombus.toml");
    }
    // The only faults of the examples are that their files are not there.
    for line in check("d", &uncommented(true)) {
        assert!(line.contains("there is no such file"), "{line}");
    }
}

#[test]
fn a_flag_goes_over_the_environment_over_the_file_over_the_default() {
    let file = TempFile::new(
        "order",
        "listen = [\"127.0.0.1:1\"]\ndata = \"file\"\nlog = \"warn\"\n[limits]\nmax_topics = 5\n",
    );
    let args = |data: Option<&str>| ServeArgs {
        config: Some(file.path()),
        data: data.map(str::to_owned),
        ..ServeArgs::default()
    };
    let settings = load_with(args(None), &[]).unwrap();
    assert_eq!(settings.bus.store, StoreChoice::Log("file".into()));
    assert_eq!(settings.bus.limits.max_topics, 5);
    assert_eq!(settings.bus.limits.max_groups, 100_000);
    assert_eq!(settings.log.filter, "warn");
    let variables = [("PROMBUS_DATA", "variable"), ("PROMBUS_LIMITS_MAX_TOPICS", "6")];
    let settings = load_with(args(None), &variables).unwrap();
    assert_eq!(settings.bus.store, StoreChoice::Log("variable".into()));
    assert_eq!(settings.bus.limits.max_topics, 6);
    let settings = load_with(args(Some("flag")), &variables).unwrap();
    assert_eq!(settings.bus.store, StoreChoice::Log("flag".into()));
}

#[test]
fn ports_of_the_environment_replace_and_add() {
    let listen = |flags: &[&str], variables: &[(&str, &str)]| {
        let args =
            ServeArgs { listen: flags.iter().map(ToString::to_string).collect(), ..ServeArgs::default() };
        listen_of(&load_with(args, variables).unwrap())
    };
    assert_eq!(listen(&[], &[]), ["127.0.0.1:8090"]);
    assert_eq!(listen(&[], &[("WS_PORT", "9000")]), ["127.0.0.1:9000"]);
    assert_eq!(listen(&["127.0.0.1:1"], &[("WS_PORT", "9000")]), ["127.0.0.1:1"]);
    assert_eq!(listen(&[], &[("HTTP_PORT", "8091")]), ["127.0.0.1:8090", "127.0.0.1:8091"]);
    assert_eq!(listen(&[], &[("HTTP_PORT", "8090")]), ["127.0.0.1:8090"]);
    assert_eq!(listen(&["localhost:7"], &[("HTTP_PORT", "8")]), ["127.0.0.1:7", "127.0.0.1:8"]);
}

#[test]
fn a_token_of_the_environment_may_do_everything() {
    let settings = load_with(ServeArgs::default(), &[("WS_TOKEN", "secret")]).unwrap();
    let token = &settings.server.auth.tokens[0];
    assert_eq!((token.name.as_str(), token.scopes.len()), ("ws_token", Scope::all().len()));
    assert!(!format!("{settings:?}").contains("secret"));
}

#[test]
fn other_machines_get_in_only_with_auth_or_when_told_so() {
    let open = || ServeArgs { listen: vec!["0.0.0.0:8090".to_owned()], ..ServeArgs::default() };
    let error = load(&open(), &environment(&[])).unwrap_err();
    assert!(error.lines[0].starts_with("--listen: 0.0.0.0:8090 is open to other machines"), "{error:?}");
    assert!(error.is_usage);
    assert!(load_with(open(), &[("WS_TOKEN", "x")]).is_ok());
    assert!(load_with(ServeArgs { insecure: true, ..open() }, &[]).is_ok());
    assert!(load_with(open(), &[("PROMBUS_INSECURE", "1")]).is_ok());
}

#[test]
fn rules_without_anybody_to_rule_are_refused_unless_a_token_comes() {
    let file = TempFile::new("rules", "data = \"x\"\n\n[[auth.rule]]\neffect = \"deny\"\n");
    let args = || ServeArgs { config: Some(file.path()), ..ServeArgs::default() };
    let lines = load_with(args(), &[]).unwrap_err();
    assert!(lines[0].contains(":3: auth.rule: rules mean nothing"), "{lines:?}");
    assert!(load_with(args(), &[("WS_TOKEN", "x")]).is_ok());
    assert!(check("f", "[[auth.rule]]\neffect = \"deny\"\n").is_empty());
}

#[test]
fn stores_that_are_not_there_are_said_to_be_not_there_without_their_passwords() {
    for url in ["mongodb://user:hunter2@host/db", "nats://user:hunter2@host"] {
        let args = ServeArgs { store: Some(url.to_owned()), ..ServeArgs::default() };
        let lines = load_with(args, &[]).unwrap_err();
        assert!(lines[0].starts_with("--store: this build has no store for "), "{lines:?}");
        assert!(!lines[0].contains("hunter2"));
    }
    let args = ServeArgs { store: Some("memory:".to_owned()), ..ServeArgs::default() };
    assert_eq!(load_with(args, &[]).unwrap().bus.store, StoreChoice::Memory);
    assert!(load_with(ServeArgs { store: Some("sqlite:".to_owned()), ..ServeArgs::default() }, &[]).is_err());
}

#[test]
fn values_that_mean_nothing_are_named_with_key_and_line() {
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
        "p.toml:1: listen[1]: \"nowhere\" is no address",
        "p.toml:2: log_format: \"xml\"",
        "p.toml:3: log: \"a=b=c\" is no filter",
        "p.toml:5: tls.cert: the certificate's key is missing",
        "p.toml:7: limits.max_connections: 0: 1 to",
        "p.toml:9: rate.connection_publish_per_second: 0: a rate is above 0",
        "p.toml:11: topic[0].name: ",
        "p.toml:15: auth.token[0].hash: is no hash",
        "p.toml:16: auth.token[0].scopes[1]: unknown scope \"write:**\"",
        "p.toml:17: auth.token[1]: name is missing",
        "p.toml:17: auth.token[1]: a token without scopes",
        "p.toml:18: auth.token[1].hash: is empty",
        "p.toml:20: auth.jwt.secret: is shorter than 32 bytes",
        "p.toml:21: auth.jwt.pem_files[0]: cannot read /no/such/key: there is no such file",
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
fn a_config_file_that_is_not_there_is_named_by_who_named_it() {
    let args = ServeArgs { config: Some("/no/such.toml".to_owned()), ..ServeArgs::default() };
    assert_eq!(
        load_with(args, &[]).unwrap_err(),
        ["--config: cannot read /no/such.toml: there is no such file"]
    );
    let lines = load_with(ServeArgs::default(), &[("PROMBUS_CONFIG", "/no/such.toml")]).unwrap_err();
    assert!(lines[0].starts_with("PROMBUS_CONFIG: "));
}

#[test]
fn a_file_with_unknown_keys_is_not_served_with() {
    let file = TempFile::new("unknown", "[auht]\n");
    let args = ServeArgs { config: Some(file.path()), ..ServeArgs::default() };
    let lines = load_with(args, &[]).unwrap_err();
    assert!(lines[0].ends_with(":1: auht: unknown key; did you mean auth?"), "{lines:?}");
}
