//! `prombus man`: man pages, from the definitions of the arguments.

use crate::args::{Args, ManArgs};
use crate::output::stdout;
use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// When a page cannot be written.
pub fn run(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let pages = pages()?;
    match &args.folder {
        Some(folder) => write_all(folder, &pages).with_context(|| folder.display().to_string())?,
        None => stdout().write_all(&pages[0].1)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write_all(folder: &Path, pages: &[(String, Vec<u8>)]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (file, page) in pages {
        std::fs::write(folder.join(file), page).with_context(|| file.clone())?;
    }
    writeln!(stdout(), "{} man pages in {}", pages.len(), folder.display())?;
    Ok(())
}

/// The name and text of every page; the first is that of `prombus` itself.
fn pages() -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    pages.push((man.get_filename(), page));
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        add_pages(command, pages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_command_has_a_page_with_all_its_flags() {
        fn check(command: &Command, prefix: &str, pages: &[(String, Vec<u8>)]) -> usize {
            let name = format!("{prefix}{}", command.get_name());
            let page = pages.iter().find(|(file, _)| *file == format!("{name}.1"));
            let (_, text) = page.unwrap_or_else(|| panic!("{name} has no page"));
            // In man pages, a dash is written as `\\-`.
            let text = String::from_utf8_lossy(text).replace('\\', "");
            for flag in command.get_arguments().filter(|it| !it.is_hide_set()).filter_map(clap::Arg::get_long)
            {
                assert!(text.contains(&format!("--{flag}")), "{name}: --{flag}");
            }
            let inner: usize =
                command.get_subcommands().map(|inner| check(inner, &format!("{name}-"), pages)).sum();
            inner + 1
        }
        let pages = pages().unwrap();
        let mut command = Args::command().disable_help_subcommand(true);
        command.build();
        assert_eq!(check(&command, "", &pages), pages.len());
        let names: BTreeSet<_> = pages.iter().map(|(file, _)| file).collect();
        assert_eq!(names.len(), pages.len(), "two pages have one name");
        let main = String::from_utf8_lossy(&pages[0].1).into_owned();
        assert!(pages[0].0 == "prombus.1" && main.contains("Exit codes"), "{main}");
    }
}
