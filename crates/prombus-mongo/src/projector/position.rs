//! The position of a projector: one document per topic and group, written in the projector's transactions.

use crate::errors::is_code;
use crate::server_abilities::majority;
use mongodb::bson::{Bson, Document, doc};
use mongodb::error::Result as MongoResult;
use mongodb::options::ReturnDocument;
use mongodb::{ClientSession, Collection, Database};
use prombus::Uuid;
use std::time::Duration;

/// The time limit of one attempt to take over, on the server.
const TAKE_OVER_TIME: Duration = Duration::from_secs(2);
/// The most attempts to take over: two minutes, twice as long as the server keeps an abandoned transaction open by default.
const TAKE_OVERS_MAX: u32 = 60;
/// The error code for an operation that exceeded its time limit.
const MAX_TIME_EXPIRED: i32 = 50;

/// The last event that was folded; seq 0 and no id at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) seq: u64,
    pub(super) id: Option<Uuid>,
}

impl Position {
    fn parse(document: &Document) -> Self {
        let seq = document.get_i64("seq").ok().and_then(|seq| u64::try_from(seq).ok()).unwrap_or(0);
        let id = document.get_str("id").ok().and_then(|id| Uuid::try_parse(id).ok());
        Self { seq, id }
    }
}

/// The position that was found when a projector is opened.
pub(super) struct FoundPosition {
    pub(super) position: Position,
    /// No position existed.
    pub(super) is_new: bool,
    /// A rebuild was interrupted.
    pub(super) is_rebuilding: bool,
}

/// The result of moving a position.
pub(super) enum Advanced {
    /// The position was moved.
    Yes,
    /// An earlier attempt, whose response was lost, had already moved the position.
    WasThere,
    /// Another projector has taken over.
    NotOurs,
}

/// The position of one projector.
pub(super) struct Positions {
    database: Database,
    positions: Collection<Document>,
    /// The `_id` of the document.
    name: String,
    /// A token that is new for every projector that is opened.
    owner: String,
}

impl Positions {
    /// The position `name` in a collection.
    pub(super) fn new(database: &Database, collection: &str, name: String) -> Self {
        Self {
            database: database.clone(),
            positions: database.collection(collection),
            name,
            owner: Uuid::new_v4().to_string(),
        }
    }

    fn own(&self) -> Document {
        doc! { "_id": &self.name, "owner": &self.owner }
    }

    /// Makes this projector, which writes with this session, the owner of the position.
    pub(super) async fn take_over(&self, session: &ClientSession) -> MongoResult<FoundPosition> {
        self.end_transaction_of_owner().await?;
        let update = doc! {
            "$set": { "owner": &self.owner, "session": session.id() },
            "$setOnInsert": { "seq": 0_i64 },
        };
        let before = self.take(update).await?;
        Ok(FoundPosition {
            is_new: before.is_none(),
            is_rebuilding: before.as_ref().is_some_and(|it| it.get_bool("rebuilding").unwrap_or(false)),
            position: before.as_ref().map(Position::parse).unwrap_or_default(),
        })
    }

    /// Writes the new owner. If a transaction of another projector is open, the server gives up after [`TAKE_OVER_TIME`]. Without this
    /// limit, the write could still succeed after the process that sent it has died.
    async fn take(&self, update: Document) -> MongoResult<Option<Document>> {
        for _ in 0..TAKE_OVERS_MAX {
            let filter = doc! { "_id": &self.name };
            let take = self.positions.find_one_and_update(filter, update.clone()).upsert(true);
            let take = take.return_document(ReturnDocument::Before).max_time(TAKE_OVER_TIME);
            match take.write_concern(majority()).await {
                Err(error) if is_code(&error, MAX_TIME_EXPIRED) => {}
                taken => return taken,
            }
        }
        Err(mongodb::error::Error::custom("a transaction of another projector does not end"))
    }

    /// Ends the open transaction of the previous owner. A projector that was killed in the middle of a transaction leaves it open for a
    /// minute, and the position cannot be written before it ends.
    async fn end_transaction_of_owner(&self) -> MongoResult<()> {
        let Some(found) = self.positions.find_one(doc! { "_id": &self.name }).await? else { return Ok(()) };
        let Ok(session) = found.get_document("session") else { return Ok(()) };
        let kill = doc! { "killSessions": [session.clone()] };
        if let Err(error) = self.database.run_command(kill).await {
            tracing::debug!("the transaction of the previous projector may take a minute to end: {error}");
        }
        Ok(())
    }

    pub(super) async fn begin_rebuild(&self) -> MongoResult<()> {
        let update = doc! { "$set": { "rebuilding": true } };
        self.positions.update_one(self.own(), update).write_concern(majority()).await?;
        Ok(())
    }

    pub(super) async fn end_rebuild(&self) -> MongoResult<Position> {
        let update = doc! { "$set": { "seq": 0_i64 }, "$unset": { "rebuilding": 1, "id": 1 } };
        self.positions.update_one(self.own(), update).write_concern(majority()).await?;
        Ok(Position::default())
    }

    /// Moves the position in a transaction.
    pub(super) async fn advance(
        &self,
        from: Position,
        to: Position,
        session: &mut ClientSession,
    ) -> MongoResult<Advanced> {
        let mut filter = self.own();
        filter.insert("seq", from.seq as i64);
        let id = to.id.map_or(Bson::Null, |id| Bson::String(id.to_string()));
        let update =
            doc! { "$set": { "seq": to.seq as i64, "id": id }, "$currentDate": { "updated_at": true } };
        let moved = self.positions.update_one(filter, update).session(&mut *session).await?;
        if moved.matched_count == 1 {
            return Ok(Advanced::Yes);
        }
        let found = self.positions.find_one(self.own()).session(session).await?;
        Ok(match found {
            Some(found) if Position::parse(&found) == to => Advanced::WasThere,
            _ => Advanced::NotOurs,
        })
    }
}
