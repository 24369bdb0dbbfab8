//! The command line: the arguments after `--` of `cargo bench`.

use std::path::PathBuf;
use std::time::Duration;

pub const HELP: &str = "\
cargo bench -p prombus-log [-- OPTIONS]

  --quick                  short rounds, one repetition, 5 s sustained
  --only TEXT              only rows whose name contains TEXT
  --json FILE              write every round to FILE
  --seconds N              length of a round [2]
  --sustained-seconds N    length of a sustained round [60]
  --repetitions N          rounds of each row; the median is printed [3]

PROMBUS_BENCH_DIR names the folder to work in; by default it is in the target folder.
";

/// The command to run.
#[derive(Debug)]
pub enum Command {
    Help,
    Run(Arguments),
}

/// The arguments of a run.
#[derive(Debug)]
pub struct Arguments {
    pub round: Duration,
    pub sustained_round: Duration,
    pub repetitions: usize,
    /// Events in the log that is scanned from files.
    pub scanned_events: u64,
    /// The minimum number of segments filled before the measurement starts, so that the log's tail is full and its buffers
    /// have grown.
    pub warm_up_segments: usize,
    pub json: Option<PathBuf>,
    only: Option<String>,
}

impl Arguments {
    /// `cargo bench` passes `--bench`. Without it (`cargo test --benches`) rounds are very short and only show that
    /// everything runs.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
        let arguments: Vec<String> = arguments.collect();
        let has = |name: &str| arguments.iter().any(|argument| argument == name);
        if has("--help") || has("-h") {
            return Ok(Command::Help);
        }
        let (round_ms, sustained_ms, repetitions, scanned_events, warm_up_segments) = if has("--quick") {
            (500, 5_000, 1, 300_000, 3)
        } else if has("--bench") {
            (2_000, 60_000, 3, 1_000_000, 3)
        } else {
            (50, 200, 1, 20_000, 0)
        };
        let mut parsed = Self {
            round: Duration::from_millis(round_ms),
            sustained_round: Duration::from_millis(sustained_ms),
            repetitions,
            scanned_events,
            warm_up_segments,
            json: None,
            only: None,
        };
        let mut rest = arguments.into_iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--bench" | "--quick" => {}
                "--only" => parsed.only = Some(value()?),
                "--json" => parsed.json = Some(PathBuf::from(value()?)),
                "--seconds" => parsed.round = seconds(&argument, &value()?)?,
                "--sustained-seconds" => parsed.sustained_round = seconds(&argument, &value()?)?,
                "--repetitions" => {
                    let text = value()?;
                    parsed.repetitions =
                        text.parse().ok().filter(|&count| count > 0).ok_or_else(|| bad(&argument, &text))?;
                }
                other => return Err(format!("unknown option {other}\n\n{HELP}")),
            }
        }
        Ok(Command::Run(parsed))
    }

    /// Whether a row with this name is selected.
    pub fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

fn seconds(argument: &str, text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&seconds: &f64| seconds > 0.0);
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| bad(argument, text))
}

fn bad(argument: &str, text: &str) -> String {
    format!("{argument} {text}: expected a number above zero")
}
