//! The content of a publisher's n-th event. It is derived from the seed, the publisher and the number, so that the expected event
//! can be computed again wherever it is observed.

use crate::plan::{KEYS, Keeps, TOPICS};
use crate::random::Random;

/// Identifies an event by its publisher and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) publisher: u16,
    pub(crate) number: u32,
}

pub(crate) struct Content {
    pub(crate) name: Name,
    /// Index of the topic in `TOPICS`.
    pub(crate) topic: usize,
    /// `None` if the server chooses the id.
    pub(crate) id: Option<String>,
    pub(crate) key: Option<String>,
    /// Has the tag that the filter of one group selects.
    pub(crate) is_red: bool,
    /// Groups that reject poison never ack it.
    pub(crate) is_poison: bool,
    pub(crate) is_tombstone: bool,
    fill: usize,
}

impl Content {
    pub(crate) fn of(seed: u64, name: Name) -> Self {
        let mixed =
            (u64::from(name.publisher) << 32 | u64::from(name.number)).wrapping_mul(0xd134_2543_de82_ef95);
        let mut random = Random::new(seed ^ mixed);
        let mut percent = random.below(100);
        let mut topic = 0;
        while percent >= TOPICS[topic].percent {
            percent -= TOPICS[topic].percent;
            topic += 1;
        }
        let is_keyed = TOPICS[topic].keeps == Keeps::NewestPerKey;
        let has_id = is_keyed || random.chance(700);
        let id = has_id.then(|| {
            let Name { publisher, number } = name;
            let (start, middle) = (random.next() as u32, random.next() & 0xfff);
            format!("{start:08x}-{publisher:04x}-4{middle:03x}-8abc-{number:012x}")
        });
        let has_key = is_keyed || random.chance(300);
        let key = has_key.then(|| format!("key-{}", random.below(KEYS)));
        let is_tombstone = is_keyed && random.chance(150);
        let fill = if random.chance(20) { random.below(4_000) } else { random.below(300) };
        Self {
            name,
            topic,
            id,
            key,
            is_red: random.chance(300),
            is_poison: random.chance(5),
            is_tombstone,
            fill: fill as usize,
        }
    }

    pub(crate) fn topic_name(&self) -> &'static str {
        TOPICS[self.topic].name
    }

    pub(crate) fn payload(&self) -> String {
        if self.is_tombstone {
            return "null".to_owned();
        }
        let Name { publisher, number } = self.name;
        format!("{{\"p\":{publisher},\"n\":{number},\"fill\":\"{}\"}}", "x".repeat(self.fill))
    }

    /// The fields of `opts`, or of a record, besides the payload.
    fn options(&self) -> String {
        let mut options = Vec::new();
        if let Some(id) = &self.id {
            options.push(format!("\"id\":\"{id}\""));
        }
        if let Some(key) = &self.key {
            options.push(format!("\"key\":\"{key}\""));
        }
        if self.is_red {
            options.push("\"tags\":[\"red\"]".to_owned());
        }
        options.join(",")
    }

    /// The PUBLISH frame. `payload` replaces the event's own payload.
    pub(crate) fn publish_frame(&self, corr: u64, payload: Option<&str>) -> String {
        let own = self.payload();
        format!(
            "{{\"op\":\"PUBLISH\",\"topic\":\"{}\",\"corr\":{corr},\"payload\":{},\"opts\":{{{}}}}}",
            self.topic_name(),
            payload.unwrap_or(&own),
            self.options()
        )
    }

    /// A line for `POST /publish?envelope=1`.
    pub(crate) fn record_line(&self) -> String {
        let options = self.options();
        let comma = if options.is_empty() { "" } else { "," };
        format!("{{\"payload\":{}{comma}{options}}}", self.payload())
    }
}

/// The name of the event with this id and payload. It is part of the payload or, for a tombstone, of the id.
pub(crate) fn name_of(id: &str, payload: &str) -> Option<Name> {
    if payload == "null" {
        let publisher = u16::from_str_radix(id.get(9..13)?, 16).ok()?;
        let number = u32::from_str_radix(id.get(24..36)?, 16).ok()?;
        return Some(Name { publisher, number });
    }
    let rest = payload.strip_prefix("{\"p\":")?;
    let (publisher, rest) = rest.split_once(",\"n\":")?;
    let (number, _) = rest.split_once(',')?;
    Some(Name { publisher: publisher.parse().ok()?, number: number.parse().ok()? })
}
