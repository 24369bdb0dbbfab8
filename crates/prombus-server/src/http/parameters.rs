//! The query and header parameters of the routes: the server matches queries against them, and `/openapi.json` describes them.

/// Where a parameter is sent. Path parameters are not listed here: they follow from the path of the route.
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
    /// The description in `/openapi.json`.
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
/// Where a list of states resumes: two seqs and an id.
const STATE_CURSOR: &str = r#"{"type":"string","pattern":"^[0-9]{1,19}\\.[0-9]{1,19}\\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}"#;
/// A time: milliseconds since 1970, ISO 8601, or relative to now.
const TS: &str = r##"{"$ref":"#/components/schemas/Time"}"##;
/// Like [`TS`], but may be later than the latest possible time of an event.
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
    "With from=afterId: start after the event with this id, or at a position from an earlier response.",
);
const FROM_TS: Parameter = query("fromTs", TS_BOUND, "Events of this time and later; all if absent.");
const TO_TS: Parameter = query("toTs", TS_BOUND, "Events of this time and earlier; all if absent.");
const KEY: Parameter = query("key", TEXT, "Only events with this key.");
const TAG: Parameter = query("tag", TEXT, "Only events with this tag.");
const HEADER: Parameter = query(
    "header",
    r#"{"type":"array","items":{"type":"string","pattern":"^[^:]+:"}}"#,
    "Only events with this header, in the form name:value. May be repeated for several headers.",
);

/// The pattern describes what clients should send. The server accepts any JSON object with these fields.
const ADDRESSEE: &str = r#"{"type":"string","pattern":"^\\{\"subscription\": ?\"([A-Za-z0-9_-]{1,20}|\\*)(\\.([A-Za-z0-9_-]{1,20}|\\*)){0,4}\", ?\"group\": ?\"[A-Za-z0-9_-]{1,40}\"\\}$"}"#;

pub(super) const PUBLISH: &[Parameter] = &[
    query("key", KEY_TEXT, "The key of the events."),
    query("ts", TS, "The time of the events; the server's time if absent."),
    query("id", ID, "The event's id. A publish with an id that the topic already has adds nothing."),
    query("sid", ID, "The publisher's session."),
    query("tag", TAGS, "A label. May be repeated."),
    query("caused_by", IDS, "Id of an event that caused this one. May be repeated."),
    query(
        "addressee",
        ADDRESSEE,
        "The only group that receives the events, as JSON: {\"subscription\": …, \"group\": …}. Needs the scope admin.",
    ),
    query("envelope", OFF, "1: each event is a whole record, not only a payload."),
    header(
        "Idempotency-Key",
        r#"{"type":"string","pattern":"^[ -~]*[!-~][ -~]*$"}"#,
        "The event's id; a text that is not a UUID is hashed. Each of several events gets its own id, derived from the key.",
    ),
];

pub(super) const REPLAY: &[Parameter] = &[
    TOPIC,
    query(
        "from",
        r#"{"type":"string","enum":["earliest","latest","ts","afterId"],"default":"earliest"}"#,
        "Where to start. latest: the page contains the newest events.",
    ),
    START_TS,
    START_AFTER,
    query(
        "fromSeq",
        r#"{"type":"integer","minimum":1}"#,
        "Only events of this seq and later. Not for patterns.",
    ),
    TO_TS,
    query(
        "order",
        r#"{"type":"string","enum":["asc","desc"],"default":"asc"}"#,
        "desc: newest events first; afterId then continues with older events. Not for patterns.",
    ),
    query(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":1000000,"default":1000}"#,
        "Maximum number of events.",
    ),
    KEY,
    TAG,
    HEADER,
];

pub(super) const EXPORT: &[Parameter] = &[
    TOPIC,
    FROM_TS,
    TO_TS,
    query("ndjson", ON, "1: one event per line. 0: a JSON array."),
    KEY,
    TAG,
    HEADER,
];

const AT: Parameter = query(
    "at",
    TS_BOUND,
    "The state as of this time (ts of the events), computed from the events that are kept; the current state if absent.",
);
const IF_NONE_MATCH: Parameter =
    header("If-None-Match", TEXT, "The ETag of an earlier response: 304 if nothing has changed.");

pub(super) const STATE: &[Parameter] = &[
    query(
        "key",
        KEY_TEXT,
        "Only this key. Responds like /state/{topic}/{key}, but also works for the keys . and .., which clients remove from paths.",
    ),
    query(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":1000000}"#,
        "Maximum number of events. If absent: 1000, or no limit with ndjson.",
    ),
    query("next", STATE_CURSOR, "The value of next in the response for the previous page."),
    query("after", STATE_CURSOR, "The same as next."),
    AT,
    query("ndjson", OFF, "1: one event per line, as with Accept: application/x-ndjson. 0: a JSON object."),
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
        "Like Last-Event-ID, for clients that cannot send headers. Not for reconnects with a ticket.",
    ),
    query("ticket", TEXT, "A ticket from POST /tickets, instead of a token."),
    KEY,
    TAG,
    HEADER,
];

const LIST_LIMIT: &str = r#"{"type":"integer","minimum":1,"maximum":10000,"default":1000}"#;
const LIST_NEXT: Parameter = query("next", TEXT, "The value of next in the response for the previous page.");

pub(super) const TOPICS: &[Parameter] = &[
    query("prefix", TEXT, "Only topics whose names begin with this."),
    query("limit", LIST_LIMIT, "Maximum number of topics."),
    LIST_NEXT,
    query(
        "settings",
        OFF,
        "1: each topic has the settings that apply to it (settings), and those set for it alone (set).",
    ),
];

pub(super) const DEAD_LETTERS: &[Parameter] = &[
    query(
        "fromSeq",
        r#"{"type":"integer","minimum":1,"default":1}"#,
        "Only letters of this seq and later: the value of next in the response for the previous page.",
    ),
    query(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":10000,"default":10000}"#,
        "Maximum number of ranges, redriven and discarded together.",
    ),
];

pub(super) const SEEK: &[Parameter] =
    &[query("preview", OFF, "1: only says what the seek would do. Nothing changes.")];

pub(super) const GROUPS: &[Parameter] = &[
    query(
        "topic",
        r##"{"$ref":"#/components/schemas/Pattern"}"##,
        "Only groups with exactly this subscription; patterns are not expanded.",
    ),
    query("prefix", TEXT, "Only groups whose subscription begins with this text."),
    query("limit", LIST_LIMIT, "Maximum number of groups."),
    query(
        "next",
        r#"{"type":"string","pattern":"^[^/]*/"}"#,
        "The value of next in the response for the previous page.",
    ),
];
