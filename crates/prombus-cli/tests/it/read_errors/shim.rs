//! Read errors for a real server: a small library, built here and preloaded, that lets reads fail.

use crate::support::TempFolder;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where reads fail, for the servers of one test.
pub struct Shim {
    control: PathBuf,
}

/// The library, built once for all tests.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<(TempFolder, PathBuf)> = OnceLock::new();
    let (_, path) = LIBRARY.get_or_init(|| {
        let folder = TempFolder::new();
        let path = folder.path().join("shim.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/read_errors/shim.c");
        // Whatever links Rust programs compiles this too.
        let mut build = Command::new("cc");
        build.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&path).arg(source).arg("-ldl");
        let output = build.output().expect("cc runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (folder, path)
    });
    path
}

impl Shim {
    pub fn new(folder: &TempFolder) -> Self {
        Self { control: folder.path().join("read-errors") }
    }

    /// Lets the reads of a command fail when the test says so.
    pub fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", library()).env("READ_ERRORS_CONTROL", &self.control);
    }

    /// From now on reads of these bytes of files whose path has this part fail.
    pub fn fail(&self, rules: &[(&str, u64, u64)]) {
        let lines: Vec<String> = rules
            .iter()
            .map(|(part, start, end)| format!("{part} {start} {}", (*end).min(1 << 60)))
            .collect();
        let new = self.control.with_extension("new");
        std::fs::write(&new, lines.join("\n")).unwrap();
        std::fs::rename(new, &self.control).unwrap();
    }

    /// From now on all reads work.
    pub fn pass(&self) {
        let _ = std::fs::remove_file(&self.control);
    }
}
