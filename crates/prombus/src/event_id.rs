//! Converts event ids between the engine's type and the protocol's.

use crate::engine::EventId;
use prombus_protocol::Uuid;

pub(crate) fn uuid_of(id: EventId) -> Uuid {
    Uuid::from_u128(id.as_u128())
}

pub(crate) fn event_id_of(id: Uuid) -> EventId {
    EventId::from_u128(id.as_u128())
}
