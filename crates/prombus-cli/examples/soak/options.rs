//! Parses the command line.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) struct Options {
    pub(crate) minutes: f64,
    pub(crate) seed: u64,
    pub(crate) binary: PathBuf,
    /// Publishes per second.
    pub(crate) rate: u64,
    pub(crate) keeps_data: bool,
    pub(crate) folder: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut options = Self {
            minutes: 30.0,
            seed: now.as_millis() as u64,
            binary: PathBuf::new(),
            rate: 500,
            keeps_data: false,
            folder: None,
        };
        while let Some(name) = arguments.next() {
            if name == "--keep" {
                options.keeps_data = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let wrong = |_| format!("{name}: {value:?} is not a number");
            match name.as_str() {
                "--minutes" => {
                    options.minutes =
                        value.parse().map_err(|_| format!("{name}: {value:?} is not a number"))?;
                }
                "--seed" => options.seed = value.parse().map_err(wrong)?,
                "--rate" => options.rate = value.parse().map_err(wrong)?,
                "--bin" => options.binary = value.into(),
                "--folder" => options.folder = Some(value.into()),
                _ => return Err(format!("unknown option {name}")),
            }
        }
        if options.binary.as_os_str().is_empty() {
            return Err("--bin is missing; scripts/soak sets it".to_owned());
        }
        Ok(options)
    }
}
