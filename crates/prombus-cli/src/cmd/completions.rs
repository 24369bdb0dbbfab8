//! `prombus completions`: prints the completions for a shell, from the definitions of the arguments.

use crate::args::{Args, CompletionsArgs, Shell};
use crate::output::stdout;
use clap::CommandFactory;
use std::io::Write;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    stdout().write_all(&script(args.shell))?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    // Into memory first: the generator panics if its output fails, as a closed pipe does.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "prombus", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const SHELLS: [(Shell, &str); 3] = [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")];

    #[test]
    fn scripts_contain_every_command_and_every_flag() {
        fn check(command: &clap::Command, script: &str, shell: &str) {
            for command in command.get_subcommands().filter(|it| !it.is_hide_set()) {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
                for flag in
                    command.get_arguments().filter(|it| !it.is_hide_set()).filter_map(clap::Arg::get_long)
                {
                    // Fish has `-l flag`.
                    let is_there =
                        script.contains(&format!("--{flag}")) || script.contains(&format!("-l {flag}"));
                    assert!(is_there, "{shell}: {} --{flag}", command.get_name());
                }
                check(command, script, shell);
            }
        }
        let mut command = Args::command();
        command.build();
        for (shell, name) in SHELLS {
            check(&command, &String::from_utf8(script(shell)).unwrap(), name);
        }
    }

    #[test]
    fn scripts_are_valid_for_the_shells_of_this_machine() {
        let mut checked = 0;
        for (shell, name) in SHELLS {
            let child = Command::new(name).arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
            let Ok(mut child) = child else { continue };
            child.stdin.take().unwrap().write_all(&script(shell)).unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            checked += 1;
        }
        assert!(checked > 0, "this machine has none of the shells");
    }
}
