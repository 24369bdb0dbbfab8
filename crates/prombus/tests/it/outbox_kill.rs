//! Three processes share one outbox: a service that writes orders and rows, a bus with a drainer in the same process, and a
//! drainer that publishes over a socket. One of them is killed at a random time, 50 times in a row.

use crate::child::{Child, open_bus, say, sum_of};
use crate::folder::Folder;
use crate::support::{Random, setting};
use prombus::outbox::{OutboxDrainer, OutboxPublisher, OutboxRecord, PublishFailure, SqliteOutbox};
use prombus::{BoxFuture, Bus, Published, PullLimit, Topic, Uuid};
use rusqlite::{Connection, TransactionBehavior};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const FOLDER: &str = "PROMBUS_OUTBOX_FOLDER";
const KILLS: u32 = 50;
const LEASE_MS: u64 = 300;

/// A request: id, topic, payload, headers, key, time. The response: seq and whether it was a duplicate, or an error.
type Sent = (Uuid, String, String, BTreeMap<String, String>, Option<String>, Option<i64>);
type Answer = Result<(u64, bool), String>;

/// A bus that is reached over a socket: one line of JSON with records, one line with responses.
struct Remote(PathBuf);

impl OutboxPublisher for Remote {
    fn publish<'a>(
        &'a self,
        records: &'a [OutboxRecord],
    ) -> BoxFuture<'a, Vec<Result<Published, PublishFailure>>> {
        Box::pin(async move {
            let answers = self.ask(records);
            // Like a network: the response takes a while.
            tokio::time::sleep(Duration::from_millis(u64::from(std::process::id() % 13))).await;
            match answers {
                Ok(answers) => answers
                    .into_iter()
                    .zip(records)
                    .map(|(answer, record)| match answer {
                        Ok((seq, duplicate)) => Ok(Published { id: record.id, seq, duplicate }),
                        Err(error) => Err(PublishFailure::Retry(error)),
                    })
                    .collect(),
                Err(error) => {
                    records.iter().map(|_| Err(PublishFailure::Unavailable(error.to_string()))).collect()
                }
            }
        })
    }
}

impl Remote {
    fn ask(&self, records: &[OutboxRecord]) -> std::io::Result<Vec<Answer>> {
        let mut stream = UnixStream::connect(&self.0)?;
        let sent: Vec<Sent> = records
            .iter()
            .map(|record| {
                let OutboxRecord { id, topic, payload, headers, key, ts } = record.clone();
                (id, topic, payload.get().to_owned(), headers, key, ts)
            })
            .collect();
        let mut line = serde_json::to_vec(&sent)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    }
}

fn serve(bus: &Bus, stream: UnixStream, runtime: &tokio::runtime::Handle) -> std::io::Result<()> {
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut line)?;
    let sent: Vec<Sent> = serde_json::from_str(&line)?;
    let records: Vec<OutboxRecord> = sent
        .into_iter()
        .map(|(id, topic, payload, headers, key, ts)| {
            let payload = prombus::RawValue::from_string(payload).expect("it is JSON");
            OutboxRecord { id, topic, payload, headers, key, ts }
        })
        .collect();
    let results = runtime.block_on(OutboxPublisher::publish(bus, &records));
    let answers: Vec<Answer> = results
        .into_iter()
        .map(|result| result.map(|one| (one.seq, one.duplicate)).map_err(|error| error.to_string()))
        .collect();
    let mut stream = stream;
    stream.write_all(&serde_json::to_vec(&answers)?)?;
    stream.write_all(b"\n")
}

fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

fn open_outbox(folder: &Path) -> SqliteOutbox {
    SqliteOutbox::open(folder.join("shop.db")).expect("it opens")
}

