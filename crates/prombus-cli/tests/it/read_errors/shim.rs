//! Injects read errors into a real server, with a small preloaded library that is built here.

use crate::support::TempFolder;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Controls the read errors of one test's servers.
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
        // Rust needs a C compiler for linking, so there is one.
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

    /// Preloads the library into a command.
    pub fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", library()).env("READ_ERRORS_CONTROL", &self.control);
    }

    /// Makes reads fail. A rule is a part of the file's path, the first byte, and the byte after the last.
    pub fn fail(&self, rules: &[(&str, u64, u64)]) {
        let lines: Vec<String> = rules
            .iter()
            .map(|(part, start, end)| format!("{part} {start} {}", (*end).min(1 << 60)))
            .collect();
        let new = self.control.with_extension("new");
        std::fs::write(&new, lines.join("\n")).unwrap();
        std::fs::rename(new, &self.control).unwrap();
    }

    /// Makes all reads succeed again.
    pub fn pass(&self) {
        let _ = std::fs::remove_file(&self.control);
    }
}
