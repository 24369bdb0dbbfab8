//! Tests of what all commands share: contexts, certificates, errors, completions, man pages, `--json`.

use crate::remote::{Server, lines};
use crate::serving::{Serving, serve};
use crate::support::{Ran, TempFolder, prombus, run};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A server with TLS, and the file of its certificate.
fn with_tls(folder: &TempFolder, host: &str) -> (Serving, String) {
    let certified = rcgen::generate_simple_self_signed(vec![host.to_owned()]).unwrap();
    let cert = folder.file("cert.pem", &certified.cert.pem());
    let key = folder.file("key.pem", &certified.signing_key.serialize_pem());
    (Serving::start(serve(folder, &["--tls-cert", &cert, "--tls-key", &key])), cert)
}

/// A server with the token `secret`, which may use the topics `orders.*`.
fn with_reader(folder: &TempFolder) -> Serving {
    let hashed = crate::support::run_with_input(&["token", "hash"], "secret\n").stdout;
    let text = format!(
        "[[auth.token]]\nname = \"reader\"\nhash = \"{}\"\nscopes = [\"subscribe:orders.*\", \"publish:orders.*\"]\n",
        hashed.trim()
    );
    let config = folder.file("prombus.toml", &text);
    Serving::start(serve(folder, &["--config", &config]))
}

fn fails(arguments: &[&str], texts: &[&str]) {
    let ran = run(arguments);
    assert_eq!(ran.code, Some(1), "{arguments:?}: {ran:?}");
    for text in texts {
        assert!(ran.stderr.contains(text), "{arguments:?}: {}", ran.stderr);
    }
    // One line, and no debug output of Rust.
    assert!(ran.stderr.lines().count() == 1 && !ran.stderr.contains(" { "), "{}", ran.stderr);
}

#[test]
fn an_unreachable_server_is_reported_with_what_to_do() {
    let expected = "cannot connect to http://127.0.0.1:1: connection refused; start a server with `prombus serve`, or name another \
                    with --url, PROMBUS_URL or `prombus context use`";
    fails(&["topic", "list", "--url", "http://127.0.0.1:1"], &[expected]);
    fails(&["dlq", "list", "--url", "ws://127.0.0.1:1"], &[expected]);
    let unknown = ["cannot connect to", "unknown host \"no-such-host.invalid\""];
    fails(&["topic", "list", "--url", "http://no-such-host.invalid"], &unknown);
}

#[test]
fn a_missing_token_a_wrong_token_and_a_missing_scope_are_told_apart() {
    let folder = TempFolder::new();
    let serving = with_reader(&folder);
    let url = format!("http://{}", serving.address());
    let url = ["--url", url.as_str()];
    fails(&[&["topic", "list"], &url[..]].concat(), &["a token is needed", "--token, PROMBUS_TOKEN"]);
    let wrong = [&["topic", "list", "--token", "wrong"], &url[..]].concat();
    fails(&wrong, &["refused access: the token is not valid", "--token, PROMBUS_TOKEN"]);
    let token = ["--token", "secret"];
    // Lists contain only what the token may read.
    for list in [&["topic", "list"][..], &["topic", "list", "--json"], &["group", "list"]] {
        let list = [list, &token[..], &url[..]].concat();
        fails(&list, &["this token sees no", "it needs the scope \"subscribe:**\""]);
        assert_eq!(run(&list).stdout, "");
    }
    for list in ["topic", "group"] {
        let list = [&[list, "list", "--prefix", "secret"], &token[..], &url[..]].concat();
        fails(&list, &["it needs the scope \"subscribe:secret.**\""]);
    }
    let bench = ["bench", "publish", "--messages", "10"];
    fails(&[&bench, &url[..]].concat(), &["a token is needed"]);
    let scope = ["needs the scope \"publish:bench.", "(forbidden)"];
    fails(&[&bench, &token[..], &url[..]].concat(), &scope);
    // It may read this topic, which has no groups.
    let groups = run(&[&["group", "list", "--topic", "orders.a"], &token[..], &url[..]].concat());
    assert_eq!((groups.code, groups.stdout.as_str()), (Some(0), "no groups\n"), "{groups:?}");
    let show = [&["topic", "show", "invoices"], &token[..], &url[..]].concat();
    fails(&show, &["this needs the scope \"subscribe:invoices\""]);
    let backup = folder.path().join("backup");
    let backup = [&["backup", backup.to_str().unwrap()], &token[..], &url[..]].concat();
    fails(&backup, &["the scope \"admin\""]);
}

