//! The examples of docs/consuming.md that need MongoDB: they run here, and the page has them word for word.

use crate::setup::{database, payloads, until};

// docs: imports
use mongodb::bson::{Document, doc};
use mongodb::{ClientSession, Collection, Database};
use prombus::consume::exactly_once::ExactlyOnce;
use prombus::outbox::{DrainerHandle, OutboxDrainer, OutboxRecord};
use prombus::{BoxFuture, Bus, Event, HandlerHandle, Uuid};
use prombus_mongo::{
    Changefeed, ChangefeedHandle, ChangefeedOptions, ChangelogOptions, ChangelogProjector, HandlerError,
    MongoDedupe, MongoExactlyOnce, MongoOutbox, MongoProjection, MongoProjector, MongoProjectorHandle,
    MongoProjectorOptions, mongodb,
};
use std::sync::Arc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
// end

// docs: marks
async fn marks(bus: &Bus, database: &Database) -> Result<ExactlyOnce> {
    let marks = Arc::new(MongoDedupe::open(database).await?);
    Ok(bus.subscribe("orders", "mailer").from_earliest().exactly_once(marks))
}
// end

// docs: exactly once
async fn exactly_once(bus: &Bus, database: &Database) -> Result<HandlerHandle> {
    let once = MongoExactlyOnce::open(database).await?;
    let ledger = database.collection::<Document>("ledger");
    let payments = bus.subscribe("payments", "ledger").from_earliest();
    let running = once.handler(payments, move |event, session| {
        let ledger = ledger.clone();
        Box::pin(async move {
            let amount: i64 = event.json()?;
            ledger.insert_one(doc! { "amount": amount }).session(session).await?;
            Ok::<(), HandlerError>(()) // commits with the mark of the event; then the event is acked
        })
    });
    Ok(running.await?)
}
// end

// docs: outbox
async fn outbox(bus: &Bus, database: &Database) -> Result<DrainerHandle> {
    let outbox = MongoOutbox::open(database).await?;

    // The service: its order and the event, in one transaction.
    let id = Uuid::new_v4();
    let orders = database.collection::<Document>("orders");
    let mut session = database.client().start_session().await?;
    session.start_transaction().await?;
    orders.insert_one(doc! { "_id": id.to_string(), "item": 7 }).session(&mut session).await?;
    let record = OutboxRecord::new(id, "orders", &serde_json::json!({ "item": 7 }))?;
    outbox.add(&record, Some(&mut session)).await?;
    session.commit_transaction().await?;

    // The drainer, here or in another process.
    Ok(OutboxDrainer::new(Arc::new(outbox), Arc::new(bus.clone())).spawn())
}
// end

// docs: projector
struct Totals(Collection<Document>);

impl MongoProjection for Totals {
    fn fold<'a>(
        &'a mut self,
        event: &'a Event,
        session: &'a mut ClientSession,
    ) -> BoxFuture<'a, std::result::Result<(), HandlerError>> {
        Box::pin(async move {
            let account = event.key().ok_or("a payment needs a key")?;
            let add = doc! { "$inc": { "total": event.json::<i64>()? } };
            self.0.update_one(doc! { "_id": account }, add).upsert(true).session(session).await?;
            Ok(())
        })
    }
}

async fn projector(bus: &Bus, database: &Database) -> Result<MongoProjectorHandle> {
    let options = MongoProjectorOptions::group("totals").topic("payments");
    let totals = Totals(database.collection("totals"));
    Ok(MongoProjector::open(bus, database, options, totals).await?.spawn())
}
// end

// docs: changelog
async fn changelog(bus: &Bus, database: &Database) -> Result<MongoProjectorHandle> {
    let options = ChangelogOptions::group("users-collection").topic("users").collection("users");
    Ok(ChangelogProjector::open(bus, database, options).await?.spawn())
}
// end

// docs: changefeed
async fn changefeed(bus: &Bus, database: &Database) -> Result<ChangefeedHandle> {
    let options = ChangefeedOptions::collection("profiles").topic("profiles.changes");
    Ok(Changefeed::open(database, Arc::new(bus.clone()), options).await?.spawn())
}
// end

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_guide_work() {
    let (database, _drop) = database().await;
    let bus = Bus::memory();
    for (key, amount) in [("ann", 5), ("bob", 7), ("ann", 2)] {
        bus.publish("payments", &amount).key(key).await.unwrap();
    }
    bus.publish("users", &serde_json::json!({ "name": "Ann" })).key("ann").await.unwrap();
    database.create_collection("profiles").await.unwrap();
    let drainer = outbox(&bus, &database).await.unwrap();
    let once = exactly_once(&bus, &database).await.unwrap();
    let totals = projector(&bus, &database).await.unwrap();
    let users = changelog(&bus, &database).await.unwrap();
    let feed = changefeed(&bus, &database).await.unwrap();
    let mailer = marks(&bus, &database).await.unwrap();
    let mailer = mailer.handler(|_, _| async { Ok::<(), String>(()) }).await.unwrap();
    database.collection("profiles").insert_one(doc! { "_id": 1 }).await.unwrap();
    let count =
        async |name: &str| database.collection::<Document>(name).count_documents(doc! {}).await.unwrap();
    until("everything is there", || async {
        payloads(&bus, "orders").await.len() == 1
            && payloads(&bus, "profiles.changes").await.len() == 1
            && totals.figures().position == 3
            && users.figures().position == 1
            && count("ledger").await == 3
            && count("dedupe").await == 1
            && count("exactly_once").await == 3
    })
    .await;
    let ann =
        database.collection::<Document>("totals").find_one(doc! { "_id": "ann" }).await.unwrap().unwrap();
    assert_eq!(ann.get_i64("total").unwrap(), 7);
    drainer.stop().await;
    once.unsubscribe().await.unwrap();
    mailer.unsubscribe().await.unwrap();
    totals.stop().await.unwrap();
    users.stop().await.unwrap();
    feed.stop().await.unwrap();
}

#[test]
fn the_guide_contains_these_examples() {
    let page = include_str!("../../../../docs/consuming.md");
    let mut examples = 0;
    for example in include_str!("guide.rs").split("\n// docs: ").skip(1) {
        let (name, rest) = example.split_once('\n').unwrap();
        let Some((code, _)) = rest.split_once("\n// end\n") else { continue };
        assert!(
            page.contains(&format!("```rs\n{code}\n```")),
            "docs/consuming.md does not have the example {name}:\n{code}"
        );
        examples += 1;
    }
    assert_eq!(examples, 7);
}
