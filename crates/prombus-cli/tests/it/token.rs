//! Tests of `prombus token`.

use crate::support::{TempFolder, run, run_with_input};

#[test]
fn a_new_token_is_printed_with_a_valid_config_block_that_has_its_hash() {
    let made =
        run(&["token", "new", "--name", "billing", "--scope", "subscribe:orders.**", "--scope", "admin"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let token = made.stdout.lines().find(|line| line.starts_with("prombus_")).unwrap();
    let block = &made.stdout[made.stdout.find("[[auth.token]]").unwrap()..];
    assert!(block.contains("name = \"billing\"\n"), "{block}");
    assert!(block.contains("scopes = [\"subscribe:orders.**\", \"admin\"]"), "{block}");
    assert!(!block.contains(token));
    let folder = TempFolder::new();
    let file = folder.file("p.toml", block);
    let checked = run(&["config", "check", &file]);
    assert_eq!(checked.code, Some(0), "{}", checked.stdout);

    let hashed = run_with_input(&["token", "hash"], &format!("{token}\n"));
    assert_eq!(hashed.code, Some(0));
    assert!(hashed.stdout.starts_with("sha256:"));
    assert!(block.contains(hashed.stdout.trim()), "the block has another hash: {block} {}", hashed.stdout);
}

#[test]
fn bad_scopes_and_empty_tokens_are_refused() {
    let made = run(&["token", "new", "--scope", "write:**"]);
    assert_eq!(made.code, Some(2));
    assert!(made.stderr.contains("--scope"), "{}", made.stderr);
    assert!(made.stdout.is_empty());
    let hashed = run_with_input(&["token", "hash"], "\n");
    assert_eq!(hashed.code, Some(1));
    assert!(hashed.stderr.starts_with("prombus: no token on standard input"), "{}", hashed.stderr);
}
