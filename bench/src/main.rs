//! First figures.
use prombus_bench::*;
use std::io::Write;
use std::time::Duration;
fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let found = prombus_compare::peer::find(std::path::Path::new(&args[1]))?;
    let loads: Vec<(&str, usize, usize, Pace)> = vec![("publish", 1, 0, Pace::Full), ("publish-4", 4, 0, Pace::Full), ("round-trip", 1, 1, Pace::Full), ("fan-out", 1, 10, Pace::Full), ("steady", 1, 1, Pace::Rate(10_000.0))];
    for (name, publishers, groups, pace) in loads {
        if args.len() > 2 && !args[2].split(',').any(|n| n == name) { continue; }
        for peer in &found.peers {
            if args.len() > 3 && !args[3].split(',').any(|n| n == peer.description().name) { continue; }
            let folder = std::path::PathBuf::from(format!("/tmp/wt-compare/target/data/{name}"));
            let plan = Plan { publishers, groups, pace, length: Length::Time(Duration::from_secs(2)), ..Plan::default() };
            let server = peer.start(&folder, false)?;
            let said = match server.run(&plan, &mut |_| {}) {
                Ok(m) => format!("{:>8.0}/s in {:.1}s server {:.2} cores {:.2} us, client {:.2} cores; publish p50 {:.2} p99 {:.2}, deliver p50 {:.2} p99 {:.2}; {:?}", m.per_second, m.seconds, m.server_cores().unwrap_or(0.0), m.server_cpu_us().unwrap_or(0.0), m.client_cores(), m.publish.p50_ms, m.publish.p99_ms, m.deliver.p50_ms, m.deliver.p99_ms, m.balance),
                Err(error) => format!("{error:#}"),
            };
            drop(server);
            writeln!(std::io::stdout(), "{name:10} {:15} {said}", peer.description().name)?;
        }
    }
    Ok(())
}
