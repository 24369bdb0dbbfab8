//! Asks before a change that cannot be undone.

use std::io::{IsTerminal, Write, stderr, stdin};

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    Yes,
    No,
    /// Standard input is not a terminal, so nobody was asked.
    NotAsked,
}

/// Asks a question on the terminal. Anything but `y` or `yes` means no.
///
/// # Errors
/// When the terminal cannot be read.
pub fn ask(question: &str) -> std::io::Result<Confirmation> {
    if !stdin().is_terminal() {
        return Ok(Confirmation::NotAsked);
    }
    write!(stderr(), "{question} [y/N] ")?;
    let mut typed = String::new();
    stdin().read_line(&mut typed)?;
    let is_yes = matches!(typed.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    Ok(if is_yes { Confirmation::Yes } else { Confirmation::No })
}
