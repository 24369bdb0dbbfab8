//! Kills (kill -9) a process that writes events of a topic into a SQLite ledger, 50 times in a row.

use crate::child::{Child, open_bus, say, sum_of};
use crate::folder::Folder;
use crate::support::{Random, setting};
use prombus::consume::exactly_once::SqliteExactlyOnce;
use prombus::{Bus, Event};
use rusqlite::{Connection, Transaction};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const FOLDER: &str = "PROMBUS_ONCE_FOLDER";
const ROUNDS: u32 = 50;

fn record(event: &Event, transaction: &Transaction<'_>) -> Result<(), rusqlite::Error> {
    transaction.execute("INSERT INTO ledger (seq) VALUES (?1)", [event.seq().cast_signed()])?;
    transaction.execute("UPDATE total SET events = events + 1", [])?;
    Ok(())
}

fn open_ledger(folder: &Path) -> SqliteExactlyOnce {
    let once = SqliteExactlyOnce::open(folder.join("ledger.db")).expect("it opens");
    let sql = "CREATE TABLE IF NOT EXISTS ledger (seq INTEGER NOT NULL);
        CREATE TABLE IF NOT EXISTS total (only INTEGER PRIMARY KEY CHECK (only = 1), events INTEGER NOT NULL);
        INSERT INTO total VALUES (1, 0) ON CONFLICT DO NOTHING;";
    once.setup(sql).expect("its tables");
    once
}

/// The number of events that are in the ledger but not settled by the group: they are redelivered.
async fn handled_but_not_settled(bus: &Bus, folder: &Path) -> u64 {
    let Some(group) = bus.backend().group("payments", "ledger").await.expect("succeeds") else { return 0 };
    let floor = group.topics.first().map_or(0, |place| place.floor);
    let connection = Connection::open(folder.join("ledger.db")).expect("it opens");
    let sql = "SELECT count(*) FROM ledger WHERE seq > ?1";
    let count: i64 = connection.query_row(sql, [floor.cast_signed()], |row| row.get(0)).expect("it counts");
    count.cast_unsigned()
}

/// Not a test: the process that the test kills.
#[test]
fn the_process_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let once = open_ledger(&folder);
        let bus = open_bus(&folder.join("bus")).await;
        say(&format!("AGAIN {}", handled_but_not_settled(&bus, &folder).await));
        let calls = AtomicU64::new(0);
        let handler = move |event: &Event, transaction: &Transaction<'_>| {
            record(event, transaction).map_err(|error| error.to_string())?;
            // A failed call has written too, and must leave no trace.
            match calls.fetch_add(1, Ordering::SeqCst) % 29 {
                7 => Err("not this time".to_owned()),
                19 => panic!("not this time"),
                _ => Ok(()),
            }
        };
        let payments = bus.subscribe("payments", "ledger").from_earliest().max_attempts(1_000);
        let once = once.events_per_transaction(if std::process::id() % 2 == 0 { 1 } else { 8 });
        let _running = once.handler(payments, handler).await.expect("it subscribes");
        for number in 0_u64.. {
            bus.publish("payments", &number).await.expect("it publishes");
            say("PUB 1");
        }
    });
}

fn check(folder: &Path, round: u32) -> (i64, i64) {
    let connection = Connection::open(folder.join("ledger.db")).expect("it opens");
    let sql = "SELECT count(*), count(DISTINCT seq), (SELECT events FROM total) FROM ledger";
    let counts = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let (rows, seqs, total): (i64, i64, i64) = counts.expect("it counts");
    assert_eq!(rows, seqs, "round {round}: an event was handled twice");
    assert_eq!(rows, total, "round {round}: an effect is incomplete");
    (rows, total)
}

#[test]
fn kill_9_fifty_times_and_every_event_has_its_effect_in_sqlite_exactly_once() {
    let seed = setting("PROMBUS_SEED", 1);
    println!("PROMBUS_SEED={seed}");
    let mut random = Random::new(seed);
    let folder = Folder::new();
    let (mut published, mut again) = (0, 0);
    for round in 0..ROUNDS {
        let variables = [(FOLDER, folder.path())];
        let child = Child::start("exactly_once_kill::the_process_that_is_killed", &variables);
        std::thread::sleep(Duration::from_millis(random.between(80, 400)));
        let said = child.kill();
        published += sum_of(&said, "PUB ");
        again += sum_of(&said, "AGAIN ");
        if folder.path().join("ledger.db").exists() && published > 0 {
            check(folder.path(), round);
        }
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let last_seq = runtime.block_on(finish(folder.path()));
    let (rows, _) = check(folder.path(), ROUNDS);
    println!("{published} confirmed, {last_seq} in the topic, {rows} in the ledger, {again} redelivered");
    assert!(last_seq >= published, "a confirmed event is lost");
    assert_eq!(rows.cast_unsigned(), last_seq, "an event has no effect");
    assert!(published > 500 && again > 0, "too few cases: {published} published, {again} redelivered");
}

/// Handles the remaining events, and returns the number of events.
async fn finish(folder: &Path) -> u64 {
    let bus = open_bus(&folder.join("bus")).await;
    let payments = bus.subscribe("payments", "ledger").max_attempts(1_000);
    let running = open_ledger(folder).handler(payments, record).await.expect("it subscribes");
    loop {
        let group = bus.backend().group("payments", "ledger").await.expect("succeeds");
        let group = group.expect("the group exists");
        if group.lag == 0 {
            running.unsubscribe().await.expect("it leaves");
            let last_seq = group.topics[0].last_seq;
            bus.close().await.expect("it closes");
            return last_seq;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
