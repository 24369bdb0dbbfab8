//! Tests of help, version, and errors in arguments.

use crate::support::run;

#[test]
fn version_and_help_are_printed() {
    let version = run(&["--version"]);
    assert_eq!(
        (version.code, version.stdout.as_str()),
        (Some(0), concat!("prombus ", env!("CARGO_PKG_VERSION"), "\n"))
    );
    let help = run(&["--help"]);
    assert_eq!(help.code, Some(0));
    assert!(help.stdout.contains("prombus serve --config prombus.toml"), "{}", help.stdout);
    let help = run(&["serve", "--help"]);
    for word in ["--listen", "--data", "--store", "--insecure", "WS_TOKEN", "PROMBUS_CONFIG", "memory:"] {
        assert!(help.stdout.contains(word), "{word} is not in the help of serve");
    }
}

#[test]
fn without_a_command_the_help_is_printed() {
    let ran = run(&[]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("Usage: prombus <COMMAND>"), "{}", ran.stderr);
}

#[test]
fn bad_arguments_exit_with_2_and_an_error_message() {
    let cases: [(&[&str], &str); 11] = [
        (&["serve", "--lisen", "x"], "--listen"),
        (&["serv"], "serve"),
        (&["serve", "--listen", "nowhere"], "prombus: --listen: \"nowhere\" is not an address"),
        (&["serve", "--store", "nats://host"], "prombus: --store: this build has no store for nats:"),
        (&["serve", "--store", "mongodb:"], "prombus: --store: "),
        (&["serve", "--log", "a=b=c"], "prombus: --log: "),
        (&["serve", "--log-format", "xml"], "prombus: --log-format: \"xml\""),
        (&["serve", "--config", "/no/such.toml"], "prombus: --config: cannot read /no/such.toml"),
        (&["serve", "--listen", "0.0.0.0:0"], "prombus: --listen: 0.0.0.0:0 is open to other machines"),
        (&["outbox", "drain"], "--mongodb"),
        (&["outbox", "drain", "--sqlite", "a.db", "--mongodb", "mongodb://a/b"], "--mongodb"),
    ];
    for (arguments, word) in cases {
        let ran = run(arguments);
        assert_eq!(ran.code, Some(2), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(word), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn wrong_names_and_addresses_exit_with_2_before_a_command_connects() {
    let names: [&[&str]; 14] = [
        &["state", "bad/topic"],
        &["topic", "show", "a!b"],
        &["topic", "set", "a!b", "max_attempts=3"],
        &["topic", "set", "st.a", "retention_days=soon"],
        &["topic", "set", "st.a", "nonsense=1"],
        &["topic", "delete", "a!b", "--yes"],
        &["dlq", "show", "a!b"],
        &["dlq", "redrive", "a!b"],
        &["dlq", "discard", "a!b"],
        &["group", "show", "orders", "b!d"],
        &["group", "create", "a!b", "g"],
        &["group", "list", "--topic", "a!b"],
        &["group", "create", "orders", "g", "--and", "b!d"],
        &["sub", "st.a", "--group", "b!d"],
    ];
    // Nothing listens on port 1.
    let connecting = names.map(|arguments| [arguments, &["--url", "http://127.0.0.1:1"]].concat());
    let addresses: [&[&str]; 9] = [
        &["pub", "orders", "1", "--url", "ftp://x"],
        &["tail", "orders", "--url", "ftp://x"],
        &["sub", "orders", "--group", "g", "--url", "ftp://x"],
        &["topic", "list", "--url", "ftp://x"],
        &["dlq", "list", "--url", "ftp://x"],
        &["health", "--url", "ftp://x"],
        &["export", "orders", "--url", "ftp://x"],
        &["bench", "publish", "--url", "ftp://x"],
        &["context", "add", "x", "--url", "zzz://a"],
    ];
    for arguments in connecting.iter().map(Vec::as_slice).chain(addresses) {
        let ran = run(arguments);
        assert_eq!(ran.code, Some(2), "{arguments:?}: {ran:?}");
    }
}

#[test]
fn the_help_of_every_client_command_has_examples() {
    let commands: [&[&str]; 18] = [
        &["pub"],
        &["sub"],
        &["tail"],
        &["group"],
        &["group", "create"],
        &["group", "seek"],
        &["group", "settle"],
        &["state"],
        &["health"],
        &["settings"],
        &["export"],
        &["import"],
        &["replay"],
        &["dlq", "redrive"],
        &["topic", "set"],
        &["backup"],
        &["outbox", "drain"],
        &["topic"],
    ];
    for command in commands {
        let help = run(&[command, &["--help"]].concat());
        assert_eq!(help.code, Some(0), "{command:?}");
        let example = format!("  prombus {}", command.join(" "));
        assert!(help.stdout.contains("Examples:") && help.stdout.contains(&example), "{}", help.stdout);
    }
    let help = run(&["export", "--help"]).stdout;
    for word in ["PROMBUS_URL", "PROMBUS_TOKEN", "http://127.0.0.1:8090"] {
        assert!(help.contains(word), "{word}: {help}");
    }
}
