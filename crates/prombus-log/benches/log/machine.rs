//! Describes the machine, without which measurements cannot be interpreted.

use std::fmt;
use std::path::Path;

/// The type number of a file system in memory.
const TMPFS: &str = "tmpfs";

/// The machine on which the benchmark ran.
#[derive(Debug)]
pub struct Machine {
    pub cores: usize,
    pub processor: String,
    pub memory_bytes: u64,
    pub kernel: String,
    pub folder: String,
    pub file_system: String,
    pub free_bytes: u64,
}

impl Machine {
    /// Collects what is known about the machine; the rest is "unknown".
    pub fn look(folder: &Path) -> Self {
        let kernel = read("/proc/sys/kernel/osrelease");
        let memory_kib = field("/proc/meminfo", "MemTotal").and_then(|text| {
            let number = text.split_whitespace().next()?;
            number.parse::<u64>().ok()
        });
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            memory_bytes: memory_kib.unwrap_or(0) * 1024,
            kernel: kernel.map_or_else(unknown, |text| text.trim().to_owned()),
            folder: folder.display().to_string(),
            file_system: file_system(folder).unwrap_or_else(unknown),
            free_bytes: free_bytes(folder).unwrap_or(0),
        }
    }

    /// Whether the folder is in memory, so that no disk is measured.
    pub fn is_in_memory(&self) -> bool {
        self.file_system.starts_with(TMPFS)
    }
}

/// The free space of a folder's file system.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let stats = rustix::fs::statvfs(folder).ok()?;
    stats.f_bavail.checked_mul(stats.f_frsize)
}

/// The type and device of the folder's file system: the mount with the longest matching path.
fn file_system(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = read("/proc/self/mounts")?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (device, mounted_on, kind) = (fields.next()?, fields.next()?, fields.next()?);
        folder.starts_with(mounted_on).then(|| (mounted_on.len(), format!("{kind} on {device}")))
    });
    // If there are two mounts on one path, the later one hides the other.
    mounts.max_by_key(|(length, _)| *length).map(|(_, text)| text)
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The value of the first line `name : value`.
fn field(path: &str, name: &str) -> Option<String> {
    let text = read(path)?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(found, _)| found.trim() == name).map(|(_, value)| value.trim().to_owned())
}

fn unknown() -> String {
    "unknown".to_owned()
}

impl fmt::Display for Machine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{} cores of {}, {} MiB", self.cores, self.processor, self.memory_bytes >> 20)?;
        writeln!(formatter, "Linux {}", self.kernel)?;
        writeln!(formatter, "{}: {}, {} GiB free", self.folder, self.file_system, self.free_bytes >> 30)
    }
}
