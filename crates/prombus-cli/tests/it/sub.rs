//! Tests of `prombus sub` with a real server: as a printer, and as a worker with `--exec`.

use crate::http_client::{get, get_json};
use crate::remote::{Server, lines};
use crate::running::{Running, until};
use crate::support::Ran;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Starts a worker on `orders` that begins with the oldest event.
fn worker(server: &Server, group: &str, exec: &str, more: &[&str]) -> Running {
    let arguments = ["sub", "orders", "--group", group, "--from", "earliest", "--exec", exec];
    Running::start(server.command(&[&arguments, more].concat()).current_dir(server.folder.path()))
}

/// Runs a worker that must end with 0.
fn work(server: &Server, group: &str, exec: &str, more: &[&str]) -> (Vec<String>, String) {
    let (code, stdout, stderr) = worker(server, group, exec, more).end();
    assert_eq!(code, Some(0), "{stderr}");
    (stdout, stderr)
}

fn group(server: &Server, name: &str) -> Value {
    get_json(&server.address(), &format!("/groups/orders/{name}"))
}

/// A group, or null if it does not exist yet.
fn group_or_null(server: &Server, name: &str) -> Value {
    let mut answer = get(&server.address(), &format!("/groups/orders/{name}"), "");
    let mut text = String::new();
    answer.body.read_to_string(&mut text).unwrap();
    if answer.status == 200 { serde_json::from_str(&text).unwrap() } else { Value::Null }
}

/// Whether this process ignores SIGHUP, which the programs that it starts inherit.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

/// The numbers in a file that a command writes, one per line; empty if the file does not exist yet.
fn numbers(path: &PathBuf) -> Vec<u64> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn printed_events_are_acked_and_equal_to_exported_ones() {
    let server = Server::start();
    server.import(&lines("orders", 0..20));
    let arguments = ["sub", "orders", "--group", "debug", "--from", "earliest", "--limit"];
    let printed = server.ok(&[&arguments[..], &["12"]].concat());
    let rest = server.ok(&[&arguments[..], &["8", "--json"]].concat());
    let parsed =
        |text: &str| -> Vec<Value> { text.lines().map(|line| serde_json::from_str(line).unwrap()).collect() };
    assert_eq!(parsed(&(printed + &rest)), server.events("orders"));
    let group = group(&server, "debug");
    assert_eq!(
        (&group["lag"], &group["counters"]["acked"], &group["members"]),
        (&json!(0), &json!(20), &json!(0))
    );
    let filtered =
        ["sub", "orders", "--group", "some", "--from", "earliest", "--limit", "2", "--filter", "key=k7"];
    let printed = parsed(&server.ok(&filtered));
    assert_eq!(
        [&printed[0]["payload"], &printed[1]["payload"]],
        [&json!({"number": 7}), &json!({"number": 17})]
    );
}

#[test]
fn an_event_that_cannot_be_written_is_not_acked() {
    let server = Server::start();
    server.import(&lines("orders", 0..1));
    let arguments = ["sub", "orders", "--group", "debug", "--from", "earliest"];
    let mut child = server.command(&arguments).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    until("the first event is acked", || group(&server, "debug")["lag"] == 0);
    drop(reader);
    server.import(&lines("orders", 1..2));
    assert_eq!(child.wait().unwrap().code(), Some(141));
    let group = group(&server, "debug");
    assert_eq!((&group["lag"], &group["members"]), (&json!(1), &json!(0)));
    let (printed, _) = work(&server, "debug", "echo $EVENT_SEQ $EVENT_ATTEMPT", &["--limit", "1"]);
    assert_eq!(printed, ["2 1"], "the member has left the group, so the attempt does not count");
}

#[test]
fn an_event_whose_command_cannot_write_its_output_returns_to_the_group() {
    let server = Server::start();
    server.import(&lines("orders", 0..2));
    let exec = "echo started; sleep 1; echo done";
    let arguments = ["sub", "orders", "--group", "g", "--from", "earliest", "--exec", exec];
    let mut child = server.command(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    drop(reader);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(141), "{}", String::from_utf8_lossy(&ended.stderr));
    let group = group(&server, "g");
    assert_eq!((&group["lag"], &group["counters"]["nacked"]), (&json!(2), &json!(0)));
    let (printed, _) = work(&server, "g", "echo $EVENT_SEQ $EVENT_ATTEMPT", &["--limit", "2"]);
    assert_eq!(printed, ["1 1", "2 1"]);
}

