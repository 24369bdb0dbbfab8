//! `prombus group settle`.

use super::request::{known, path, print};
use crate::args::{GroupSettleArgs, VerdictArg};
use crate::time;
use crate::wrong_arguments::WrongArguments;
use anyhow::bail;
use prombus_client::Client;
use serde_json::{Value, json};
use std::process::ExitCode;

pub(super) async fn run(client: &Client, args: &GroupSettleArgs) -> anyhow::Result<ExitCode> {
    let verdict = args.verdict;
    let mut body = json!({ "id": args.id, "verdict": verdict.name() });
    let options = [
        ("reason", args.reason.as_ref().map(|reason| json!(reason)), [VerdictArg::Nack, VerdictArg::Dead]),
        ("delay_ms", args.delay_ms.map(|ms| json!(ms)), [VerdictArg::Nack; 2]),
        ("extend_ms", args.extend_ms.map(|ms| json!(ms)), [VerdictArg::Extend; 2]),
    ];
    for (name, value, verdicts) in options {
        let Some(value) = value else { continue };
        if !verdicts.contains(&verdict) {
            let (flag, verdict) = (name.replace('_', "-"), verdict.name());
            let why = format!("--{flag} has no effect with the verdict {verdict}");
            return Err(WrongArguments::new(why).into());
        }
        body[name] = value;
    }
    let path = path(&args.group, Some("settle"), &[]);
    let answer: Value = known(client, &args.group, client.post_json(&path, &body).await)?;
    if answer["stale"] == true {
        if args.json.json {
            print(true, &answer, "")?;
        }
        bail!("nothing changed: no member of group {} holds {}", args.group.group, args.id);
    }
    let text = match (verdict, answer["ends_in_ms"].as_u64()) {
        (VerdictArg::Extend, Some(ms)) => {
            format!("extended {}: the lease ends in {}", args.id, time::rough(ms))
        }
        (VerdictArg::Ack, _) => format!("acked {}", args.id),
        (VerdictArg::Nack, _) => format!("nacked {}", args.id),
        (VerdictArg::Dead, _) => format!("{} is a dead letter now", args.id),
        (VerdictArg::Release, _) => format!("released {}", args.id),
        (VerdictArg::Extend, None) => format!("extended {}", args.id),
    };
    print(args.json.json, &answer, &text)
}
