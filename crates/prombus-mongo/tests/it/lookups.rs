//! Lookups use an index: the server's profiler shows how many documents each query examined.

use crate::engines::{connect, lead, topic};
use crate::servers::{DropDatabase, fresh_database, open_database, shared_url};
use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, doc};
use prombus::{Bus, PublishOptions, Start};

/// The number of events; `PROMBUS_TEST_EVENTS` overrides it.
fn event_count() -> u64 {
    std::env::var("PROMBUS_TEST_EVENTS").ok().and_then(|count| count.parse().ok()).unwrap_or(50_000)
}

async fn publish_events(bus: &Bus, count: u64) -> Vec<prombus::Published> {
    let mut published = Vec::new();
    let mut next = 0;
    while next < count {
        let last = (next + 5_000).min(count);
        let mut batch = bus.batch();
        for number in next..last {
            let mut options = PublishOptions { ts: Some(1_000_000 + number as i64), ..Default::default() };
            if number % 10 == 0 {
                options.key = Some(format!("k{}", number % 1_000));
            }
            if number % 100 == 1 {
                options.id = Some(prombus::Uuid::from_u128(u128::from(number) << 64 | 1));
            }
            batch.push("a", &number, &options).unwrap();
        }
        let answered = bus.publish_batch(batch).await.unwrap();
        published.extend(answered.into_iter().filter(|it| it.seq % 997 == 0));
        next = last;
    }
    published
}

#[tokio::test(flavor = "multi_thread")]
async fn lookups_by_id_time_and_key_examine_few_documents() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let store = connect(shared_url(), &database).await;
    let engine = lead(&store, 1).await.unwrap();
    let bus = Bus::builder().over_engine(std::sync::Arc::clone(&engine)).unwrap();
    let count = event_count();
    let published = publish_events(&bus, count).await;
    let topic_id = engine.topics()[0].id;
    // The keys of the topic are read once, then lookups are by seq.
    let keys = ["k0", "k500", "k990"];
    bus.latest_by_key("a", keys).await.unwrap();

    let opened = open_database(shared_url(), &database).await;
    opened.run_command(doc! { "profile": 2 }).await.unwrap();
    for it in [&published[0], &published[published.len() / 2], published.last().unwrap()] {
        let found = bus.read(&topic("a"), Start::AfterId(it.id), one()).await.unwrap();
        assert_eq!(found.events[0].seq(), it.seq + 1);
    }
    let chosen = (count / 2 / 100) * 100 + 1;
    let id = prombus::Uuid::from_u128(u128::from(chosen) << 64 | 1);
    let found = bus.read(&topic("a"), Start::AfterId(id), one()).await.unwrap();
    assert_eq!(found.events[0].seq(), chosen + 2);
    for number in [1, count / 3, count - 2] {
        let found = bus.read(&topic("a"), Start::Ts(1_000_000 + number as i64), one()).await.unwrap();
        assert_eq!(found.events[0].seq(), number + 1);
    }
    let latest = bus.latest_by_key("a", keys).await.unwrap();
    assert_eq!(latest.len(), 3);
    let before = vec![(count, b"k500".to_vec()), (count, b"missing".to_vec())];
    let before = engine.have_keys_before(topic_id, before).await.unwrap();
    assert_eq!(before, [Ok(true), Ok(false)]);
    opened.run_command(doc! { "profile": 0 }).await.unwrap();

    let profile = opened.collection::<Document>("system.profile");
    let filter = doc! { "ns": format!("{database}.events"), "op": { "$in": ["query", "getmore"] } };
    let queries: Vec<Document> = profile.find(filter).await.unwrap().try_collect().await.unwrap();
    assert!(queries.len() > 20, "{} queries", queries.len());
    let mut most = 0;
    for query in &queries {
        let plan = query.get_str("planSummary").unwrap();
        assert!(!plan.contains("COLLSCAN") || plan.contains("CLUSTERED"), "{plan}: {query}");
        let examined = query.get_i32("docsExamined").unwrap_or(0);
        assert!(examined <= 2, "{examined} documents examined: {query}");
        most = most.max(examined);
    }
    println!("{count} events: {} queries, at most {most} documents examined", queries.len());
}

fn one() -> prombus::PullLimit {
    prombus::PullLimit { events: 1, bytes: 1 << 20 }
}
