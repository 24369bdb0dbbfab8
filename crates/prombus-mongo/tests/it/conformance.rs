//! The conformance suite of all engines, on a standalone server and on a replica set.

use crate::engines::{connect, lead};
use crate::servers::{DropDatabase, fresh_database, shared_set_url, shared_url};
use prombus::Bus;
use prombus::conformance::Subject;

async fn subject(url: &str) -> Subject {
    let database = fresh_database();
    let engine = lead(&connect(url, &database).await, 1).await.unwrap();
    let bus = Bus::builder().over_engine(engine).unwrap();
    Subject::with_guard(bus, DropDatabase(url.to_owned(), database))
}

mod standalone {
    use super::*;

    async fn make_bus() -> Subject {
        subject(shared_url()).await
    }

    prombus::conformance_suite!(make_bus);
}

mod replica_set {
    use super::*;

    async fn make_bus() -> Subject {
        subject(shared_set_url()).await
    }

    prombus::conformance_suite!(make_bus);
}