#[test]
fn a_certificate_that_is_not_trusted_needs_ca_cert() {
    let folder = TempFolder::new();
    let (serving, cert) = with_tls(&folder, "localhost");
    let port = serving.address().port();
    let url = format!("https://localhost:{port}");
    let list = ["topic", "list", "--url", &url];
    fails(&list, &["the certificate of https://localhost", "is not trusted", "--ca-cert or PROMBUS_CA_CERT"]);
    let trusting = run(&[&list[..], &["--ca-cert", &cert]].concat());
    assert_eq!((trusting.code, trusting.stdout.as_str()), (Some(0), "no topics\n"), "{}", trusting.stderr);
    let ran: Ran = prombus(&list).env("PROMBUS_CA_CERT", &cert).output().unwrap().into();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let by_address = format!("https://127.0.0.1:{port}");
    let other_host = ["topic", "list", "--url", &by_address, "--ca-cert", &cert];
    fails(&other_host, &["it is not for the host 127.0.0.1, but for localhost"]);
    fails(&["topic", "list", "--url", &url, "--ca-cert", "/none.pem"], &["/none.pem: no such file"]);
    let text = folder.file("text.pem", "no certificate");
    fails(&["topic", "list", "--url", &url, "--ca-cert", &text], &["no certificate in PEM format"]);
    let plain = format!("http://localhost:{port}");
    fails(&["topic", "list", "--url", &plain], &["if the server uses TLS, use https://"]);
}

#[test]
fn tls_with_a_server_without_tls_is_explained() {
    let server = Server::start();
    let url = format!("https://127.0.0.1:{}", server.serving.address().port());
    fails(
        &["topic", "list", "--url", &url],
        &["no TLS connection to https://127.0.0.1", "use http:// instead of https://"],
    );
}

#[test]
fn a_drainer_ends_at_once_if_the_certificate_is_not_trusted() {
    let folder = TempFolder::new();
    let (serving, _) = with_tls(&folder, "localhost");
    let url = format!("wss://localhost:{}", serving.address().port());
    let database = folder.path().join("shop.db");
    let started = Instant::now();
    fails(
        &["outbox", "drain", "--sqlite", database.to_str().unwrap(), "--init", "--to", &url],
        &["is not trusted"],
    );
    assert!(started.elapsed() < Duration::from_secs(20), "it kept trying");
}

/// Runs a command with a file of contexts.
fn with_contexts(file: &Path, arguments: &[&str]) -> Ran {
    prombus(arguments).env("PROMBUS_CONTEXTS", file).output().unwrap().into()
}

