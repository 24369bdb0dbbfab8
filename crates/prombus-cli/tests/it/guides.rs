//! The commands of the guides in docs/, as printed there, against a real server. Only the port is another.

use crate::serving::Serving;
use crate::support::TempFolder;
use std::path::Path;
use std::process::{Command, Stdio};

/// `curl` fails on HTTP errors and leaves a stream after two seconds; `prombus` is the binary of these tests.
const PRELUDE: &str = r#"set -eux
curl() {
  case " $* " in
    *" -N "*) command curl -sSf --max-time 2 "$@" || [ "$?" -eq 28 ] ;;
    *) command curl -sSf "$@" ;;
  esac
}
prombus() { "$BINARY" "$@"; }
"#;

/// What the tables of coming-from.md assume to exist.
const TABLE_SETUP: &str = r#"
printf '{"total": 13}\n{"total": 14}' > orders.ndjson
curl -d '"calm"' "$BUS/publish/moods?key=ada"
curl -d '{}' "$BUS/publish/dlq.orders.new"
"#;

fn page(name: &str) -> String {
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
    std::fs::read_to_string(docs.join(name)).unwrap()
}

/// The `sh` blocks of a page as one script. Blocks that are marked `sh no-run` are left out.
fn blocks(page: &str) -> String {
    page.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

/// The commands in the second column of a page's tables.
fn table_commands(page: &str) -> Vec<&str> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").nth(1));
    let code = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    code.filter(|code| code.starts_with("curl ") || code.starts_with("prombus ")).collect()
}

/// Runs a script against a server of its own, in an empty folder.
fn run_script(script: &str) {
    if Command::new("curl").arg("--version").output().is_err() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "curl is not installed");
        return;
    }
    let (data, work) = (TempFolder::new(), TempFolder::new());
    let serving = Serving::in_folder(&data, &[]);
    let address = &serving.addresses()[0];
    let script = format!("{PRELUDE}{script}").replace("127.0.0.1:8090", address);
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(work.path())
        .env("BINARY", env!("CARGO_BIN_EXE_prombus"))
        .env("PROMBUS_URL", format!("http://{address}"))
        .env("no_proxy", "*")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the last line that ran failed:\n{stderr}");
}

#[test]
fn the_commands_about_state_work_as_printed() {
    run_script(&blocks(&page("state.md")));
}

#[test]
fn the_commands_for_agents_work_as_printed() {
    run_script(&blocks(&page("agents.md")));
}

#[test]
fn the_commands_for_users_of_other_brokers_work_as_printed() {
    let page = page("coming-from.md");
    let commands = table_commands(&page);
    assert!(commands.len() >= 30, "{commands:?}");
    run_script(&format!("{}{TABLE_SETUP}{}\n", blocks(&page), commands.join("\n")));
}
