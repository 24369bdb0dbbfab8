//! Injects faults at random times: `kill -9`, SIGSTOP and SIGCONT, SIGTERM. In between, samples the memory and prints progress.

use crate::random::Random;
use crate::server::Server;
use crate::world::World;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The plan limits the server's caches to 8 MiB, so its memory stays well below this.
const RESIDENT_LIMIT_BYTES: u64 = 512 << 20;

/// Injects faults until `end_ms`. The server runs at the end.
pub(crate) async fn inject(world: &Arc<World>, server: &mut Server, end_ms: u64) -> io::Result<()> {
    let mut random = Random::for_task(world.seed, "faults", 0);
    let mut progress = Progress::new();
    while world.now_ms() < end_ms {
        let next_ms = (world.now_ms() + random.between(1_000, 7_000)).min(end_ms);
        wait_until(world, server, next_ms, &mut progress).await?;
        match random.below(100) {
            0..40 => {
                world.count("restarts: kill -9");
                server.kill().await?;
                server.start().await?;
            }
            40..70 => {
                world.count("stops: SIGSTOP and SIGCONT");
                let until_ms = world.now_ms() + random.between(1_000, 6_000);
                server.stop()?;
                wait_until(world, server, until_ms, &mut progress).await?;
                server.resume()?;
            }
            70..80 => {
                world.count("restarts: SIGSTOP, then kill -9");
                let until_ms = world.now_ms() + random.between(1_000, 4_000);
                server.stop()?;
                wait_until(world, server, until_ms, &mut progress).await?;
                server.kill().await?;
                server.start().await?;
            }
            80..85 => {
                world.count("restarts: kill -9 twice");
                server.kill().await?;
                server.start().await?;
                tokio::time::sleep(Duration::from_millis(random.below(60))).await;
                server.kill().await?;
                server.start().await?;
            }
            _ => {
                world.count("restarts: SIGTERM");
                server.terminate().await?;
                server.start().await?;
            }
        }
    }
    Ok(())
}

/// Waits and samples the server's memory. Fails if the server ends by itself.
pub(crate) async fn wait_until(
    world: &World,
    server: &mut Server,
    until_ms: u64,
    progress: &mut Progress,
) -> io::Result<()> {
    loop {
        if let Some(status) = server.exited()? {
            return Err(io::Error::other(format!("the server ended by itself: {status}")));
        }
        progress.sample(world, server);
        let left_ms = until_ms.saturating_sub(world.now_ms());
        if left_ms == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(left_ms.min(200))).await;
    }
}

/// Prints a line of progress every 10 s.
pub(crate) struct Progress {
    next_ms: u64,
    resident_peak_bytes: u64,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { next_ms: 10_000, resident_peak_bytes: 0 }
    }

    fn sample(&mut self, world: &World, server: &Server) {
        let resident_bytes = server.resident_bytes().unwrap_or_default();
        if resident_bytes > self.resident_peak_bytes {
            if resident_bytes > RESIDENT_LIMIT_BYTES && self.resident_peak_bytes <= RESIDENT_LIMIT_BYTES {
                world.violation("memory", &format!("the server has {} MiB", resident_bytes >> 20));
            }
            let more = (resident_bytes >> 20).saturating_sub(self.resident_peak_bytes >> 20);
            world.add("peak resident memory of the server in MiB", more);
            self.resident_peak_bytes = resident_bytes;
        }
        let now_ms = world.now_ms();
        if now_ms < self.next_ms {
            return;
        }
        self.next_ms = now_ms / 10_000 * 10_000 + 10_000;
        let restarts: u64 = world
            .figures()
            .iter()
            .filter(|(name, _)| name.starts_with("restarts"))
            .map(|(_, count)| count)
            .sum();
        println!(
            "soak: {:>5} s: {} publishes, {} deliveries, {} acks, {} nacks, {restarts} restarts, {} stops, server {} MiB",
            now_ms / 1000,
            world.figure("publishes answered OK"),
            world.figure("deliveries"),
            world.figure("acks"),
            world.figure("nacks"),
            world.figure("stops: SIGSTOP and SIGCONT"),
            resident_bytes >> 20
        );
    }
}

/// Records pauses of this program itself, so that its own delays are not taken for delays of the server.
pub(crate) async fn watch_own_delays(world: Arc<World>) {
    const STEP_MS: u64 = 50;
    const LATE_MS: u64 = 150;
    loop {
        let before_ms = world.now_ms();
        tokio::time::sleep(Duration::from_millis(STEP_MS)).await;
        let now_ms = world.now_ms();
        if now_ms > before_ms + STEP_MS + LATE_MS {
            world.timeline().add_pause(before_ms + STEP_MS, now_ms);
            world.count("delays of this program over 150 ms");
        }
    }
}
