//! README.md and the pages that a newcomer reads next: their commands run as printed, against a real server, and print what the
//! page shows. Only the port is different.

use crate::serving::Serving;
use crate::support::{TempFolder, prombus};
use std::process::{Command, Stdio};

fn page(name: &str) -> String {
    let path = format!("{}/../../{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// A code block of a page.
struct Block<'a> {
    language: &'a str,
    text: &'a str,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let fenced = page.split("\n```").skip(1).step_by(2);
    fenced
        .map(|block| {
            let (language, text) = block.split_once('\n').unwrap();
            Block { language, text }
        })
        .collect()
}

/// Whether curl is installed. In CI it must be.
fn has_curl() -> bool {
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    assert!(has_curl || std::env::var("CI").as_deref() != Ok("true"), "curl is not installed");
    has_curl
}

/// Replaces ids and times, which differ from run to run.
fn normalized(output: &str) -> String {
    let is_part = |char: char| char.is_ascii_hexdigit() || "-:.TZ".contains(char);
    let mut text = String::new();
    let mut rest = output.trim_end();
    while let Some(first) = rest.chars().next() {
        let token_bytes = rest.find(|char| !is_part(char)).unwrap_or(rest.len());
        let is_id_or_time = first.is_ascii_hexdigit() && token_bytes >= 13;
        let taken_bytes = if is_id_or_time { token_bytes } else { first.len_utf8() };
        text.push_str(if is_id_or_time { "…" } else { &rest[..taken_bytes] });
        rest = &rest[taken_bytes..];
    }
    text
}

/// Runs the commands of a page in order. The output of each block must be that of the `text` block that follows it, if there is one.
fn run_commands(blocks: &[Block<'_>]) {
    if !has_curl() {
        return;
    }
    let folder = TempFolder::new();
    let work = TempFolder::new();
    let serving = Serving::in_folder(&folder, &[]);
    let address = &serving.addresses()[0];
    let binary_folder = std::path::Path::new(env!("CARGO_BIN_EXE_prombus")).parent().unwrap();
    let path = format!("{}:{}", binary_folder.display(), std::env::var("PATH").unwrap());
    let mut commands = 0;
    for (at, block) in blocks.iter().enumerate().filter(|(_, block)| block.language == "sh") {
        let mut printed = String::new();
        for line in block.text.lines().filter(|line| *line != r#"PATH="$PWD/target/release:$PATH""#) {
            let mut shell = Command::new("sh");
            shell.args(["-c", &line.replace("127.0.0.1:8090", address)]).current_dir(work.path());
            shell.env("PATH", &path).env("PROMBUS_URL", format!("http://{address}")).env("no_proxy", "*");
            let output = shell.stdin(Stdio::null()).output().unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            let output = String::from_utf8(output.stdout).unwrap();
            assert!(!output.contains(r#""error""#), "{line}: {output}");
            printed.push_str(output.trim_end());
            printed.push('\n');
            commands += 1;
        }
        if let Some(expected) = blocks.get(at + 1).filter(|next| next.language == "text") {
            assert_eq!(normalized(&printed), normalized(expected.text), "{}", block.text);
        }
    }
    assert!(commands > 3, "only {commands} commands were found");
}

#[test]
fn the_readme_fits_on_a_few_screens() {
    assert!(page("README.md").lines().count() < 200);
}

#[test]
fn the_two_commands_are_there() {
    let readme = page("README.md");
    for command in ["cargo run --release -- serve", "scripts/test"] {
        assert!(
            blocks(&readme).iter().any(|block| block.language == "sh" && block.text.trim_end() == command),
            "{command}"
        );
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test");
    assert!(std::path::Path::new(script).exists());
}

#[test]
fn the_server_prints_what_the_readme_shows() {
    let folder = TempFolder::new();
    let serving = Serving::start({
        let mut serve = prombus(&["serve", "--listen", "127.0.0.1:0"]);
        serve.current_dir(folder.path());
        serve
    });
    let readme = page("README.md");
    let shown = blocks(&readme).into_iter().find(|block| block.text.starts_with("prombus ")).unwrap();
    let folder = folder.path().canonicalize().unwrap().display().to_string();
    let printed = serving.banner.join("\n").replace(&serving.addresses()[0], "127.0.0.1:8090");
    assert_eq!(printed.replace(&folder, "/home/ada/prombus"), shown.text.trim_end());
}

#[test]
fn the_tutorial_works_as_printed() {
    run_commands(&blocks(&page("docs/tutorial.md")));
}

#[test]
fn ids_and_times_are_normalized_and_nothing_else() {
    let line = r#"{"id":"118f5c76-d3df-544f-bb3c-f9d93ccaff8b","seq":4,"ts":1795005502873} 2026-11-18T12:37:49.559Z  a.b 12 €"#;
    assert_eq!(normalized(line), r#"{"id":"…","seq":4,"ts":…} …  a.b 12 €"#);
    assert_ne!(normalized("1 letters"), normalized("2 letters"));
}