/// Drains in an endless loop and prints its counters.
async fn drain(folder: &Path, publisher: Arc<dyn OutboxPublisher>) {
    let outbox = Arc::new(open_outbox(folder));
    let drainer = OutboxDrainer::new(outbox, publisher).lease_ms(LEASE_MS).batch_size(20);
    let mut before = drainer.counts();
    loop {
        // An error is expected while the bus is down.
        let _ = drainer.drain().await;
        let counts = drainer.counts();
        if counts != before {
            say(&format!("DUPLICATES {}", counts.duplicates - before.duplicates));
            say(&format!("REQUEUED {}", counts.requeued - before.requeued));
            say(&format!("DEAD {}", counts.dead - before.dead));
            before = counts;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Not a test: the process with the bus and a drainer.
#[test]
fn the_bus_that_is_killed() {
    let Some(folder) = folder() else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let bus = runtime.block_on(open_bus(&folder.join("bus")));
    let socket = folder.join("bus.sock");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(socket).expect("it listens");
    let (bus_of_thread, handle) = (bus.clone(), runtime.handle().clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // An error means that the drainer died in the middle of a request.
            let _ = serve(&bus_of_thread, stream.expect("a connection"), &handle);
        }
    });
    runtime.block_on(drain(&folder, Arc::new(bus)));
}

/// Not a test: the process with a drainer without a bus.
#[test]
fn the_drainer_that_is_killed() {
    let Some(folder) = folder() else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(drain(&folder, Arc::new(Remote(folder.join("bus.sock")))));
}

/// Not a test: the process of the service. It writes each order and its outbox row in one transaction, and rolls some back.
#[test]
fn the_service_that_is_killed() {
    let Some(folder) = folder() else { return };
    let mut shop = Connection::open(folder.join("shop.db")).expect("it opens");
    shop.busy_timeout(Duration::from_secs(10)).expect("a timeout");
    for number in 0_u64.. {
        let transaction = shop.transaction_with_behavior(TransactionBehavior::Immediate).expect("it begins");
        transaction.execute("INSERT INTO orders DEFAULT VALUES", []).expect("an order");
        let order = transaction.last_insert_rowid();
        let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("order {order}").as_bytes());
        let mut record = OutboxRecord::new(id, "orders", &order).expect("a record");
        record.key = Some(format!("order-{order}"));
        SqliteOutbox::add(&transaction, &record).expect("it is added");
        if number % 11 == 5 {
            transaction.rollback().expect("it rolls back");
        } else {
            transaction.commit().expect("it commits");
            say("ORDERS 1");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

const TESTS: [&str; 3] = [
    "outbox_kill::the_bus_that_is_killed",
    "outbox_kill::the_drainer_that_is_killed",
    "outbox_kill::the_service_that_is_killed",
];

#[test]
fn kill_9_fifty_times_and_every_order_has_its_event_exactly_once() {
    let seed = setting("PROMBUS_SEED", 1);
    println!("PROMBUS_SEED={seed}");
    let mut random = Random::new(seed);
    let folder = Folder::new();
    drop(open_outbox(folder.path()));
    let shop = Connection::open(folder.path().join("shop.db")).expect("it opens");
    // Not AUTOINCREMENT: the number of a rolled-back order is reused, and so is the id of its row.
    shop.execute_batch("CREATE TABLE orders (number INTEGER PRIMARY KEY)").expect("a table");
    let start = |which: usize| Child::start(TESTS[which], &[(FOLDER, folder.path())]);
    let mut children: Vec<Child> = (0..TESTS.len()).map(start).collect();
    let mut output = Vec::new();
    for _ in 0..KILLS {
        std::thread::sleep(Duration::from_millis(random.between(60, 450)));
        let which = random.below(TESTS.len() as u64) as usize;
        output.extend(children.remove(which).kill());
        children.insert(which, start(which));
    }
    output.extend(children.into_iter().flat_map(Child::kill));

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let events = runtime.block_on(finish(folder.path()));
    let mut statement = shop.prepare("SELECT number FROM orders").expect("it is SQL");
    let orders = statement.query_map([], |row| row.get::<_, i64>(0)).expect("it runs");
    let orders: Vec<i64> = orders.map(|order| order.expect("a number")).collect();
    for order in &orders {
        assert_eq!(events.get(order), Some(&1), "order {order}: events");
    }
    assert_eq!(events.len(), orders.len(), "events without an order");
    let sum = |word: &str| sum_of(&output, word);
    let (answered, duplicates, requeued) = (sum("ORDERS "), sum("DUPLICATES "), sum("REQUEUED "));
    println!("{} orders, {answered} confirmed, {requeued} requeued, {duplicates} duplicates", orders.len());
    assert!(orders.len() as u64 >= answered, "a confirmed order is lost");
    assert_eq!(sum("DEAD "), 0);
    assert!(answered > 300 && requeued > 0 && duplicates > 0, "too few cases were tested");
}

/// Publishes the remaining rows and returns the number of events of each order.
async fn finish(folder: &Path) -> HashMap<i64, u32> {
    let bus = open_bus(&folder.join("bus")).await;
    tokio::time::sleep(Duration::from_millis(LEASE_MS)).await;
    let outbox = open_outbox(folder);
    let drainer = OutboxDrainer::new(Arc::new(outbox.clone()), Arc::new(bus.clone()));
    drainer.drain().await.expect("it drains");
    let counts = outbox.counts().await.expect("it counts");
    assert_eq!(counts.keys().collect::<Vec<_>>(), ["sent"], "{counts:?}");
    let topic = Topic::new("orders").expect("a topic");
    let (mut events, mut from) = (HashMap::new(), 1);
    loop {
        let page = bus.read_from(&topic, from, PullLimit::default()).await.expect("it reads");
        for event in &page.events {
            *events.entry(event.json::<i64>().expect("a number")).or_default() += 1;
        }
        if page.next_seq == from {
            bus.close().await.expect("it closes");
            return events;
        }
        from = page.next_seq;
    }
}
