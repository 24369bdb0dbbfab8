//! Parameters of routes, as `/openapi.json` describes them.

/// Where a parameter stands. Those in the path are known from the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterIn {
    Query,
    Header,
}

/// A parameter that a route reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) place: ParameterIn,
    pub(super) is_required: bool,
    /// A JSON schema.
    pub(super) schema: &'static str,
    pub(super) about: &'static str,
}

const fn query(name: &'static str, schema: &'static str, about: &'static str) -> Parameter {
    Parameter { name, place: ParameterIn::Query, is_required: false, schema, about }
}

const fn header(name: &'static str, schema: &'static str, about: &'static str) -> Parameter {
    Parameter { name, place: ParameterIn::Header, is_required: false, schema, about }
}

const TEXT: &str = r#"{"type":"string"}"#;
const ID: &str = r#"{"type":"string","format":"uuid"}"#;
const IDS: &str = r#"{"type":"array","items":{"type":"string","format":"uuid"},"maxItems":64}"#;
const TAGS: &str =
    r#"{"type":"array","items":{"type":"string","minLength":1,"maxLength":256},"maxItems":64}"#;
const KEY_TEXT: &str = r##"{"$ref":"#/components/schemas/Key"}"##;
/// Where a state resumes: two seqs and an id.
const STATE_CURSOR: &str = r#"{"type":"string","pattern":"^[0-9]{1,19}\\.[0-9]{1,19}\\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}"#;
/// Milliseconds since 1970, ISO 8601, or how long ago.
const TS: &str = r##"{"$ref":"#/components/schemas/Time"}"##;
/// The same, where it may be later than any event.
const TS_BOUND: &str = r##"{"$ref":"#/components/schemas/TimeBound"}"##;
/// The id of an event, or a position.
const PLACE: &str = r##"{"$ref":"#/components/schemas/Place"}"##;
const OFF: &str = r#"{"type":"string","enum":["0","1"],"default":"0"}"#;
const ON: &str = r#"{"type":"string","enum":["0","1"],"default":"1"}"#;

const TOPIC: Parameter = Parameter {
    is_required: true,
    ..query("topic", r##"{"$ref":"#/components/schemas/Pattern"}"##, "The topic, or a pattern.")
};
const START_TS: Parameter = query("ts", TS, "With from=ts: the time to start at.");
const START_AFTER: Parameter = query(
    "afterId",
    PLACE,
    "With from=afterId: the event to start behind, or a position that an answer gave.",
);
const FROM_TS: Parameter = query("fromTs", TS_BOUND, "Events of this time and later; all if absent.");
const TO_TS: Parameter = query("toTs", TS_BOUND, "Events of this time and earlier; all if absent.");
const KEY: Parameter = query("key", TEXT, "Only events with this key.");
const TAG: Parameter = query("tag", TEXT, "Only events with this tag.");
const HEADER: Parameter = query(
    "header",
    r#"{"type":"array","items":{"type":"string","pattern":"^[^:]+:"}}"#,
    "Only events with this header: its name, a colon, its value. May be given more than once, for several headers.",
);

pub(super) const PUBLISH: &[Parameter] = &[
    query("key", KEY_TEXT, "What the events are about."),
    query("ts", TS, "When they were; the gateway's time if absent."),
    query("id", ID, "The event's id; a second publish with an id that the topic has adds nothing."),
    query("sid", ID, "The publisher's session."),
    query("tag", TAGS, "A label; may be given more than once."),
    query("caused_by", IDS, "The event that led to this one; may be given more than once."),
    query("envelope", OFF, "1: each event is a whole record, not only a payload."),
    header(
        "Idempotency-Key",
        r#"{"type":"string","pattern":"^[ -~]*[!-~][ -~]*$"}"#,
        "The event's id; what is no UUID is hashed. Of many events each has its own.",
    ),
];

pub(super) const REPLAY: &[Parameter] = &[
    TOPIC,
    query(
        "from",
        r#"{"type":"string","enum":["earliest","latest","ts","afterId"],"default":"earliest"}"#,
        "Where to start. latest: so that the page is the last one.",
    ),
    START_TS,
    START_AFTER,
    query("fromSeq", r#"{"type":"integer","minimum":1}"#, "Only events of this seq and later; of one topic."),
    TO_TS,
    query(
        "order",
        r#"{"type":"string","enum":["asc","desc"],"default":"asc"}"#,
        "desc: the newest first, and behind afterId the older ones; of one topic.",
    ),
    query(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":1000000,"default":1000}"#,
        "The most events that come.",
    ),
    KEY,
    TAG,
    HEADER,
];

pub(super) const EXPORT: &[Parameter] =
    &[TOPIC, FROM_TS, TO_TS, query("ndjson", ON, "1: one event a line. 0: a JSON array."), KEY, TAG, HEADER];

const AT: Parameter = query(
    "at",
    TS_BOUND,
    "As of this time, by the events' own times, from the history that is kept; as of now if absent.",
);
const IF_NONE_MATCH: Parameter =
    header("If-None-Match", TEXT, "The ETag of an answer that the caller has: 304 if it holds.");

pub(super) const STATE: &[Parameter] = &[
    query(
        "key",
        KEY_TEXT,
        "Only this key: the answer is the one of /state/{topic}/{key}, also for the keys . and .., which clients take out of a path.",
    ),
    query(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":1000000}"#,
        "The most events that come; 1000 if absent, as lines all.",
    ),
    query("next", STATE_CURSOR, "Resumes where an answer ended: its next."),
    query("after", STATE_CURSOR, "The same as next."),
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
    header("Last-Event-ID", PLACE, "Resumes after this event or position. Takes precedence over from."),
    query(
        "lastEventId",
        PLACE,
        "The same, for clients that cannot send headers; not for reconnects with a ticket.",
    ),
    query("ticket", TEXT, "A ticket of POST /tickets in place of a token."),
    KEY,
    TAG,
    HEADER,
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
    query("next", r#"{"type":"string","pattern":"^[^/]*/"}"#, "Continues where an answer ended: its next."),
];
