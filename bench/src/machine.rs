//! Describes the machine of a measurement: figures mean little without it.

use anyhow::{Context, bail};
use prombus_bench::process::first_line;
use serde::{Deserialize, Serialize};
use std::fs::{File, read_to_string};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// The machine, as it is at the start of the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that this program may use.
    pub cores: usize,
    /// The size of the memory.
    pub memory_bytes: u64,
    /// The kernel's version.
    pub kernel: String,
    /// The file system of the servers' data.
    pub file_system: String,
    /// Its disk, and whether the kernel reports it as rotational.
    pub disk: String,
    /// The median time of a 4 KiB write with `fdatasync` to a preallocated file.
    pub sync_ms: f64,
    /// The load average over one, five and fifteen minutes.
    pub load_average: String,
}

const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

impl Machine {
    /// Describes this machine and the disk of this folder.
    ///
    /// # Errors
    /// If the folder is in memory, or cannot be written.
    pub fn detect(folder: &Path) -> anyhow::Result<Self> {
        let kind = rustix::fs::statfs(folder)?.f_type as i64;
        if kind == TMPFS || kind == RAMFS {
            bail!("{} is in memory, where syncing costs nothing: --data must be on a disk", folder.display());
        }
        let (file_system, disk) = disk_of(folder).unwrap_or_else(|| ("unknown".into(), "unknown".into()));
        Ok(Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            memory_bytes: field("/proc/meminfo", "MemTotal")
                .and_then(|value| value.trim_end_matches(" kB").parse::<u64>().ok())
                .map_or(0, |kilobytes| kilobytes * 1024),
            kernel: read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
            file_system,
            disk,
            sync_ms: sync_ms(folder)?,
            load_average: read_to_string("/proc/loadavg")
                .unwrap_or_default()
                .split_whitespace()
                .take(3)
                .collect::<Vec<_>>()
                .join(" "),
        })
    }

    /// The processor's name as part of a file name.
    #[must_use]
    pub fn slug(&self) -> String {
        let plain = self.cpu.replace("(R)", " ").replace("(TM)", " ").to_lowercase();
        let words = plain.split(|character: char| !character.is_ascii_alphanumeric() && character != '.');
        words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
    }
}

/// Today's date in UTC, and the revision that this is built from, or `unknown`.
///
/// # Errors
/// If there is no `date` command.
pub fn date_and_revision() -> anyhow::Result<(String, String)> {
    let date = first_line(Path::new("date"), &["-u", "+%Y-%m-%d"])?;
    let revision = first_line(Path::new("git"), &["rev-parse", "--short", "HEAD"]).unwrap_or_default();
    if revision.is_empty() {
        return Ok((date, "unknown".into()));
    }
    let is_changed = first_line(Path::new("git"), &["status", "--porcelain", "--untracked-files=no"])
        .is_ok_and(|line| !line.is_empty());
    Ok((date, if is_changed { format!("{revision} with changes") } else { revision }))
}

/// The free bytes on the disk of a folder.
///
/// # Errors
/// If the folder does not exist.
pub fn free_bytes(folder: &Path) -> anyhow::Result<u64> {
    let stat = rustix::fs::statvfs(folder).with_context(|| format!("no folder {}", folder.display()))?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// Checks that the disk of a folder has `needed_bytes` free.
///
/// # Errors
/// If it has not. The error says what needs the space and what to do.
pub fn check_free(folder: &Path, needed_bytes: u64, what: &str, advice: &str) -> anyhow::Result<()> {
    let free = free_bytes(folder)?;
    if free < needed_bytes {
        let gigabytes = |bytes: u64| bytes as f64 / 1e9;
        bail!(
            "{:.1} GB are free and {what} may need {:.1} GB: {advice}",
            gigabytes(free),
            gigabytes(needed_bytes)
        );
    }
    Ok(())
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// File system and disk of a folder, from the table of mounts.
fn disk_of(folder: &Path) -> Option<(String, String)> {
    let device = rustix::fs::stat(folder).ok()?.st_dev;
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split_whitespace().nth(2) == Some(&number))?;
    let mut source = line.split_once(" - ")?.1.split_whitespace();
    let (file_system, name) = (source.next()?.to_owned(), source.next()?.trim_start_matches("/dev/"));
    let queue = [format!("/sys/dev/block/{number}/queue"), format!("/sys/dev/block/{number}/../queue")];
    let turns = queue.iter().find_map(|queue| read_to_string(format!("{queue}/rotational")).ok());
    let kind = match turns.as_deref().map(str::trim) {
        Some("0") => " (not rotational)",
        Some("1") => " (rotational, or a virtual disk that does not say)",
        _ => "",
    };
    Some((file_system, format!("{name}{kind}")))
}

fn sync_ms(folder: &Path) -> anyhow::Result<f64> {
    const TIMES: usize = 51;
    let path = folder.join("sync-test");
    let mut file = File::create(&path)?;
    file.write_all(&vec![0; 4096 * TIMES])?;
    file.sync_all()?;
    let mut file = File::options().write(true).open(&path)?;
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let began = Instant::now();
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    std::fs::remove_file(path)?;
    times.sort_by(f64::total_cmp);
    Ok(times[TIMES / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_memory_is_refused() {
        let folder = Path::new("/dev/shm");
        if !folder.is_dir() {
            return;
        }
        assert!(Machine::detect(folder).unwrap_err().to_string().contains("in memory"));
    }

    #[test]
    fn a_name_becomes_part_of_a_file_name() {
        let machine = Machine { cpu: "Intel(R) Xeon(R) Processor @ 2.80GHz".into(), ..Machine::default() };
        assert_eq!(machine.slug(), "intel-xeon-processor-2.80ghz");
    }
}
