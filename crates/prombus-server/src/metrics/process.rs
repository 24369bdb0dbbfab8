//! Metrics of the process, under the names that all Prometheus clients use. They come from `/proc`, so only Linux has them.
//! Reading `/proc` does not wait for a disk.

use super::text::{FamilyKind, MetricsText};

/// Adds the metrics of this process. A figure that cannot be read is left out.
pub(super) fn put(text: &mut MetricsText) {
    let Some(figures) = ProcessFigures::read() else { return };
    let mut family = |name, kind, help, value: Option<f64>| {
        if let Some(value) = value {
            text.family(name, kind, help);
            text.sample(&[], value);
        }
    };
    family(
        "process_cpu_seconds_total",
        FamilyKind::Counter,
        "Total user and system CPU time spent in seconds.",
        figures.cpu_seconds,
    );
    family(
        "process_resident_memory_bytes",
        FamilyKind::Gauge,
        "Resident memory size in bytes.",
        figures.resident_bytes,
    );
    family(
        "process_virtual_memory_bytes",
        FamilyKind::Gauge,
        "Virtual memory size in bytes.",
        figures.virtual_bytes,
    );
    family("process_open_fds", FamilyKind::Gauge, "Number of open file descriptors.", figures.open_fds);
    family("process_max_fds", FamilyKind::Gauge, "Maximum number of open file descriptors.", figures.max_fds);
    family(
        "process_start_time_seconds",
        FamilyKind::Gauge,
        "Start time of the process since unix epoch in seconds.",
        figures.start_seconds,
    );
    family("process_threads", FamilyKind::Gauge, "Number of OS threads in the process.", figures.threads);
}

#[derive(Debug, Default)]
struct ProcessFigures {
    cpu_seconds: Option<f64>,
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    open_fds: Option<f64>,
    max_fds: Option<f64>,
    start_seconds: Option<f64>,
    threads: Option<f64>,
}

#[cfg(not(target_os = "linux"))]
impl ProcessFigures {
    fn read() -> Option<Self> {
        None
    }
}

#[cfg(target_os = "linux")]
impl ProcessFigures {
    fn read() -> Option<Self> {
        use rustix::process::{Resource, getrlimit};
        use rustix::time::{ClockId, clock_gettime};
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let kib = |name| number_of(&status, name).map(|kib| kib * 1024.0);
        Some(Self {
            cpu_seconds: Some(cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9),
            resident_bytes: kib("VmRSS:"),
            virtual_bytes: kib("VmSize:"),
            open_fds: open_fds(),
            // No limit: nothing to report.
            max_fds: getrlimit(Resource::Nofile).current.map(|limit| limit as f64),
            start_seconds: start_seconds(&stat),
            threads: number_of(&status, "Threads:"),
        })
    }
}

/// The number after a name at the start of a line.
#[cfg(target_os = "linux")]
fn number_of(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

#[cfg(target_os = "linux")]
fn open_fds() -> Option<f64> {
    // Since Linux 6.2, the size of this folder is the number of descriptors. Before, it is zero.
    let size = std::fs::metadata("/proc/self/fd").ok()?.len();
    if size > 0 {
        return Some(size as f64);
    }
    // Without the descriptor that lists the folder.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

/// The start of the process: the boot time of the machine, and the 22nd field of `/proc/self/stat`.
#[cfg(target_os = "linux")]
fn start_seconds(stat: &str) -> Option<f64> {
    /// Times in `/proc` are in hundredths of a second on all processors that Rust supports.
    const TICKS_PER_SECOND: f64 = 100.0;
    /// `/proc/stat` has a line per processor, so it is read only once.
    static BOOT_SECONDS: std::sync::LazyLock<Option<f64>> =
        std::sync::LazyLock::new(|| number_of(&std::fs::read_to_string("/proc/stat").ok()?, "btime"));
    // The second field is the name of the program in parentheses, which may contain spaces.
    let after_name = stat.rsplit_once(')')?.1;
    let ticks: f64 = after_name.split_whitespace().nth(19)?.parse().ok()?;
    Some((*BOOT_SECONDS)? + ticks / TICKS_PER_SECOND)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn the_figures_of_this_process_are_plausible() {
        let figures = ProcessFigures::read().expect("Linux has /proc");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
        let start = figures.start_seconds.expect("a start");
        assert!((now - 3_600.0..=now + 2.0).contains(&start), "{start} at {now}");
        let (resident, all) =
            (figures.resident_bytes.expect("memory"), figures.virtual_bytes.expect("memory"));
        assert!((1e6..1e11).contains(&resident) && all >= resident, "{figures:?}");
        assert!(figures.threads >= Some(1.0) && figures.cpu_seconds < Some(3_600.0), "{figures:?}");
        let before = figures.open_fds.expect("descriptors");
        // More than other tests of this process close in the meantime.
        let files: Vec<_> =
            (0..250).map(|_| std::fs::File::open("/proc/self/stat").expect("opens")).collect();
        let after = ProcessFigures::read().and_then(|it| it.open_fds).expect("descriptors");
        assert!(after >= before + 25.0, "{before} before, {after} with {} more", files.len());
        assert!(figures.max_fds.is_none_or(|max| max >= after), "{figures:?}");
    }
}
