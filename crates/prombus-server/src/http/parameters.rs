//! Parameters of routes, as `/openapi.json` describes them.

/// Where a parameter stands. Those in the path are known from the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Query,
    Header,
}

/// A parameter that a route reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) place: Place,
    pub(super) is_required: bool,
    /// A JSON schema.
    pub(super) schema: &'static str,
    pub(super) about: &'static str,
}

const fn query(name: &'static str, schema: &'static str, about: &'static str) -> Parameter {
    Parameter { name, place: Place::Query, is_required: false, schema, about }
}

const fn header(name: &'static str, schema: &'static str, about: &'static str) -> Parameter {
    Parameter { name, place: Place::Header, is_required: false, schema, about }
}

const TEXT: &str = r#"{"type":"string"}"#;
const ID: &str = r#"{"type":"string","format":"uuid"}"#;
const IDS: &str = r#"{"type":"array","items":{"type":"string","format":"uuid"}}"#;
const TAGS: &str = r#"{"type":"array","items":{"type":"string"}}"#;
const TS: &str = r#"{"type":"integer","minimum":0,"maximum":253402300799999}"#;
const OFF: &str = r#"{"type":"string","enum":["0","1"],"default":"0"}"#;
const ON: &str = r#"{"type":"string","enum":["0","1"],"default":"1"}"#;

const TOPIC: Parameter = Parameter {
    is_required: true,
    ..query("topic", r##"{"$ref":"#/components/schemas/Topic"}"##, "The topic.")
};
const START_TS: Parameter = query("ts", TS, "With from=ts: milliseconds since 1970.");
const START_AFTER: Parameter = query("afterId", ID, "With from=afterId: the event to start behind.");

pub(super) const PUBLISH: &[Parameter] = &[
    query("key", TEXT, "What the events are about."),
    query("ts", TS, "When they were, in milliseconds since 1970; the gateway's time if absent."),
    query("id", ID, "The event's id; a second publish with an id that the topic has adds nothing."),
    query("sid", ID, "The publisher's session."),
    query("tag", TAGS, "A label; may be given more than once."),
    query("caused_by", IDS, "The event that led to this one; may be given more than once."),
    query("envelope", OFF, "1: each event is a whole record, not only a payload."),
    header(
        "Idempotency-Key",
        TEXT,
        "The event's id; what is no UUID is hashed. Of many events each has its own.",
    ),
];

pub(super) const REPLAY: &[Parameter] = &[
    TOPIC,
    query(
        "from",
        r#"{"type":"string","enum":["earliest","ts","afterId"],"default":"earliest"}"#,
        "Where to start.",
    ),
    START_TS,
    START_AFTER,
    query(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":1000000,"default":1000}"#,
        "The most events that come.",
    ),
];

pub(super) const EXPORT: &[Parameter] = &[
    TOPIC,
    query("fromTs", TS, "Events of this time and later; all if absent."),
    query("toTs", TS, "Events of this time and earlier; all if absent."),
    query("ndjson", ON, "1: one event a line. 0: a JSON array."),
];

const AT: Parameter = query(
    "at",
    TS,
    "As of this time, by the events' own times, from the history that is kept; as of now if absent.",
);
const IF_NONE_MATCH: Parameter =
    header("If-None-Match", TEXT, "The ETag of an answer that the caller has: 304 if it holds.");

pub(super) const STATE: &[Parameter] = &[
    query(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":1000000}"#,
        "The most events that come; 1000 if absent, as lines all.",
    ),
    query("next", TEXT, "Goes on where an answer ended: its next."),
    AT,
    query("ndjson", OFF, "1: one event a line, as with Accept: application/x-ndjson. 0: a JSON object."),
    IF_NONE_MATCH,
];

pub(super) const STATE_KEY: &[Parameter] = &[AT, IF_NONE_MATCH];

pub(super) const SUBSCRIBE: &[Parameter] = &[
    query(
        "from",
        r#"{"type":"string","enum":["earliest","latest","ts","afterId"],"default":"latest"}"#,
        "Where to start.",
    ),
    START_TS,
    START_AFTER,
    header("Last-Event-ID", ID, "Goes on behind this event; counts more than from."),
    query("lastEventId", ID, "The same, for clients that cannot send headers."),
    query("ticket", TEXT, "A ticket of POST /tickets in place of a token."),
];

const LIST_LIMIT: &str = r#"{"type":"integer","minimum":1,"maximum":10000,"default":1000}"#;
const LIST_NEXT: Parameter = query("next", TEXT, "Continues where an answer ended: its next.");

pub(super) const TOPICS: &[Parameter] = &[
    query("prefix", TEXT, "Only topics whose names begin with this."),
    query("limit", LIST_LIMIT, "The most topics that come."),
    LIST_NEXT,
    query(
        "settings",
        OFF,
        "1: each topic has the settings that apply to it, and what was set about it alone.",
    ),
];

pub(super) const GROUPS: &[Parameter] = &[
    query(
        "topic",
        r##"{"$ref":"#/components/schemas/Pattern"}"##,
        "Only groups of this subscription, as written.",
    ),
    query("prefix", TEXT, "Only groups whose subscription, as written, begins with this."),
    query("limit", LIST_LIMIT, "The most groups that come."),
    LIST_NEXT,
];
