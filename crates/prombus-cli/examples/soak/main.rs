//! A random soak of the real binary with full accounting: `scripts/soak` builds and runs it.
//!
//! Publishers and groups of every kind use a server with small segments, which is killed, suspended and restarted every few
//! seconds. Every answer and delivery is kept in memory and compared with all later ones. At the end all topics, dead letters and
//! the state by key are read back. CONTRIBUTING.md lists the checks.
//!
//! The seed decides what each task does, but not when the kernel runs it: the same seed makes a similar run, not an identical one.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this program prints a report")]

mod connection;
mod content;
mod dead_letters;
mod faults;
mod final_checks;
mod group_book;
mod http;
mod ledger;
mod member;
mod options;
mod plan;
mod publisher;
mod random;
mod seeker;
mod server;
mod timeline;
mod world;

use dead_letters::DeadLetters;
use faults::{Progress, wait_until};
use options::Options;
use plan::{GROUPS, Keeps, TOPICS};
use seeker::SharedSeek;
use server::Server;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::timeout;
use world::World;

const WEBSOCKET_PUBLISHERS: u16 = 3;
const HTTP_PUBLISHER: u16 = 3;
/// Leases and nack delays are shorter than this.
const DRAIN_PATIENCE: Duration = Duration::from_secs(90);
/// How long the server is observed after the last restart: nothing may be redelivered.
const QUIET_MS: u64 = 4_000;

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("soak: {error}");
            return ExitCode::from(2);
        }
    };
    let (seed, minutes) = (options.seed, options.minutes);
    println!("soak: seed={seed} minutes={minutes} rate={} bin={}", options.rate, options.binary.display());
    match run(options).await {
        Ok(true) => {
            println!("soak: PASS seed={seed} minutes={minutes}");
            ExitCode::SUCCESS
        }
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("soak: FAIL seed={seed} minutes={minutes}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the soak; returns whether it passed.
async fn run(options: Options) -> io::Result<bool> {
    let folder = options.folder.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("prombus-soak-{}-{}", options.seed, std::process::id()))
    });
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("prombus.toml"), plan::server_config())?;
    let world = Arc::new(World::new(options.seed, free_address()?));
    println!("soak: data and server log in {}", folder.display());
    let mut server = Server::new(Arc::clone(&world), options.binary.clone(), folder.clone());
    let ran = soak(&world, &mut server, &options).await;
    if let Err(error) = &ran {
        world.violation("run_failed", &error.to_string());
    }
    drop(server);
    check_server_log(&world, &folder)?;
    report(&world, &options);
    let passed = world.violations().is_empty();
    if passed && !options.keeps_data {
        std::fs::remove_dir_all(&folder)?;
    } else {
        println!("soak: kept {} (data, server.log, prombus.toml)", folder.display());
    }
    Ok(passed)
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

async fn soak(world: &Arc<World>, server: &mut Server, options: &Options) -> io::Result<()> {
    server.start().await?;
    tokio::spawn(faults::watch_own_delays(Arc::clone(world)));
    let mut members = Vec::new();
    for (group, plan) in GROUPS.iter().enumerate() {
        for number in 0..plan.members {
            members.push(tokio::spawn(member::consume(Arc::clone(world), group, number)));
        }
    }
    let publishers = start_publishers(world, options.rate);
    let last_seek = SharedSeek::default();
    let seeking = tokio::spawn(seeker::seek(Arc::clone(world), Arc::clone(&last_seek)));

    let end_ms = world.now_ms() + (options.minutes * 60_000.0) as u64;
    faults::inject(world, server, end_ms).await?;

    println!("soak: publishers finish");
    world.end_publishing();
    join("the publishers finish", publishers).await?;
    join("the last SEEK is answered", vec![seeking]).await?;
    println!("soak: groups drain");
    world.begin_drain();
    final_checks::drain(world, DRAIN_PATIENCE).await?;
    println!("soak: last kill -9; nothing may be redelivered");
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.kill().await?;
    server.start().await?;
    let quiet_ms = world.now_ms() + QUIET_MS;
    wait_until(world, server, quiet_ms, &mut Progress::new()).await?;
    final_checks::drain(world, Duration::from_secs(20)).await?;
    world.end();
    join("the members leave", members).await?;

    println!("soak: reading everything back");
    let seek = *world::lock(&last_seek);
    block_in_place(|| check_everything(world, seek))?;
    server.terminate().await?;
    block_in_place(|| verify(world, &options.binary, &server.data()))
}

fn start_publishers(world: &Arc<World>, rate: u64) -> Vec<JoinHandle<()>> {
    let rate = (rate / u64::from(WEBSOCKET_PUBLISHERS)).max(1);
    let mut publishers: Vec<JoinHandle<()>> = (0..WEBSOCKET_PUBLISHERS)
        .map(|number| tokio::spawn(publisher::publish(Arc::clone(world), number, rate)))
        .collect();
    publishers.push(tokio::spawn(publisher::publish_over_http(Arc::clone(world), HTTP_PUBLISHER)));
    publishers
}

async fn join(what: &str, tasks: Vec<JoinHandle<()>>) -> io::Result<()> {
    for task in tasks {
        let joined = timeout(Duration::from_secs(60), task).await;
        joined
            .map_err(|_| io::Error::other(format!("{what}: not within 60 s")))?
            .map_err(io::Error::other)?;
    }
    Ok(())
}

fn check_everything(world: &World, last_seek: Option<seeker::LastSeek>) -> io::Result<()> {
    final_checks::check_answers(world);
    let mut kept = Vec::new();
    for topic in 0..TOPICS.len() {
        kept.push(final_checks::check_topic(world, topic)?);
    }
    let letters = DeadLetters::read(world)?;
    for group in 0..GROUPS.len() {
        final_checks::check_group(world, group, &kept, &letters, last_seek);
    }
    for (topic, plan) in TOPICS.iter().enumerate() {
        if plan.keeps == Keeps::NewestPerKey {
            final_checks::check_state(world, topic)?;
        }
    }
    let health = http::get(world.address, "/healthz")?;
    if health.status != 200 || !health.body.contains("\"ok\"") {
        world.violation("unhealthy", &format!("/healthz: {} {}", health.status, health.body));
    }
    Ok(())
}

fn verify(world: &World, binary: &Path, data: &Path) -> io::Result<()> {
    let output = server::command(binary).arg("verify").arg("--data").arg(data).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    println!("soak: verify: {}", text.trim().lines().last().unwrap_or_default());
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        world.violation("verify", &format!("{}: {text} {error}", output.status));
    }
    Ok(())
}

fn check_server_log(world: &World, folder: &Path) -> io::Result<()> {
    let log = std::fs::read(folder.join("server.log"))?;
    for line in String::from_utf8_lossy(&log).lines() {
        if line.contains("panicked at") || line.contains(" ERROR ") {
            world.violation("server_log", &format!("{line:.300}"));
        }
    }
    Ok(())
}

fn report(world: &World, options: &Options) {
    world.add(
        "resident memory of this program in MiB",
        server::resident_bytes("self").unwrap_or_default() >> 20,
    );
    println!("soak: figures");
    for (name, count) in world.figures() {
        println!("  {count:>10}  {name}");
    }
    let violations = world.violations();
    if violations.is_empty() {
        return;
    }
    let count: u64 = violations.keys().map(|kind| world.figure(&format!("violations: {kind}"))).sum();
    println!("soak: FAIL seed={} minutes={}: {count} violations", options.seed, options.minutes);
    for line in violations.values().flatten() {
        println!("  {line}");
    }
}
