//! Serves as a gateway of a shared store. Only one gateway, the leader, writes to the store: the one that holds the leader lease,
//! a record in the store. The others, its followers, relay requests to it. A term is the time for which one gateway leads.
//!
//! Start order: first the listeners, because the lease record contains the address that followers connect to; then the leadership.
//! Shutdown order: the server drains its connections, the bus closes, the lease is released.

use super::gateway::{announce, builder, listen_failure, raise_descriptors};
use super::run_until_stopped::run_until_stopped;
use super::sighup_reload::{Hangups, Reloader};
use super::stop_signals::Signals;
use super::{certificate_expiry, demo};
use crate::args::ServeArgs;
use crate::config::{Loaded, Settings};
use anyhow::{Context, anyhow};
use prombus::engine::{LeaseRecord, SharedStore};
use prombus::leadership::{Leadership, LeadershipFigures, LeadershipOptions, Role};
use prombus::{Bus, SystemClock, TopicRule};
use prombus_server::{LeaderEndpoint, Server, ServerRole};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// Serves until a signal stops the process.
///
/// # Errors
/// One line that says what failed and what to do.
pub async fn serve(
    args: &ServeArgs,
    loaded: &Loaded,
    store: Arc<dyn SharedStore>,
    hangups: Hangups,
) -> anyhow::Result<()> {
    let settings = &loaded.settings;
    let (roles, server_roles) = watch::channel(ServerRole::Following { leader: None });
    let server = Server::bind_shared(server_roles, settings.server.clone()).await;
    let server = server.map_err(|error| anyhow!(listen_failure(error)))?;
    raise_descriptors(&server);
    let signals = Signals::install().context("cannot watch for signals")?;
    let (rules, current_rules) = watch::channel(demo::topic_rules(args.demo, &settings.bus.topics));
    let rules_at_open = current_rules.clone();
    let rules_now = move || rules_at_open.borrow().clone();
    let leadership = Leadership::start(
        store,
        builder(&settings.bus, Vec::new()).current_topics(rules_now),
        leadership_options(settings, &server)?,
        Arc::new(SystemClock::default()),
    );
    let forwarder = RoleForwarder {
        roles,
        rules: current_rules,
        figures: leadership.figures(),
        takeovers: Arc::clone(&settings.server.takeovers),
        is_demo: args.demo,
    };
    tokio::spawn(forwarder.run(leadership.roles()));
    let set_topic_rules = move |new| drop(rules.send_replace(new));
    let reloader = Reloader::new(args, loaded, server.reload_handle(), set_topic_rules);
    reloader.watch(hangups);
    certificate_expiry::watch(server.reload_handle());
    announce(args, settings, &server);
    let close = async move |time| {
        let stopped = tokio::time::timeout(time, leadership.stop()).await;
        let late = "the store did not close in time; another gateway takes over when the lease expires";
        stopped.map_err(|_| anyhow!(late))?.context("closing the store")
    };
    run_until_stopped(server, signals, settings.server.connections.drain_timeout, close).await
}

fn leadership_options(settings: &Settings, server: &Server) -> anyhow::Result<LeadershipOptions> {
    let listen = server.local_addrs().first().map(ToString::to_string);
    let address = settings.advertise.clone().or(listen).context("no listen address is configured")?;
    Ok(LeadershipOptions {
        cert_hash: server.cert_hash(),
        step_aside_ms: settings.bus.limits.engine_wait_ms,
        ..LeadershipOptions::new(address)
    })
}

/// Forwards changes of this gateway's role to its `Server`. While the gateway leads, also applies the topic rules and runs the
/// demo.
struct RoleForwarder {
    /// The role, for the `Server`.
    roles: watch::Sender<ServerRole>,
    /// The configured topic rules; SIGHUP may change them.
    rules: watch::Receiver<Vec<TopicRule>>,
    figures: LeadershipFigures,
    /// The number of takeovers, for the server's metrics.
    takeovers: Arc<AtomicU64>,
    is_demo: bool,
}

impl RoleForwarder {
    async fn run(mut self, mut leadership: watch::Receiver<Role>) {
        // The term whose demo was started. A term may be announced several times, but its demo must start only once.
        let mut demo_term = 0;
        loop {
            let role = leadership.borrow_and_update().clone();
            let (bus, term) = match &role {
                Role::Leading { bus, term, .. } => (Some(bus.clone()), *term),
                Role::Following { .. } | Role::TakingOver { .. } => (None, demo_term),
            };
            self.apply_rules(bus.as_ref());
            self.takeovers.store(self.figures.takeovers(), Ordering::Relaxed);
            self.roles.send_replace(server_role(role));
            let is_new = std::mem::replace(&mut demo_term, term) != term;
            if let Some(bus) = bus.clone().filter(|_| self.is_demo && is_new) {
                tokio::spawn(start_demo(bus));
            }
            loop {
                tokio::select! {
                    changed = leadership.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    changed = self.rules.changed() => match changed {
                        Ok(()) => self.apply_rules(bus.as_ref()),
                        Err(_) => return,
                    },
                }
            }
        }
    }

    /// Applies the current rules to the bus, if this process leads. SIGHUP may have changed them while the bus was opened.
    fn apply_rules(&mut self, bus: Option<&Bus>) {
        let rules = self.rules.borrow_and_update().clone();
        if let Some(bus) = bus {
            bus.backend().set_topic_rules(rules);
        }
    }
}

fn server_role(role: Role) -> ServerRole {
    match role {
        Role::Leading { term, bus, secret } => {
            ServerRole::Leading { backend: Arc::clone(bus.backend()), term, secret }
        }
        Role::Following { leader: Some(LeaseRecord { term, address, cert_hash, secret, .. }) } => {
            ServerRole::Following { leader: Some(LeaderEndpoint { term, address, cert_hash, secret }) }
        }
        Role::Following { leader: None } | Role::TakingOver { .. } => ServerRole::Following { leader: None },
    }
}

/// Starts the demo, which ends when the bus is closed.
async fn start_demo(bus: Bus) {
    if let Err(error) = demo::start(&bus).await {
        tracing::warn!("{error:#}");
    }
}
