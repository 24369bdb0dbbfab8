//! The dead letters of all groups, read back from `dlq.<topic>`.

use crate::http;
use crate::ledger::Seen;
use crate::plan::{GROUPS, TOPICS};
use crate::world::World;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::io;

#[derive(Deserialize)]
struct Line {
    id: String,
    payload: Letter,
}

#[derive(Deserialize)]
struct Letter {
    group: String,
    attempts: u16,
    original: Original,
}

#[derive(Deserialize)]
struct Original {
    id: String,
    seq: u32,
    topic: String,
    #[serde(default)]
    key: Option<String>,
    payload: Box<RawValue>,
}

#[derive(Default)]
pub(crate) struct DeadLetters {
    known: HashSet<(String, usize, u32)>,
}

impl DeadLetters {
    pub(crate) fn has(&self, group: &str, topic: usize, seq: u32) -> bool {
        self.known.contains(&(group.to_owned(), topic, seq))
    }

    /// Reads all dead letters. There must be at most one per group and event, and its attempts must be the group's maximum.
    pub(crate) fn read(world: &World) -> io::Result<Self> {
        let mut letters = Self::default();
        for (topic, plan) in TOPICS.iter().enumerate() {
            let path = format!("/export?topic=dlq.{}", plan.name);
            http::get_lines(world.address, &path, |line| letters.add(world, topic, line))?;
        }
        world.add("dead letters", letters.known.len() as u64);
        Ok(letters)
    }

    fn add(&mut self, world: &World, topic: usize, line: &str) {
        let Ok(Line { id, payload: letter }) = serde_json::from_str(line) else {
            world.violation("bad_dead_letter", &format!("{line:.300}"));
            return;
        };
        let original = &letter.original;
        let seen = Seen {
            topic: &original.topic,
            seq: original.seq,
            id: &original.id,
            payload: original.payload.get(),
            key: original.key.as_deref(),
        };
        for (kind, text) in world.ledger().observed(&seen, "a dead letter").1 {
            world.violation(kind, &text);
        }
        let place = format!(
            "dead letter {id}: group {}, topic {}, seq {}",
            letter.group, original.topic, original.seq
        );
        match GROUPS.iter().find(|plan| plan.name == letter.group) {
            Some(plan) if plan.max_attempts == letter.attempts && plan.topics.contains(&topic) => {}
            _ => world.violation("bad_dead_letter", &format!("{place}: attempts {}", letter.attempts)),
        }
        if !self.known.insert((letter.group.clone(), topic, original.seq)) {
            world.violation("dead_letter_twice", &place);
        }
    }
}
