//! Tests of `prombus config`.

use crate::support::{TempFolder, prombus, run};

#[test]
fn the_default_config_is_printed_and_valid() {
    let printed = run(&["config", "default"]);
    assert_eq!(printed.code, Some(0));
    assert_eq!(printed.stdout, include_str!("../../../../prombus.toml"));
    let folder = TempFolder::new();
    let file = folder.file("prombus.toml", &printed.stdout);
    let checked = run(&["config", "check", &file]);
    assert_eq!((checked.code, checked.stdout), (Some(0), format!("{file}: ok\n")));
}

#[test]
fn bad_keys_are_reported_with_their_lines() {
    let folder = TempFolder::new();
    let file =
        folder.file("p.toml", "[limits]\nmax_conections = 5\n\n[http]\nmax_body_bytes = \"big\"\nfoo = 1\n");
    let checked = run(&["config", "check", &file]);
    assert_eq!(checked.code, Some(1));
    let lines: Vec<_> = checked.stdout.lines().collect();
    assert_eq!(
        lines,
        [
            format!("{file}:2: limits.max_conections: unknown key; did you mean limits.max_connections?"),
            format!("{file}:5: http.max_body_bytes: expected a whole number that is not negative"),
            format!("{file}:6: http.foo: unknown key; `prombus config default` prints all keys"),
        ]
    );
}

#[test]
fn a_missing_file_and_a_toml_syntax_error_are_reported() {
    let ran = run(&["config", "check", "/no/such.toml"]);
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (Some(1), "prombus: cannot read /no/such.toml: no such file\n")
    );
    let folder = TempFolder::new();
    let file = folder.file("p.toml", "data = \"x\"\nlog = = 1\n");
    let ran = run(&["config", "check", &file]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.starts_with(&format!("{file}:2: ")), "{}", ran.stdout);
}

#[test]
fn a_bad_variable_is_named_and_the_server_does_not_start() {
    let cases = [
        (
            "PROMBUS_LIMITS_MAX_CONNECTIONS",
            "many",
            "prombus: PROMBUS_LIMITS_MAX_CONNECTIONS: expected a whole number",
        ),
        ("WS_PORT", "x", "prombus: WS_PORT: \"x\" is not a port"),
        ("WS_TOKEN", "", "prombus: WS_TOKEN: is empty"),
        ("PROMBUS_LISTEN", "here", "prombus: PROMBUS_LISTEN: \"here\" is not an address"),
    ];
    for (name, value, word) in cases {
        let output = prombus(&["serve", "--store", "memory:"]).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with(word), "{stderr}");
    }
}
