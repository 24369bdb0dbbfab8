//! Arguments of the commands that print what is generated from these definitions: completions and man pages.

use clap::{Args as ClapArgs, ValueEnum};
use std::path::PathBuf;

pub(super) const COMPLETIONS_HELP: &str = "\
Examples:
  prombus completions bash > ~/.local/share/bash-completion/completions/prombus
  prombus completions zsh > ~/.zfunc/_prombus          with fpath+=(~/.zfunc) before compinit in ~/.zshrc
  prombus completions fish > ~/.config/fish/completions/prombus.fish";

/// Arguments of `completions`.
#[derive(Debug, ClapArgs)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// A shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// Bash
    Bash,
    /// Zsh
    Zsh,
    /// Fish
    Fish,
}

pub(super) const MAN_HELP: &str = "\
Examples:
  prombus man | man -l -
  prombus man ~/.local/share/man/man1";

/// Arguments of `man`.
#[derive(Debug, ClapArgs)]
pub struct ManArgs {
    /// Write a page for each command to this folder, which is created if it does not exist; without it, the main page is printed
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
}
