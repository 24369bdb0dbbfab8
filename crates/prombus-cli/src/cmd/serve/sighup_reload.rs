//! Reloads the configuration at SIGHUP: tokens, JWT keys, rules, origins, certificate, rates and topic rules.
//!
//! The whole configuration is loaded and checked first. If anything is wrong, all of it is logged and nothing changes. Settings
//! that a reload cannot apply are named in the log.

use super::certificate_expiry;
use super::demo::topic_rules;
use crate::args::ServeArgs;
use crate::config::{self, ConfigError, Environment, Loaded, Settings};
use crate::messages::{counted, one_line};
use crate::time;
use prombus::TopicRule;
use prombus_server::{AuthChanges, LiveFigures, ReloadChanges, ReloadHandle, ShownSetting};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives SIGHUP. From `install` on, the signal does not kill the process.
pub struct Hangups(Signal);

impl Hangups {
    /// Starts receiving. Call this before the store is opened, because its recovery may take minutes. Signals that arrive before
    /// [`Reloader::watch`] cause one reload then.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install() -> std::io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }
}

/// Everything that a reload needs.
pub struct Reloader {
    args: ServeArgs,
    /// The configuration from the start of the process: settings that need a restart still have these values.
    started: Loaded,
    handle: ReloadHandle,
    /// The topic rules in effect, without those of the demo.
    topics: Vec<TopicRule>,
    /// Applies topic rules to the store.
    set_topic_rules: Box<dyn Fn(Vec<TopicRule>) + Send>,
}

impl Reloader {
    /// `started`: the configuration that the server was started with.
    pub fn new(
        args: &ServeArgs,
        started: &Loaded,
        handle: ReloadHandle,
        set_topic_rules: impl Fn(Vec<TopicRule>) + Send + 'static,
    ) -> Self {
        Self {
            args: args.clone(),
            topics: started.settings.bus.topics.clone(),
            started: started.clone(),
            handle,
            set_topic_rules: Box::new(set_topic_rules),
        }
    }

    /// Reloads at every SIGHUP, in a task of its own.
    pub fn watch(mut self, mut hangups: Hangups) {
        tokio::spawn(async move {
            while hangups.0.recv().await.is_some() {
                // Reading files may block.
                let reloaded = tokio::task::spawn_blocking(move || {
                    self.reload_and_survive();
                    self
                });
                match reloaded.await {
                    Ok(reloader) => self = reloader,
                    // The runtime ends.
                    Err(_) => return,
                }
            }
        });
    }

    /// Reloads. A panic is logged, so that later reloads are still possible.
    fn reload_and_survive(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.reload())).is_err() {
            tracing::error!(
                "SIGHUP: the reload failed because of a bug (see the panic message); some settings may be applied"
            );
        }
    }

    /// Reloads the configuration and logs the result.
    fn reload(&mut self) {
        match self.load_and_apply() {
            Ok(done) => {
                done.iter().for_each(|line| tracing::info!("SIGHUP: {line}"));
                certificate_expiry::warn(&self.handle);
            }
            Err(lines) => {
                lines.iter().for_each(|line| tracing::error!("SIGHUP: {line}"));
                let figures = in_effect(self.handle.figures(), self.topics.len());
                tracing::error!("SIGHUP: nothing was changed; in effect: {figures}");
            }
        }
    }

    /// Returns the lines to log, or the problems.
    fn load_and_apply(&mut self) -> Result<Vec<String>, Vec<String>> {
        let environment = Environment::new(std::env::vars_os()).map_err(|line| vec![line])?;
        let loaded = config::load(self.args.config.as_deref(), &self.args.settings, &environment);
        let loaded = loaded.map_err(|ConfigError { lines, .. }| lines)?;
        loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        self.apply(&loaded)
    }

    /// Applies new settings: the one place where a reload takes effect. The first step is the only one that can fail.
    fn apply(&mut self, loaded: &Loaded) -> Result<Vec<String>, Vec<String>> {
        let Settings { server, bus, .. } = &loaded.settings;
        let changes = self.handle.reload(server).map_err(|error| vec![one_line(&error.into())])?;
        let has_new_topics = bus.topics != self.topics;
        if has_new_topics {
            (self.set_topic_rules)(topic_rules(self.args.demo, &bus.topics));
            // Afterwards, so that the next reload applies them if this failed.
            self.topics.clone_from(&bus.topics);
        }
        let what = changed(&changes, has_new_topics.then_some(self.topics.len()));
        let figures = in_effect(self.handle.figures(), self.topics.len());
        let waiting = self.started.need_restart(loaded);
        self.show(loaded, &waiting);
        let mut lines = Vec::new();
        if !waiting.is_empty() {
            lines.push(format!("changed, but applied only after a restart: {}", waiting.join(", ")));
        }
        lines.push(format!("configuration reloaded: {what}; in effect: {figures}"));
        Ok(lines)
    }

    /// Updates the list of `GET /settings`. Settings that need a restart keep the values that they have.
    fn show(&self, loaded: &Loaded, waiting: &[&str]) {
        let shown = &self.started.settings.server.shown_settings;
        let before = shown.list();
        let in_effect = |setting: &ShownSetting| {
            let old =
                before.iter().find(|old| old.name == setting.name && waiting.contains(&old.name.as_str()));
            old.unwrap_or(setting).clone()
        };
        shown.replace(loaded.settings.server.shown_settings.list().iter().map(in_effect).collect());
    }
}

