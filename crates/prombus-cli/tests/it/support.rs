//! Runs the binary in a temporary folder, without the `PROMBUS_` and `WS_` variables of the test process.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary folder, removed when it is dropped.
pub struct TempFolder(PathBuf);

impl TempFolder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("prombus-cli-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A command that runs the binary.
pub fn prombus(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prombus"));
    for (name, _) in std::env::vars_os() {
        let is_ours =
            name.to_str().is_some_and(|name| name.starts_with("PROMBUS_") || name.starts_with("WS_"));
        if is_ours || name == "HTTP_PORT" {
            command.env_remove(&name);
        }
    }
    // The contexts of the user who runs the tests do not apply.
    command.env("PROMBUS_CONTEXTS", "/nonexistent/contexts.toml");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs the binary to its end.
pub fn run(arguments: &[&str]) -> Ran {
    prombus(arguments).output().unwrap().into()
}

/// Runs the binary with `input` on standard input.
pub fn run_with_input(arguments: &[&str], input: &str) -> Ran {
    let mut child = prombus(arguments).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}
