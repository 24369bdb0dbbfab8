//! Generates the flags of `serve` from the settings in `definitions`.

use super::definitions;
use super::setting::{Flag, Kind, Setting, Shown};
use super::source::Source;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};

/// A flag that is another form of `--listen`, not a setting of its own.
const PORT: &str = "port";

/// The settings given as flags.
#[derive(Clone, Debug, Default)]
pub struct SettingFlags {
    /// The values; their origins are the names of the flags.
    pub source: Source,
}

fn help(setting: &Setting) -> String {
    let doc = setting.doc.trim_end_matches('.');
    match (&setting.kind, &setting.shown) {
        (Kind::Switch, _) | (_, Shown::Example(..)) => doc.to_owned(),
        (Kind::Texts, _) => {
            let default = setting.default_toml();
            format!("{doc}; may be given more than once [default: {}]", default.trim_matches(['[', ']', '"']))
        }
        _ => format!("{doc} [default: {}]", setting.default_toml().trim_matches('"')),
    }
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        let flags = definitions::all().filter_map(|setting| {
            let Flag { name, value_name } = setting.flag.as_ref()?;
            let arg = Arg::new(setting.path).long(*name).help(help(setting));
            Some(match setting.kind {
                Kind::Switch => arg.action(ArgAction::SetTrue),
                Kind::Texts => arg.action(ArgAction::Append).value_name(*value_name),
                _ => arg.action(ArgAction::Set).value_name(*value_name),
            })
        });
        let port = Arg::new(PORT)
            .long(PORT)
            .value_name("PORT")
            .value_parser(value_parser!(u16))
            .conflicts_with("listen")
            .help("Listen on this port of 127.0.0.1: short for --listen 127.0.0.1:PORT");
        command.args(flags).arg(port)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in definitions::all() {
            let (path, Some(flag)) = (setting.path, &setting.flag) else { continue };
            let called = format!("--{}", flag.name);
            match setting.kind {
                Kind::Switch if matches.get_flag(path) => self.source.set(path, &called, true),
                Kind::Switch => {}
                Kind::Texts => {
                    if let Some(texts) = matches.get_many::<String>(path) {
                        self.source.set(path, &called, texts.cloned().collect::<Vec<_>>());
                    }
                }
                _ => {
                    if let Some(text) = matches.get_one::<String>(path) {
                        self.source.set(path, &called, text.clone());
                    }
                }
            }
        }
        if let Some(port) = matches.get_one::<u16>(PORT) {
            self.source.set("listen", "--port", vec![format!("127.0.0.1:{port}")]);
        }
        Ok(())
    }
}
