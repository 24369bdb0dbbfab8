//! `prombus serve`: opens the store and serves until a signal stops the process.
//!
//! A server has its own store, or it is a gateway: one of several servers that share a store (see `shared`).

mod banner;
mod certificate_expiry;
mod demo;
mod gateway;
mod mongodb;
mod run_until_stopped;
mod shared;
mod sighup_reload;
pub mod stop_signals;

use crate::args::ServeArgs;
use crate::config::{self, BusSettings, ConfigError, Environment, Loaded, StoreChoice};
use crate::logging;
use crate::messages::print_error;
use anyhow::{Context, anyhow};
use gateway::{CLOSE_TIMEOUT, announce, builder, listen_failure, open_failure, raise_descriptors};
use prombus::{Backend, Bus, OpenError, TopicRule};
use prombus_server::Server;
use run_until_stopped::run_until_stopped;
use sighup_reload::{Hangups, Reloader};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use stop_signals::Signals;

/// The exit code for wrong arguments; the same as clap's.
const BAD_ARGUMENTS: u8 = 2;

/// Runs the command, until a signal ends it.
///
/// # Errors
/// One line that says what failed and what to do.
pub fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let environment = Environment::new(std::env::vars_os()).map_err(|line| anyhow!(line))?;
    let loaded = match config::load(args.config.as_deref(), &args.settings, &environment) {
        Ok(loaded) => loaded,
        Err(ConfigError { lines, is_usage }) => {
            lines.iter().for_each(|line| print_error(line));
            return Ok(if is_usage { ExitCode::from(BAD_ARGUMENTS) } else { ExitCode::FAILURE });
        }
    };
    logging::start(&loaded.settings.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let served = runtime.block_on(serve(args, &loaded));
    // Serving is over: do not wait for tasks that still run.
    runtime.shutdown_background();
    served.map(|()| ExitCode::SUCCESS)
}

async fn serve(args: &ServeArgs, loaded: &Loaded) -> anyhow::Result<()> {
    let settings = &loaded.settings;
    let hangups = Hangups::install().context("cannot watch for SIGHUP")?;
    if let StoreChoice::MongoDb(url) = &settings.bus.store {
        let store =
            mongodb::connect(url, &settings.bus).await.map_err(|error| anyhow!(open_failure(error)))?;
        return shared::serve(args, loaded, store, hangups).await;
    }
    let bus = open(&settings.bus, demo::topic_rules(args.demo, &settings.bus.topics))
        .await
        .map_err(|error| anyhow!(open_failure(error)))?;
    let backend = Arc::clone(bus.backend());
    let server = match Server::bind(Arc::clone(&backend), settings.server.clone()).await {
        Ok(server) => server,
        Err(error) => {
            close(&*backend, CLOSE_TIMEOUT).await?;
            return Err(anyhow!(listen_failure(error)));
        }
    };
    raise_descriptors(&server);
    // Installed before the server is announced, so that a signal right after the announcement is not lost.
    let signals = Signals::install().context("cannot watch for signals")?;
    let reloaded = Arc::clone(&backend);
    let set_topic_rules = move |rules| reloaded.set_topic_rules(rules);
    let reloader = Reloader::new(args, loaded, server.reload_handle(), set_topic_rules);
    reloader.watch(hangups);
    certificate_expiry::watch(server.reload_handle());
    if args.demo {
        // The demo ends when the store is closed.
        demo::start(&bus).await?;
    }
    announce(args, settings, &server);
    let drain_timeout = settings.server.connections.drain_timeout;
    run_until_stopped(server, signals, drain_timeout, async |time| close(&*backend, time).await).await
}

async fn open(settings: &BusSettings, rules: Vec<TopicRule>) -> Result<Bus, OpenError> {
    match &settings.store {
        StoreChoice::Log(folder) => builder(settings, rules).open(folder).await,
        StoreChoice::Memory => builder(settings, rules).memory(),
        StoreChoice::MongoDb(url) => Err(OpenError::Store(format!("{url} is a shared store"))),
    }
}

async fn close(backend: &dyn Backend, timeout: Duration) -> anyhow::Result<()> {
    let closed = tokio::time::timeout(timeout, backend.close()).await;
    closed
        .map_err(|_| {
            anyhow!("the store did not close in time; the next start recovers all events whose publish was answered with OK")
        })?
        .context("closing the store")
}
