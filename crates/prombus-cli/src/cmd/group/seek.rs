//! `prombus group seek`: shows what a seek would do, and does it after a confirmation.

use super::super::confirm::{Confirmation, ask};
use super::super::style::put_json_line;
use super::request::{known, path, print};
use crate::args::GroupSeekArgs;
use crate::output::stdout;
use anyhow::{Context, bail};
use prombus_bench::report::grouped;
use prombus_client::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;

/// What a seek would do.
#[derive(Debug, Default, Deserialize)]
struct Preview {
    redeliver: u64,
    skip: u64,
    leases: u64,
    lag: u64,
    exact: bool,
}

pub(super) async fn run(client: &Client, args: &GroupSeekArgs) -> anyhow::Result<ExitCode> {
    let body = json!({ "to": args.to });
    let preview_path = path(&args.group, Some("seek"), &[("preview", "1")]);
    let shown: Value = known(client, &args.group, client.post_json(&preview_path, &body).await)?;
    if shown["preview"] != true {
        bail!(
            "{} does not support previews and has moved the group: it is an older version",
            client.address()
        );
    }
    let preview: Preview = serde_json::from_value(shown.clone()).context("the preview of the seek")?;
    if args.dry_run {
        return print(args.json.json, &shown, preview.text().trim_end());
    }
    if !args.yes {
        match args.json.json {
            true => put_json_line(&shown)?,
            false => write!(stdout(), "{}", preview.text())?,
        }
        match ask(&format!("Move group {} on {}?", args.group.group, args.group.topic))? {
            Confirmation::Yes => {}
            Confirmation::No => bail!("nothing was changed"),
            Confirmation::NotAsked => bail!("nothing was changed; add --yes to move the group"),
        }
    }
    let seek_path = path(&args.group, Some("seek"), &[]);
    let mut answer: Value = known(client, &args.group, client.post_json(&seek_path, &body).await)?;
    for name in ["redeliver", "skip", "leases", "lag", "exact"] {
        answer[name] = shown[name].clone();
    }
    print(args.json.json, &answer, &preview.done(&args.group.group, &args.group.topic))
}

impl Preview {
    /// One line for each effect.
    fn text(&self) -> String {
        let effects = self.effects();
        if effects.is_empty() {
            return "would not change the position\n".to_owned();
        }
        effects.iter().map(|(verb, what)| format!("would {verb} {what}\n")).collect()
    }

    fn done(&self, group: &str, topic: &str) -> String {
        let effects: Vec<String> =
            self.effects().iter().map(|(verb, what)| format!("{verb} {what}")).collect();
        let effects =
            if effects.is_empty() { "nothing to redeliver or skip".to_owned() } else { effects.join(", ") };
        format!("moved group {group} on {topic}: {effects}; {} to settle", events(self.lag, self.exact))
    }

    fn effects(&self) -> Vec<(&'static str, String)> {
        let mut effects = Vec::new();
        if self.redeliver > 0 {
            effects.push(("redeliver", events(self.redeliver, self.exact)));
        }
        if self.skip > 0 {
            effects.push(("skip", events(self.skip, self.exact).replacen("event", "unsettled event", 1)));
        }
        if self.leases > 0 {
            effects
                .push(("end", format!("{} {}", grouped(self.leases as f64), plural(self.leases, "lease"))));
        }
        effects
    }
}

fn events(count: u64, exact: bool) -> String {
    let most = if exact { "" } else { "at most " };
    format!("{most}{} {}", grouped(count as f64), plural(count, "event"))
}

fn plural(count: u64, noun: &str) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_names_each_effect() {
        let preview = Preview { redeliver: 1_204, skip: 1, leases: 2, lag: 1_300, exact: true };
        let text = "would redeliver 1,204 events\nwould skip 1 unsettled event\nwould end 2 leases\n";
        assert_eq!(preview.text(), text);
        assert_eq!(
            preview.done("billing", "orders"),
            "moved group billing on orders: redeliver 1,204 events, skip 1 unsettled event, end 2 leases; 1,300 events to settle"
        );
        let preview = Preview { redeliver: 5, ..Preview::default() };
        assert_eq!(preview.text(), "would redeliver at most 5 events\n");
        assert_eq!(Preview::default().text(), "would not change the position\n");
    }
}
