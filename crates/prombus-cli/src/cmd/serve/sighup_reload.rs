//! Reloads the configuration at SIGHUP. Only the settings of topics are applied; all others need a restart.

use super::demo::topic_rules;
use crate::args::ServeArgs;
use crate::config::{self, ConfigError, Environment, Settings};
use prombus::TopicRule;
use tokio::signal::unix::{SignalKind, signal};

/// Starts watching for SIGHUP. Each reload passes the topic rules to `apply`.
///
/// # Errors
/// When the system refuses.
pub fn on_hangup(
    args: ServeArgs,
    settings: Settings,
    apply: impl Fn(Vec<TopicRule>) + Send + 'static,
) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match topics(&args) {
                Ok(rules) => {
                    tracing::info!(
                        "SIGHUP: applied {} topic rules; other changes of the configuration need a restart",
                        rules.len()
                    );
                    apply(rules);
                }
                Err(lines) => {
                    for line in lines {
                        tracing::error!("SIGHUP: {line}");
                    }
                    tracing::error!(
                        "SIGHUP: the configuration is unchanged ({} topic rules)",
                        settings.bus.topics.len()
                    );
                }
            }
        }
    });
    Ok(())
}

fn topics(args: &ServeArgs) -> Result<Vec<TopicRule>, Vec<String>> {
    let environment = Environment::new(std::env::vars_os()).map_err(|line| vec![line])?;
    let loaded = config::load(args.config.as_deref(), &args.settings, &environment);
    let loaded = loaded.map_err(|ConfigError { lines, .. }| lines)?;
    Ok(topic_rules(args.demo, &loaded.settings.bus.topics))
}