#[test]
fn a_context_names_a_server_and_keeps_its_token_secret() {
    let folder = TempFolder::new();
    let serving = with_reader(&folder);
    let url = format!("http://{}", serving.address());
    let file = folder.path().join("config/contexts.toml");
    let context = |arguments: &[&str]| with_contexts(&file, arguments);
    let token = folder.file("token", "secret\n");
    assert_eq!(context(&["context", "list"]).stdout, "no contexts; `prombus context add` adds one\n");
    let added = context(&["context", "add", "dev", "--url", &url, "--token-file", &token]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    assert_eq!(context(&["pub", "orders.a", "1", "--context", "dev"]).code, Some(0));
    assert!(context(&["topic", "list", "--context", "dev"]).stdout.contains("orders.a"));
    // The flag takes precedence over the variables, also with the value of its variable.
    let listed: Ran = prombus(&["topic", "list", "--context", "dev"])
        .env("PROMBUS_CONTEXTS", &file)
        .env("PROMBUS_CONTEXT", "dev")
        .env("PROMBUS_URL", "http://127.0.0.1:1")
        .env("PROMBUS_TOKEN", "wrong")
        .output()
        .unwrap()
        .into();
    assert!(listed.stdout.contains("orders.a"), "{listed:?}");
    assert_eq!(context(&["context", "use", "dev"]).code, Some(0));
    assert!(context(&["topic", "list"]).stdout.contains("orders.a"));
    let json = |arguments: &[&str]| -> Value {
        let ran = context(&[arguments, &["--json"]].concat());
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {ran:?}"))
    };
    assert_eq!(json(&["context", "add", "other", "--url", &url, "--token", "hunter2"])["token"], "***");
    assert_eq!(json(&["context", "use", "other"])["current"], "other");
    assert_eq!(json(&["context", "remove", "other"])["removed"], "other");
    assert_eq!(context(&["context", "use", "dev"]).code, Some(0));
    let misnamed = context(&["context", "add", "a b", "--url", &url]);
    assert!(misnamed.code == Some(2) && misnamed.stderr.contains("name of a context"), "{misnamed:?}");
    for arguments in [&["context", "list"][..], &["context", "show"], &["context", "list", "--json"]] {
        let shown = context(arguments);
        assert!(shown.stdout.contains(&url) && !shown.stdout.contains("secret"), "{shown:?}");
    }
    // The same machine, but another server: the token stays here.
    let other = Server::start();
    let refused = context(&["topic", "list", "--url", &format!("https://{}", serving.address())]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert_eq!(context(&["topic", "list", "--url", &other.url()]).code, Some(0));
    let twice = context(&["context", "add", "dev", "--url", &url]);
    assert!(twice.code == Some(1) && twice.stderr.contains("--force"), "{twice:?}");
    assert_eq!(context(&["context", "remove", "dev"]).code, Some(0));
    assert!(context(&["context", "show"]).stderr.contains("no context is in use"));
    assert!(context(&["topic", "list", "--context", "dev"]).stderr.contains("there is no context \"dev\""));
}

#[test]
fn contexts_that_are_added_at_the_same_time_are_all_kept() {
    let folder = TempFolder::new();
    let (link, file) = (folder.path().join("contexts.toml"), folder.path().join("dotfile.toml"));
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let add = |number: usize| {
        let name = format!("c{number}");
        let mut command = prombus(&["context", "add", &name, "--url", "http://127.0.0.1:1"]);
        command.env("PROMBUS_CONTEXTS", &link).stdout(Stdio::null()).spawn().unwrap()
    };
    let adding: Vec<_> = (0..20).map(add).collect();
    adding.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
    let listed = with_contexts(&link, &["context", "list", "--json"]).stdout;
    assert_eq!(serde_json::from_str::<Vec<Value>>(&listed).unwrap().len(), 20, "{listed}");
    assert!(link.is_symlink(), "the link was replaced");
}

#[test]
fn a_home_without_access_has_no_contexts() {
    let mut command = prombus(&["topic", "list", "--url", "http://127.0.0.1:1"]);
    command.env_remove("PROMBUS_CONTEXTS").env_remove("XDG_CONFIG_HOME").env("HOME", "/dev/null");
    let ran: Ran = command.output().unwrap().into();
    assert!(ran.stderr.contains("cannot connect to http://127.0.0.1:1"), "{ran:?}");
}

#[test]
fn a_file_of_contexts_that_others_can_read_is_refused() {
    let folder = TempFolder::new();
    let file = folder.path().join("contexts.toml");
    let added = with_contexts(&file, &["context", "add", "dev", "--url", "http://127.0.0.1:1", "--use"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let refused = with_contexts(&file, &["topic", "list"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("chmod 600"), "{refused:?}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&file, "[context.dev]\nurl = \"http://127.0.0.1:1\"\ntoken = hunter2\n").unwrap();
    let bad = with_contexts(&file, &["topic", "list"]);
    assert!(
        bad.code == Some(1) && bad.stderr.contains("line 3") && !bad.stderr.contains("hunter2"),
        "{bad:?}"
    );
}

#[test]
fn results_are_json_on_request() {
    let server = Server::start();
    let json = |arguments: &[&str]| -> Value {
        let text = server.ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    };
    let file = server.folder.file("orders.ndjson", &(lines("orders", 0..3).join("\n") + "\n"));
    assert_eq!(json(&["import", &file])["imported"], 3);
    assert_eq!(json(&["import", &file])["duplicates"], 3);
    assert_eq!(json(&["replay", "orders", "copy", "--dry-run"])["events"], 3);
    assert_eq!(json(&["replay", "orders", "copy"])["published"], 3);
    let out = server.folder.path().join("out.ndjson");
    assert_eq!(json(&["export", "orders", "-o", out.to_str().unwrap()])["events"], 3);
    assert_eq!(json(&["topic", "set", "orders", "max_attempts=7"])["set"]["max_attempts"], 7);
    assert_eq!(json(&["topic", "delete", "copy", "--yes"])["deleted"], true);
    let backup = server.folder.path().join("backup");
    assert_eq!(json(&["backup", backup.to_str().unwrap()])["folder"], backup.to_str().unwrap());
    let verified = json(&["verify", "--data", backup.to_str().unwrap()]);
    assert_eq!((&verified["faults"], verified["events"].as_u64() >= Some(3)), (&serde_json::json!([]), true));
    assert!(json(&["token", "new"])["token"].as_str().unwrap().starts_with("prombus_"));
    let config = server.folder.file("prombus.toml", "data = \"x\"\n");
    assert_eq!(json(&["config", "check", &config])["ok"], true);
    assert_eq!(server.ok(&["topic", "delete", "orders", "--yes"]), "deleted orders with its 3 events\n");
}

#[test]
fn files_of_a_running_server_are_inspected() {
    let server = Server::start();
    server.import(&lines("orders", 0..12));
    let data = server.folder.path().join("data");
    let mut files: Vec<_> = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in &files {
        let ran = run(&["inspect", file.to_str().unwrap(), "--limit", "50"]);
        assert!(ran.code == Some(0) || ran.code == Some(1), "{}: {ran:?}", file.display());
    }
    let is_begun = |file: &&std::path::PathBuf| {
        let ran = run(&["inspect", file.to_str().unwrap(), "--limit", "3"]);
        file.extension().is_some_and(|end| end == "seg") && ran.stdout.contains("topic ")
    };
    let segment = files.iter().find(is_begun).expect("a segment with events");
    let ran = run(&["inspect", segment.to_str().unwrap(), "--json"]);
    let all: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = all.iter().filter(|line| line["kind"] == "event").collect();
    assert_eq!((events.len(), &events[11]["seq"]), (12, &12.into()), "{}", ran.stdout);
    assert!(all.iter().any(|line| line["kind"] == "commit" && line["batch"].as_u64() > Some(0)));
    // A flipped bit in a body of a copy is found.
    let copies = TempFolder::new();
    let copy = copies.path().join(segment.file_name().unwrap());
    let mut bytes = std::fs::read(segment).unwrap();
    let at = events[3]["position"].as_u64().unwrap() as usize + 70;
    bytes[at] ^= 1;
    std::fs::write(&copy, bytes).unwrap();
    let damaged = run(&["inspect", copy.to_str().unwrap()]);
    assert!(damaged.code == Some(1) && damaged.stdout.contains("BODY DAMAGED"), "{:?}", damaged.code);
    let garbage = copies.file("0000000000000009.seg", "garbage");
    assert_eq!(run(&["inspect", &garbage]).code, Some(1));
    let other = copies.file("notes.txt", "notes");
    let refused = run(&["inspect", &other]);
    assert!(refused.code == Some(2) && refused.stderr.contains("not a file of a data folder"), "{refused:?}");
    assert_eq!(run(&["inspect", "/none"]).code, Some(2));
    assert_eq!(run(&["inspect", data.to_str().unwrap()]).code, Some(2));
}

#[test]
fn completions_and_man_pages_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&["completions", shell]);
        assert!(ran.code == Some(0) && ran.stdout.contains("redrive"), "{shell}: {:?}", ran.code);
    }
    let folder = TempFolder::new();
    let man = folder.path().join("man1");
    let ran = run(&["man", man.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let page = std::fs::read_to_string(man.join("prombus-topic-list.1")).unwrap();
    assert!(page.contains("PROMBUS_URL"), "{page}");
    assert!(run(&["man"]).stdout.starts_with(".ie"), "the main page");
}

#[test]
fn a_port_is_short_for_an_address_on_this_machine() {
    let folder = TempFolder::new();
    let data = folder.path().join("data");
    let serving = Serving::start(prombus(&["serve", "--port", "0", "--data", data.to_str().unwrap()]));
    assert!(serving.address().ip().is_loopback());
    let both = run(&["serve", "--port", "1", "--listen", "127.0.0.1:2"]);
    assert!(both.code == Some(2) && both.stderr.contains("--port"), "{both:?}");
}