#[test]
fn a_worker_whose_output_is_closed_takes_no_event() {
    let server = Server::start();
    let arguments = ["sub", "orders", "--group", "g", "--exec", "touch ran"];
    let mut child = server.command(&arguments).current_dir(server.folder.path()).spawn().unwrap();
    until("the worker has joined", || group_or_null(&server, "g")["members"] == 1);
    drop(child.stdout.take());
    server.import(&lines("orders", 0..1));
    assert_eq!(child.wait().unwrap().code(), Some(141));
    assert_eq!(group(&server, "g")["lag"], 1);
    assert!(!server.folder.path().join("ran").exists());
}

#[test]
fn a_command_ends_when_its_reader_is_gone_although_no_event_arrives() {
    let server = Server::start();
    server.import(&lines("orders", 0..1));
    let commands: [&[&str]; 4] = [
        &["sub", "orders", "--group", "printer", "--from", "earliest"],
        &["sub", "orders", "--group", "worker", "--from", "earliest", "--exec", "echo $EVENT_SEQ"],
        &["tail", "orders", "--follow"],
        &["state", "orders", "--follow"],
    ];
    let children = commands.map(|arguments| {
        let mut child = server.command(arguments).spawn().unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        assert!(reader.read_line(&mut String::new()).unwrap() > 0, "{arguments:?}");
        child
    });
    for (mut child, arguments) in children.into_iter().zip(commands) {
        until("the command ends", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(141), "{arguments:?}");
    }
    assert_eq!([&group(&server, "printer")["members"], &group(&server, "worker")["members"]], [0, 0]);
}

/// Starts a worker with the limit of open files that the shell sets with `ulimit`.
fn limited_worker(server: &Server, ulimit: &str, exec: &str, more: &[&str]) -> Running {
    let shell = format!("ulimit {ulimit}; exec \"$0\" \"$@\"");
    let arguments = ["sub", "orders", "--group", "g", "--from", "earliest", "--exec", exec];
    let worker = server.command(&[&arguments, more].concat());
    let mut command = Command::new("sh");
    command.args(["-c", &shell]).arg(worker.get_program()).args(worker.get_args());
    command.env("PROMBUS_URL", server.url()).env("PROMBUS_CONTEXTS", "/nonexistent/contexts.toml");
    command.current_dir(server.folder.path()).stdin(Stdio::null());
    Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
}

#[test]
fn a_worker_without_free_descriptors_waits_until_a_command_has_ended() {
    let server = Server::start();
    server.import(&lines("orders", 0..60));
    let more = ["--concurrency", "40", "--limit", "60"];
    let (code, mut printed, said) =
        limited_worker(&server, "-n 48", "sleep 0.2; echo $EVENT_SEQ", &more).end();
    assert_eq!(code, Some(0), "{said}");
    printed.sort_by_key(|line| line.parse::<u64>().unwrap());
    assert_eq!(printed, (1..=60).map(|seq: u64| seq.to_string()).collect::<Vec<_>>());
    assert_eq!(group(&server, "g")["counters"]["delivered"], 60);
}

#[test]
fn a_worker_raises_its_limit_of_descriptors_but_not_that_of_its_commands() {
    let server = Server::start();
    server.import(&lines("orders", 0..30));
    // The commands end only when all of them run at the same time.
    let exec = r#": > "started-$EVENT_SEQ"
        tries=0
        while [ "$(ls started-* | wc -l)" -lt 30 ]; do
            tries=$((tries + 1)); [ $tries -lt 100 ] || exit 1; sleep 0.5
        done
        ulimit -S -n"#;
    let running = limited_worker(&server, "-S -n 48", exec, &["--concurrency", "30", "--limit", "30"]);
    let (code, printed, said) = running.end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(printed, ["48"; 30]);
}