/// What a reload changed, in words. `topics`: the number of topic rules, if they have changed.
fn changed(changes: &ReloadChanges, topics: Option<usize>) -> String {
    let mut parts = Vec::new();
    let AuthChanges { tokens_added, tokens_revoked, tokens_replaced, tokens_changed, .. } = changes.auth;
    let tokens = [
        (tokens_added, "added"),
        (tokens_revoked, "revoked"),
        (tokens_replaced, "given a new secret"),
        (tokens_changed, "given other scopes"),
    ];
    parts.extend(counts("token", &tokens));
    let keys = [(changes.auth.jwt_keys_added, "added"), (changes.auth.jwt_keys_removed, "removed")];
    parts.extend(counts("JWT key", &keys));
    let mut add = |is_changed: bool, what: &str| parts.extend(is_changed.then(|| what.to_owned()));
    add(changes.auth.has_new_jwt_settings, "JWT settings changed");
    add(changes.auth.has_new_rules, "rules changed");
    add(changes.has_new_origins, "origins changed");
    add(changes.has_new_rates, "rates changed");
    add(topics.is_some(), "topic rules changed");
    if let Some(certificate) = &changes.certificate {
        let expires = certificate.expires_ms.map(|at_ms| format!(" (expires {})", time::text(at_ms)));
        parts.push(format!("certificate replaced{}", expires.unwrap_or_default()));
    }
    if parts.is_empty() { "no changes".to_owned() } else { parts.join("; ") }
}

/// Counts of one noun, e.g. `2 tokens added, 1 revoked`; `None` if all are zero.
fn counts(noun: &str, counts: &[(usize, &str)]) -> Option<String> {
    let mut text = String::new();
    for (count, verb) in counts.iter().filter(|(count, _)| *count > 0) {
        if text.is_empty() {
            text = format!("{} {verb}", counted(*count as u64, noun));
        } else {
            text.push_str(&format!(", {count} {verb}"));
        }
    }
    (!text.is_empty()).then_some(text)
}

/// The counts of the settings in effect, in words.
fn in_effect(figures: LiveFigures, topics: usize) -> String {
    let parts = [
        counted(figures.tokens as u64, "token"),
        counted(figures.jwt_keys as u64, "JWT key"),
        counted(figures.rules as u64, "rule"),
        counted(figures.origins as u64, "origin"),
        counted(figures.rates as u64, "rate"),
        counted(topics as u64, "topic rule"),
    ];
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;
    use prombus::Bus;
    use prombus_server::Server;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn after_a_reload_that_panicked_the_next_one_takes_effect() {
        let folder = std::env::temp_dir().join(format!("prombus-reload-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("prombus.toml");
        let write = |topic: &str| {
            let text =
                format!("listen = [\"127.0.0.1:0\"]\n[[topic]]\nname = \"{topic}\"\nmax_attempts = 7\n");
            std::fs::write(&file, text).unwrap();
        };
        write("a");
        let Command::Serve(args) =
            Args::parse_from(["prombus", "serve", "--config", file.to_str().unwrap()]).command
        else {
            panic!("not serve")
        };
        let environment = Environment::new(std::iter::empty()).unwrap();
        let loaded = config::load(args.config.as_deref(), &args.settings, &environment).unwrap();
        let bus = Bus::memory();
        let server = Server::bind(Arc::clone(bus.backend()), loaded.settings.server.clone()).await.unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let set_topic_rules = move |_| {
            assert!(counted.fetch_add(1, Ordering::Relaxed) > 0, "the first call fails");
        };
        let mut reloader = Reloader::new(&args, &loaded, server.reload_handle(), set_topic_rules);
        for (topic, expected) in [("b", 1), ("c", 2)] {
            write(topic);
            reloader.reload_and_survive();
            assert_eq!(calls.load(Ordering::Relaxed), expected);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn counts_name_the_noun_once() {
        assert_eq!(
            counts("token", &[(2, "added"), (1, "revoked")]).as_deref(),
            Some("2 tokens added, 1 revoked")
        );
        assert_eq!(counts("token", &[(0, "added"), (1, "revoked")]).as_deref(), Some("1 token revoked"));
        assert_eq!(counts("token", &[(0, "added")]), None);
    }
}
