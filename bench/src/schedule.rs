//! Orders the runs, and performs them one at a time.

use crate::load::{Alone, LOADS, Load, Times};
use crate::peer::Peer;
use crate::results::Sample;
use anyhow::Context;
use prombus_bench::Measurement;
use std::path::Path;
use std::time::Duration;

/// One run of a load on a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The number of the run, from 1.
    pub run: usize,
    /// The load.
    pub load: Load,
    /// The index of the server.
    pub server: usize,
}

/// The approximate time of warm-up, waiting for the last messages, and syncing.
const OVERHEAD: Duration = Duration::from_secs(1);
/// The pause between runs. The data of the previous run was deleted, and file systems that discard deleted blocks keep the disk busy
/// for seconds.
const DISK_SETTLE_TIME: Duration = Duration::from_secs(3);

/// All runs in order. Server 0 is prombus; the servers take turns at being first.
#[must_use]
pub fn schedule(loads: &[Load], servers: usize, runs: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for run in 1..=runs {
        for (at, load) in loads.iter().enumerate() {
            match load.alone {
                Some(Alone::Sustained) if run > 1 => {}
                Some(_) => steps.push(Step { run, load: *load, server: 0 }),
                None => {
                    let turn = |server| (server + run - 1 + at) % servers;
                    steps.extend((0..servers).map(|server| Step { run, load: *load, server: turn(server) }));
                }
            }
        }
    }
    steps
}

/// The approximate duration of these runs.
#[must_use]
pub fn estimate(steps: &[Step], peers: &[Peer], times: Times) -> Duration {
    steps
        .iter()
        .map(|step| DISK_SETTLE_TIME + OVERHEAD + peers[step.server].start_time() + step.load.length(times))
        .sum()
}

/// The loads with these names, in the order of the tables; all loads if no name is given.
///
/// # Errors
/// If a name is unknown.
pub fn loads_named(names: &[String]) -> anyhow::Result<Vec<Load>> {
    for name in names {
        Load::named(name).with_context(|| {
            let known: Vec<&str> = LOADS.iter().map(|load| load.name).collect();
            format!("unknown load {name}: known are {}", known.join(", "))
        })?;
    }
    let is_named = |load: &Load| names.is_empty() || names.iter().any(|name| name == load.name);
    Ok(LOADS.into_iter().filter(is_named).collect())
}

/// The servers with these names or kinds (`redis` means all settings of Redis), and always prombus; all servers if no name is given.
///
/// # Errors
/// If a name is unknown.
pub fn peers_named(peers: Vec<Peer>, names: &[String]) -> anyhow::Result<Vec<Peer>> {
    let is_of = |peer: &Peer, name: &str| {
        let of = &peer.description().name;
        of == name || of.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
    };
    for name in names.iter().filter(|name| *name != "none") {
        let known: Vec<&str> = peers.iter().map(|peer| peer.description().name.as_str()).collect();
        let known = known.join(", ");
        peers
            .iter()
            .find(|peer| is_of(peer, name))
            .with_context(|| format!("no server {name} on this machine: found {known}"))?;
    }
    let is_named = |peer: &Peer| {
        names.is_empty() || is_of(peer, "prombus") || names.iter().any(|name| is_of(peer, name))
    };
    Ok(peers.into_iter().filter(is_named).collect())
}

/// Performs one run on a new server with its data in `folder`, and deletes the folder.
pub fn perform(step: &Step, peer: &Peer, times: Times, folder: &Path) -> Sample {
    rustix::fs::sync();
    std::thread::sleep(DISK_SETTLE_TIME);
    rustix::fs::sync();
    let outcome = run(step, peer, times, folder);
    let (measurement, error) = match outcome {
        Ok(measurement) => (Some(measurement), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    // A server that did not start may have left the folder behind.
    let _ = std::fs::remove_dir_all(folder);
    Sample {
        load: step.load.name.into(),
        server: peer.description().name.clone(),
        run: step.run,
        measurement,
        error,
    }
}

fn run(step: &Step, peer: &Peer, times: Times, folder: &Path) -> anyhow::Result<Measurement> {
    let server = peer.start(folder, step.load.alone == Some(Alone::ClientIds))?;
    server.run(&step.load.plan(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_take_turns_at_being_first() {
        let loads = loads_named(&["publish".into()]).unwrap();
        let first: Vec<usize> = schedule(&loads, 3, 3).chunks(3).map(|steps| steps[0].server).collect();
        assert_eq!(first, [0, 1, 2]);
        for steps in schedule(&loads, 3, 3).chunks(3) {
            let mut servers: Vec<usize> = steps.iter().map(|step| step.server).collect();
            servers.sort_unstable();
            assert_eq!(servers, [0, 1, 2], "each server has one turn");
        }
    }

    #[test]
    fn long_runs_are_done_once_and_on_prombus_alone() {
        let loads = loads_named(&["sustained".into(), "client-ids".into()]).unwrap();
        let steps = schedule(&loads, 4, 3);
        assert!(steps.iter().all(|step| step.server == 0));
        assert_eq!(steps.iter().filter(|step| step.load.name == "sustained").count(), 1);
        assert_eq!(steps.iter().filter(|step| step.load.name == "client-ids").count(), 3);
    }

    #[test]
    fn a_load_that_does_not_exist_is_refused() {
        let error = loads_named(&["fan-in".into()]).unwrap_err().to_string();
        assert!(
            error.starts_with("unknown load fan-in: known are publish, publish-4, round-trip"),
            "{error}"
        );
        assert_eq!(loads_named(&[]).unwrap().len(), LOADS.len());
    }
}