#[test]
fn a_command_gets_the_event_on_stdin_and_in_its_environment() {
    let server = Server::start();
    server.ok(&["pub", "orders", r#"{"total": 12}"#, "--key", "k 1", "--header", "a=b", "--header", "c=d=e"]);
    server.ok(&["pub", "orders", "[]"]);
    let exec =
        r#"cat; echo "$EVENT_TOPIC|$EVENT_SEQ|${EVENT_KEY-none}|$EVENT_ATTEMPT|$EVENT_HEADERS|$EVENT_ID""#;
    let arguments = ["sub", "orders", "--group", "g", "--from", "earliest", "--limit", "2", "--exec", exec];
    // A variable of prombus itself must not look like one of the event.
    let ran: Ran = server.command(&arguments).env("EVENT_KEY", "other").output().unwrap().into();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let events = server.events("orders");
    let id = |number: usize| events[number]["id"].as_str().unwrap();
    let expected = format!(
        "{{\"total\": 12}}\norders|1|k 1|1|{{\"a\":\"b\",\"c\":\"d=e\"}}|{}\n[]\norders|2|none|1|{{}}|{}\n",
        id(0),
        id(1)
    );
    assert_eq!(ran.stdout, expected);
}

#[test]
fn fifty_failing_runs_end_in_the_dead_letters_with_stderr_as_the_error() {
    let server = Server::start();
    server.import(&lines("orders", 0..50));
    let more = ["--concurrency", "4", "--limit", "50"];
    let text = "echo start >&2; echo \"order $EVENT_SEQ has no customer\" >&2; ";
    work(&server, "last", &format!("{text} exit 3"), &[&more[..], &["--max-attempts", "1"]].concat());
    // EX_DATAERR: at once, although there are attempts left.
    work(&server, "refused", &format!("{text} exit 65"), &more);
    until("100 dead letters", || server.count("dlq.orders") == 100);
    let mut found = BTreeSet::new();
    for letter in server.events("dlq.orders") {
        let letter = &letter["payload"];
        let seq = letter["original"]["seq"].as_u64().unwrap();
        assert_eq!(letter["err"], format!("start\norder {seq} has no customer"));
        assert_eq!(letter["attempts"], 1);
        found.insert((letter["group"].as_str().unwrap().to_owned(), seq));
    }
    assert_eq!(found.len(), 100);
}

#[test]
fn without_stderr_the_error_says_how_the_command_ended() {
    let server = Server::start();
    server.import(&lines("orders", 0..1));
    let more = ["--max-attempts", "1", "--limit", "1"];
    work(&server, "code", "exit 3", &more);
    work(&server, "signal", "kill -9 $$", &more);
    work(&server, "time", "sleep 60", &[&more[..], &["--timeout", "300ms"]].concat());
    work(&server, "missing", "/no/such/command", &more);
    until("4 dead letters", || server.count("dlq.orders") == 4);
    let letters = server.events("dlq.orders");
    let errors: Vec<&str> = letters.iter().map(|letter| letter["payload"]["err"].as_str().unwrap()).collect();
    assert_eq!(errors[..3], ["exit code 3", "killed by signal 9", "stopped after 300 ms"]);
    assert!(errors[3].contains("/no/such/command"), "{errors:?}");
}

#[test]
fn a_nacked_event_is_retried_until_the_command_succeeds() {
    let server = Server::start();
    server.import(&lines("orders", 0..3));
    let exec =
        r#"[ "$EVENT_SEQ" != 2 ] || [ "$EVENT_ATTEMPT" = 3 ] || exit 1; echo "$EVENT_SEQ $EVENT_ATTEMPT""#;
    let (printed, said) = work(&server, "g", exec, &["--limit", "5"]);
    assert_eq!(printed, ["1 1", "3 1", "2 3"]);
    assert!(said.contains("event 2 of orders failed, attempt 2 of 5: exit code 1"), "{said}");
    assert_eq!(group(&server, "g")["lag"], 0);
}

#[test]
fn a_worker_that_is_killed_and_restarted_loses_nothing() {
    const EVENTS: u64 = 300;
    let server = Server::start();
    server.import(&lines("orders", 0..EVENTS));
    let done = server.folder.path().join("done");
    let exec = "sleep 0.02; echo $EVENT_SEQ >> done";
    for at in [40, 120] {
        let running = worker(&server, "g", exec, &["--concurrency", "6", "--max-attempts", "100"]);
        until("the worker works", || numbers(&done).len() >= at);
        running.signal(Signal::KILL);
        assert_eq!(running.end().0, None);
    }
    let running = worker(&server, "g", exec, &["--concurrency", "6", "--max-attempts", "100"]);
    until("all events are settled", || group(&server, "g")["lag"] == 0);
    running.signal(Signal::TERM);
    let (code, _, said) = running.end();
    assert_eq!(code, Some(143), "{said}");
    let done = numbers(&done);
    assert_eq!(done.iter().copied().collect::<BTreeSet<_>>(), (1..=EVENTS).collect());
    // Only events that were being handled at a kill are handled twice.
    assert!(done.len() as u64 <= EVENTS + 2 * 6, "{} runs", done.len());
    assert_eq!(server.count("dlq.orders"), 0);
}

#[test]
fn a_thousand_events_are_handled_eight_at_a_time() {
    let server = Server::start();
    server.import(&lines("orders", 0..1000));
    // The first eight commands end only when all eight run at the same time.
    let exec = r#"if [ "$EVENT_SEQ" -le 8 ]; then
        : > "started-$EVENT_SEQ"
        tries=0
        while [ "$(ls started-* | wc -l)" -lt 8 ]; do
            tries=$((tries + 1)); [ $tries -lt 300 ] || exit 1; sleep 0.1
        done
    fi
    echo "$EVENT_SEQ""#;
    let (printed, said) = work(&server, "g", exec, &["--concurrency", "8", "--limit", "1000"]);
    let mut printed: Vec<u64> = printed.iter().map(|line| line.parse().unwrap()).collect();
    printed.sort_unstable();
    assert_eq!(printed, (1..=1000).collect::<Vec<_>>(), "{said}");
    let counters = &group(&server, "g")["counters"];
    assert_eq!([&counters["acked"], &counters["delivered"]], [&json!(1000), &json!(1000)]);
}

#[test]
fn a_lease_is_extended_while_its_command_runs() {
    let server = Server::start();
    server.import(&lines("orders", 0..1));
    // The idle worker would get the event if the lease ended.
    let exec = "echo $EVENT_SEQ >> runs; sleep 4";
    let one = worker(&server, "g", exec, &["--ack-timeout", "1s"]);
    let other = worker(&server, "g", exec, &["--ack-timeout", "1s"]);
    let runs = server.folder.path().join("runs");
    until("the command runs", || !numbers(&runs).is_empty());
    until("the event is acked", || group(&server, "g")["lag"] == 0);
    assert_eq!(numbers(&runs), [1]);
    let counters = group(&server, "g")["counters"].clone();
    assert_eq!([&counters["delivered"], &counters["expired"]], [&json!(1), &json!(0)]);
    for running in [one, other] {
        running.signal(Signal::INT);
        let (code, _, said) = running.end();
        assert_eq!(code, Some(130), "{said}");
    }
}

#[test]
fn the_first_signal_waits_for_commands_and_the_second_kills_them() {
    let server = Server::start();
    server.import(&lines("orders", 0..3));
    let running = worker(&server, "g", "echo started; sleep 1; echo done", &[]);
    assert_eq!(running.line(), "started");
    running.signal(Signal::TERM);
    let (code, rest, said) = running.end();
    assert_eq!((code, rest), (Some(143), vec!["done".to_owned()]), "{said}");
    assert!(said.contains("SIGTERM: waiting for 1 running command; a second signal kills it"), "{said}");
    assert_eq!(group(&server, "g")["counters"]["acked"], 1);

    // The process that the shell starts ends, too.
    let running = worker(&server, "g", "echo started; sleep 600 & wait; echo done", &[]);
    assert_eq!(running.line(), "started");
    running.signal(Signal::INT);
    running.signal(Signal::INT);
    // Two signals of the same kind may arrive as one.
    std::thread::sleep(Duration::from_millis(500));
    running.signal(Signal::TERM);
    let (code, rest, said) = running.end();
    assert_eq!((code, rest), (Some(130), vec![]), "{said}");
    let (printed, _) = work(&server, "g", "echo $EVENT_SEQ $EVENT_ATTEMPT", &["--limit", "2"]);
    assert_eq!(printed, ["2 1", "3 1"], "a killed command costs no attempt");
}

#[test]
fn a_command_need_not_read_its_payload() {
    let server = Server::start();
    server.feed(&["pub", "orders", "--text"], &format!("{}\n{}\n", "x".repeat(900_000), "y".repeat(900_000)));
    let (_, said) = work(&server, "g", "true", &["--limit", "2"]);
    assert_eq!(group(&server, "g")["counters"]["acked"], 2, "{said}");
}

#[test]
fn an_event_that_does_not_fit_into_the_environment_is_a_dead_letter() {
    let server = Server::start();
    server.import(&[format!(
        r#"{{"topic":"orders","payload":1,"key":"a\u0000b","headers":{{"h":"{}"}}}}"#,
        "v".repeat(10)
    )]);
    server.import(&lines("orders", 0..1));
    let (printed, _) = work(&server, "g", "echo $EVENT_SEQ", &["--limit", "2"]);
    assert_eq!(printed, ["2"]);
    until("a dead letter", || server.count("dlq.orders") == 1);
    let error = server.events("dlq.orders")[0]["payload"]["err"].as_str().unwrap().to_owned();
    assert!(error.contains("does not fit into the environment"), "{error}");
}

#[test]
fn a_worker_continues_after_a_restart_of_the_server() {
    let mut server = Server::start();
    server.import(&lines("orders", 0..200));
    let done = server.folder.path().join("done");
    let running = worker(&server, "g", "echo $EVENT_SEQ >> done; sleep 0.02", &["--concurrency", "4"]);
    until("the worker works", || numbers(&done).len() >= 30);
    server = server.kill_and_start_again(Duration::from_millis(300));
    until("all events are settled", || group(&server, "g")["lag"] == 0);
    running.signal(Signal::TERM);
    let (code, _, said) = running.end();
    assert_eq!(code, Some(143), "{said}");
    assert!(said.contains("broke: ") && said.contains("; reconnecting\n"), "{said}");
    assert!(said.contains(&format!("connected to {} again\n", server.url())), "{said}");
    assert_eq!(numbers(&done).into_iter().collect::<BTreeSet<_>>(), (1..=200).collect());
    assert_eq!(server.count("dlq.orders"), 0);
}

#[test]
fn a_limit_that_was_reached_without_the_server_is_a_failure_because_the_result_is_lost() {
    let server = Server::start();
    server.import(&lines("orders", 0..1));
    let running = worker(&server, "g", "echo started; sleep 1", &["--limit", "1"]);
    assert_eq!(running.line(), "started");
    server.serving.kill();
    let (code, _, said) = running.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cannot leave the group: "), "{said}");
}

#[test]
fn a_hang_up_waits_for_commands_like_other_signals() {
    if ignores_hang_up() {
        // Not `println`: the output of tests that pass is not shown.
        let _ = writeln!(std::io::stderr(), "SKIPPED: SIGHUP is ignored here, as under nohup");
        return;
    }
    let server = Server::start();
    server.import(&lines("orders", 0..2));
    let running = worker(&server, "g", "echo started; sleep 1; echo done", &[]);
    assert_eq!(running.line(), "started");
    running.signal(Signal::HUP);
    let (code, rest, said) = running.end();
    assert_eq!((code, rest), (Some(129), vec!["done".to_owned()]), "{said}");
    assert!(said.contains("SIGHUP: waiting for 1 running command;"), "{said}");
    assert_eq!(group(&server, "g")["counters"]["acked"], 1);
}

#[test]
fn a_timeout_ends_all_processes_of_a_command() {
    let server = Server::start();
    server.import(&lines("orders", 0..1));
    // The shell ends at SIGTERM; the process that it started does not.
    let exec = "(trap '' TERM; exec sleep 600) & echo $! > child; wait";
    work(&server, "g", exec, &["--timeout", "300ms", "--max-attempts", "1", "--limit", "1"]);
    let child = std::fs::read_to_string(server.folder.path().join("child")).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
    // In a container without an init process, it stays as a zombie.
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
}

#[test]
fn a_signal_ends_the_command_although_nobody_reads_its_output() {
    let server = Server::start();
    server.feed(&["pub", "orders", "--text"], &format!("{}\n", "x".repeat(500_000)));
    let mut child = server.command(&["sub", "orders", "--group", "g", "--from", "earliest"]).spawn().unwrap();
    until("the event is delivered", || group_or_null(&server, "g")["counters"]["delivered"] == 1);
    std::thread::sleep(Duration::from_millis(300));
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let mut code = None;
    until("the command ends", || {
        code = child.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.unwrap().code(), Some(143));
    let group = group(&server, "g");
    assert_eq!((&group["lag"], &group["members"]), (&json!(1), &json!(0)));
}

#[test]
fn wrong_arguments_and_refused_subscriptions_are_clear_errors() {
    let server = Server::start();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["sub", "orders", "--group", "g", "--exec", ""], 2, "--exec"),
        (&["sub", "orders", "--group", "g", "--exec", " \n"], 2, "the command is empty"),
        (&["sub", "orders"], 2, "--group"),
        (&["sub", "orders", "--group", "g", "--concurrency", "2"], 2, "--exec"),
        (&["sub", "orders", "--group", "g", "--ack-timeout", "30"], 2, "30s"),
        (&["sub", "orders", "--group", "g", "--from", "soon"], 2, "earliest"),
        (&["sub", "a b", "--group", "g"], 2, "topic"),
        (&["sub", "orders", "--group", "b!d"], 2, "group name has '!'"),
        (&["sub", "orders", "--group", "g", "--filter", "tag=a", "--filter", "tag=b"], 2, "only one tag"),
    ];
    for (arguments, code, word) in cases {
        let ran = server.run(arguments);
        assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(word), "{arguments:?}: {}", ran.stderr);
    }
    let id = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
    let unknown = server.run(&["sub", "orders", "--group", "g", "--from", id]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("unknown_id"), "{}", unknown.stderr);
}
