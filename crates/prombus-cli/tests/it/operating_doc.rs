//! Tests that docs/operating.md matches the settings and metrics of the server.

use crate::serving::Serving;
use crate::support::{Ran, TempFolder, prombus, run};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A key set as identity providers publish it: the example of RFC 7517.
const KEYS: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256", "use": "sig", "kid": "1",
    "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");
    std::fs::read_to_string(path).unwrap()
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_documented_metrics_are_exactly_those_of_the_server() {
    let document = document();
    let section = document.split("\n## Metrics\n").nth(1).unwrap().split("\n## ").next().unwrap();
    // The metrics of shared stores follow; prombus-server tests those.
    let table = section.split("\nWhere several gateways share a store, also:\n").next().unwrap();
    let documented: BTreeSet<&str> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let folder = TempFolder::new();
    let serving = Serving::in_folder(&folder, &[]);
    let metrics = get(&serving.addresses()[0], "/metrics");
    let families: BTreeSet<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    // Only Linux has metrics of the process.
    let is_here = |name: &&str| cfg!(target_os = "linux") || !name.starts_with("process_");
    assert_eq!(documented.into_iter().filter(is_here).collect::<BTreeSet<_>>(), families);
}

#[test]
fn every_config_example_is_valid() {
    let folder = TempFolder::new();
    folder.file("jwks.json", KEYS);
    let document = document();
    let pieces: Vec<&str> =
        document.split("```toml\n").skip(1).map(|piece| piece.split("```").next().unwrap()).collect();
    assert!(pieces.len() >= 4, "{pieces:?}");
    for piece in pieces {
        let file = folder.file("prombus.toml", piece);
        let ran: Ran =
            prombus(&["config", "check", &file]).current_dir(folder.path()).output().unwrap().into();
        assert_eq!(ran.code, Some(0), "{piece}\n{ran:?}");
    }
}

#[test]
fn every_setting_of_the_tables_exists() {
    let default = run(&["config", "default"]).stdout;
    let document = document();
    let keys = |section: &str| -> Vec<String> {
        let text =
            document.split(&format!("\n## {section}\n")).nth(1).unwrap().split("\n## ").next().unwrap();
        let cells =
            text.lines().filter(|line| line.starts_with("| `")).map(|line| line.split('|').nth(1).unwrap());
        cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
    };
    for key in keys("Limits") {
        let name = key.rsplit('.').next().unwrap();
        assert!(default.contains(&format!("\n#{name} = ")), "{key} is not a setting");
    }
}
