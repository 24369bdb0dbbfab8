//! The table of routes. Serving, access checks and `/openapi.json` all use this table.

use super::access::Access;
use super::answer::{self, Answered};
use super::call::Call;
use super::parameters;
use super::route::{Content, Route, Verb};
use super::{
    backup, dead_letters, export, group_admin, groups, openapi, ops, publish, repair, replay, settings,
    state, subscribe, tickets, topics,
};
use crate::metrics::Format;
use axum::body::Body;
use bytes::Bytes;
use std::sync::LazyLock;

/// `GET /openapi.json`, generated once.
async fn openapi(call: Call) -> Answered {
    static DOCUMENTS: LazyLock<[Bytes; 2]> =
        LazyLock::new(|| [false, true].map(|has_auth| openapi::document(ROUTES, has_auth)));
    let document = DOCUMENTS[usize::from(call.gateway.live.current().auth.is_configured())].clone();
    Ok(answer::typed("application/json", Body::from(document)))
}

const fn json(schema: &'static str) -> Content {
    Content { content_type: "application/json", schema }
}

const TEXT: &str = r#"{"type":"string"}"#;
const ANY: &str = "{}";
const LINES: Content = Content { content_type: "application/x-ndjson", schema: TEXT };

/// The defaults of a route.
const ROUTE: Route = Route {
    verb: Verb::Get,
    path: "",
    access: Access::Open,
    handler: |call| Box::pin(ops::hello(call)),
    is_compressed: false,
    about: "",
    parameters: &[],
    bodies: &[],
    is_body_optional: false,
    answers: &[],
    created: false,
    errors: &[],
};

/// All routes.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/",
        about: "Says what this server is, and where to start.",
        answers: &[Content { content_type: "text/plain; charset=utf-8", schema: TEXT }],
        ..ROUTE
    },
    Route {
        path: "/healthz",
        handler: |call| Box::pin(ops::healthz(call)),
        about: "Whether the bus can write. On a follower of a shared store: whether the process is alive.",
        answers: &[json(r##"{"$ref":"#/components/schemas/Status"}"##)],
        errors: &[503],
        ..ROUTE
    },
    Route {
        path: "/readyz",
        handler: |call| Box::pin(ops::readyz(call)),
        about: "Whether the server accepts new work: not while it shuts down. On a follower of a shared store: whether it reaches the leader.",
        answers: &[json(r##"{"$ref":"#/components/schemas/Status"}"##)],
        errors: &[503],
        ..ROUTE
    },
    Route {
        path: "/openapi.json",
        handler: |call| Box::pin(openapi(call)),
        about: "This document.",
        answers: &[json(r#"{"type":"object"}"#)],
        ..ROUTE
    },
    Route {
        path: "/metrics",
        access: Access::Admin,
        handler: |call| Box::pin(ops::metrics(call)),
        about: "Metrics in the Prometheus text format or, if Accept asks for it, as OpenMetrics; with gzip if Accept-Encoding allows it.",
        answers: &[
            Content { content_type: Format::Text.content_type(), schema: TEXT },
            Content { content_type: Format::OpenMetrics.content_type(), schema: TEXT },
        ],
        ..ROUTE
    },
    Route {
        path: "/settings",
        access: Access::Admin,
        handler: |call| Box::pin(settings::settings(call)),
        about: "The settings of the server, each with its effective value and where the value comes from. Secrets are not shown.",
        answers: &[json(r##"{"$ref":"#/components/schemas/Settings"}"##)],
        ..ROUTE
    },
    Route {
        verb: Verb::Post,
        path: "/tickets",
        access: Access::Token,
        handler: |call| Box::pin(tickets::ticket(call)),
        about: "Issues a ticket, for clients that cannot send the token in a header. Without a body, the ticket works once, within \
                30 s. With a topic or pattern, it works only for that subscription: the first use must come within 30 s; \
                reconnects with Last-Event-ID work for up to 24 h.",
        bodies: &[json(r##"{"$ref":"#/components/schemas/TicketOptions"}"##)],
        is_body_optional: true,
        answers: &[json(r##"{"$ref":"#/components/schemas/Ticket"}"##)],
        errors: &[408, 413, 429, 500, 503, 507],
        ..ROUTE
    },
    Route {
        verb: Verb::Post,
        path: "/publish/{topic}",
        access: Access::Token,
        handler: |call| Box::pin(publish::publish(call)),
        about: "Publishes one event, or several as lines. Either all are stored or none; the response is sent when they are \
                durable. Headers that begin with x- become headers of the events, except those used for credentials and by \
                proxies.",
        parameters: parameters::PUBLISH,
        bodies: &[json(ANY), LINES],
        answers: &[json(
            r##"{"oneOf":[{"$ref":"#/components/schemas/Published"},{"$ref":"#/components/schemas/PublishedMany"}]}"##,
        )],
        errors: &[404, 409, 429, 500, 503, 507],
        ..ROUTE
    },
    Route {
        path: "/replay",
        access: Access::Token,
        handler: |call| Box::pin(replay::replay(call)),
        is_compressed: true,
        about: "A page of events of a topic, or of a pattern in commit order. next is the afterId of the next page, null at the end.",
        parameters: parameters::REPLAY,
        answers: &[json(r##"{"$ref":"#/components/schemas/Replay"}"##)],
        errors: &[404, 500, 503],
        ..ROUTE
    },
    Route {
        path: "/export",
        access: Access::Token,
        handler: |call| Box::pin(export::export(call)),
        is_compressed: true,
        about: "All events of a topic or a pattern in a time range, in order. Ends at the event that is the newest at the start.",
        parameters: parameters::EXPORT,
        answers: &[LINES, json(r##"{"type":"array","items":{"$ref":"#/components/schemas/EventRecord"}}"##)],
        errors: &[500, 503],
        ..ROUTE
    },
    Route {
        path: "/subscribe/{topic}",
        access: Access::Ticket,
        handler: |call| Box::pin(subscribe::subscribe(call)),
        about: "A topic or a pattern as Server-Sent Events. data is an event's record. id is the event's id or, for a pattern, an \
                opaque position that covers all its topics. The first id is sent before the first event.",
        parameters: parameters::SUBSCRIBE,
        answers: &[Content { content_type: "text/event-stream", schema: TEXT }],
        errors: &[404, 500, 503],
        ..ROUTE
    },
    Route {
        path: "/state/{topic}",
        access: Access::Token,
        handler: |call| Box::pin(state::all(call)),
        is_compressed: true,
        about: "The newest event of each key that is not deleted, in seq order. A new group that starts after position.id \
                misses no later event and receives none that the state covers. The headers X-Position-Id and X-Position-Seq \
                contain the same position. \
                All pages of a list have the position of the first page. With ndjson: one event per line, all keys at once.",
        parameters: parameters::STATE,
        answers: &[
            json(
                r##"{"oneOf":[{"$ref":"#/components/schemas/State"},{"$ref":"#/components/schemas/EventRecord"}]}"##,
            ),
            LINES,
        ],
        errors: &[304, 404, 500, 503],
        ..ROUTE
    },
    Route {
        path: "/state/{topic}/{key}",
        access: Access::Token,
        handler: |call| Box::pin(state::one(call)),
        about: "The newest event of a key, with its id as ETag; 404 if the key does not exist or is deleted. X-Position-Id and \
                X-Position-Seq are the position of the topic that the response is valid for.",
        parameters: parameters::STATE_KEY,
        answers: &[json(r##"{"$ref":"#/components/schemas/EventRecord"}"##)],
        errors: &[304, 404, 500, 503],
        ..ROUTE
    },
    Route {
        path: "/topics",
        access: Access::Token,
        handler: |call| Box::pin(topics::topics(call)),
        about: "The topics that the token may read, sorted by name, in pages.",
        parameters: parameters::TOPICS,
        answers: &[json(r##"{"$ref":"#/components/schemas/Topics"}"##)],
        errors: &[500, 503],
        ..ROUTE
    },
    Route {
        path: "/topics/{topic}",
        access: Access::Token,
        handler: |call| Box::pin(topics::topic(call)),
        about: "One topic, with its settings.",
        answers: &[json(r##"{"$ref":"#/components/schemas/TopicInfo"}"##)],
        errors: &[404, 500, 503],
        ..ROUTE
    },
    Route {
        verb: Verb::Put,
        path: "/topics/{topic}",
        access: Access::Admin,
        handler: |call| Box::pin(topics::set(call)),
        about: "Replaces the settings of a topic, which take precedence over the configuration; {} removes them. A topic that does \
                not exist is created (201).",
        bodies: &[json(r##"{"$ref":"#/components/schemas/TopicOptions"}"##)],
        answers: &[json(r##"{"$ref":"#/components/schemas/TopicInfo"}"##)],
        created: true,
        errors: &[409, 500, 503, 507],
        ..ROUTE
    },
    Route {
        verb: Verb::Delete,
        path: "/topics/{topic}",
        access: Access::Admin,
        handler: |call| Box::pin(topics::delete(call)),
        about: "Deletes a topic with all its events, and the groups that read no other topic.",
        answers: &[json(r##"{"$ref":"#/components/schemas/Deleted"}"##)],
        errors: &[404, 500, 503, 507],
        ..ROUTE
    },
    Route {
        verb: Verb::Post,
        path: "/backup",
        access: Access::Admin,
        handler: |call| Box::pin(backup::backup(call)),
        about: "Copies everything that is durable at the start to a new or empty folder on the server's machine. The response is \
                lines: the progress, and at the end done or an error.",
        bodies: &[json(r##"{"$ref":"#/components/schemas/BackupOptions"}"##)],
        answers: &[LINES],
        errors: &[409, 500, 503, 507],
        ..ROUTE
    },
    Route {
        verb: Verb::Post,
        path: "/repair",
        access: Access::Admin,
        handler: |call| Box::pin(repair::repair(call)),
        about: "Lists events that cannot be read because of disk errors. With accept_loss they are given up: they are marked as \
                damaged, and groups continue without them.",
        is_body_optional: true,
        bodies: &[json(r##"{"$ref":"#/components/schemas/RepairOptions"}"##)],
        answers: &[json(r##"{"$ref":"#/components/schemas/Repair"}"##)],
        errors: &[500, 503],
        ..ROUTE
    },
    Route {
        path: "/dead-letters",
        access: Access::Token,
        handler: |call| Box::pin(dead_letters::all(call)),
        about: "The dead-letter topics that the token may read, with the numbers of open, redriven and discarded letters.",
        answers: &[json(r##"{"$ref":"#/components/schemas/DeadLetterTopics"}"##)],
        ..ROUTE
    },
    Route {
        path: "/dead-letters/{topic}",
        access: Access::Token,
        handler: |call| Box::pin(dead_letters::one(call)),
        about: "The states of the letters of a dead-letter topic, in pages. The topic may be named with or without dlq. at the \
                beginning.",
        parameters: parameters::DEAD_LETTERS,
        answers: &[json(r##"{"$ref":"#/components/schemas/DeadLetterDetail"}"##)],
        errors: &[404],
        ..ROUTE
    },
    Route {
        verb: Verb::Post,
        path: "/dead-letters/{topic}/close",
        access: Access::Admin,
        handler: |call| Box::pin(dead_letters::close(call)),
        about: "Marks dead letters as redriven or discarded, so that they no longer count as open. Letters that are closed already \
                stay as they are.",
        bodies: &[json(r##"{"$ref":"#/components/schemas/CloseDeadLetters"}"##)],
        answers: &[json(r##"{"$ref":"#/components/schemas/ClosedDeadLetters"}"##)],
        errors: &[404, 500, 503, 507],
        ..ROUTE
    },
    Route {
        path: "/groups",
        access: Access::Token,
        handler: |call| Box::pin(groups::groups(call)),
        about: "The groups that the token may join, sorted by subscription and name, in pages.",
        parameters: parameters::GROUPS,
        answers: &[json(r##"{"$ref":"#/components/schemas/Groups"}"##)],
        errors: &[500, 503],
        ..ROUTE
    },
    Route {
        path: "/groups/{topic}/{group}",
        access: Access::Token,
        handler: |call| Box::pin(groups::group(call)),
        about: "One group, with its members and leases.",
        answers: &[json(r##"{"$ref":"#/components/schemas/GroupDetail"}"##)],
        errors: &[404, 500, 503],
        ..ROUTE
    },
    Route {
        verb: Verb::Put,
        path: "/groups/{topic}/{group}",
        access: Access::Admin,
        handler: |call| Box::pin(group_admin::make(call)),
        about: "Creates a group without members, if it does not exist.",
        is_body_optional: true,
        bodies: &[json(r##"{"$ref":"#/components/schemas/GroupOptions"}"##)],
        answers: &[json(r##"{"$ref":"#/components/schemas/Created"}"##)],
        errors: &[404, 409, 500, 503, 507],
        ..ROUTE
    },
    Route {
        verb: Verb::Delete,
        path: "/groups/{topic}/{group}",
        access: Access::Token,
        handler: |call| Box::pin(group_admin::delete(call)),
        about: "Deletes a group; its members get an error. Tokens that may join a group can delete it if it was created with expireMs; deleting other groups requires the scope admin.",
        answers: &[json(r##"{"$ref":"#/components/schemas/Deleted"}"##)],
        errors: &[404, 500, 503, 507],
        ..ROUTE
    },
    Route {
        verb: Verb::Post,
        path: "/groups/{topic}/{group}/seek",
        access: Access::Admin,
        handler: |call| Box::pin(group_admin::seek(call)),
        about: "Moves a group to another position. All its leases become void. With preview=1: counts the events that would be \
                delivered again or skipped, and changes nothing.",
        parameters: parameters::SEEK,
        bodies: &[json(r##"{"$ref":"#/components/schemas/Seek"}"##)],
        answers: &[json(
            r##"{"anyOf":[{"$ref":"#/components/schemas/Sought"},{"$ref":"#/components/schemas/SeekPreview"}]}"##,
        )],
        errors: &[404, 500, 503, 507],
        ..ROUTE
    },
    Route {
        verb: Verb::Post,
        path: "/groups/{topic}/{group}/pause",
        access: Access::Admin,
        handler: |call| Box::pin(group_admin::pause(call)),
        about: "Pauses a group: its members stay and get no events until it is resumed, also after a restart. Leases keep \
                running and can be settled.",
        answers: &[json(r##"{"$ref":"#/components/schemas/Paused"}"##)],
        errors: &[404, 500, 503, 507],
        ..ROUTE
    },
    Route {
        verb: Verb::Post,
        path: "/groups/{topic}/{group}/resume",
        access: Access::Admin,
        handler: |call| Box::pin(group_admin::resume(call)),
        about: "Resumes a paused group.",
        answers: &[json(r##"{"$ref":"#/components/schemas/Paused"}"##)],
        errors: &[404, 500, 503, 507],
        ..ROUTE
    },
    Route {
        verb: Verb::Post,
        path: "/groups/{topic}/{group}/settle",
        access: Access::Admin,
        handler: |call| Box::pin(group_admin::settle(call)),
        about: "Acks, nacks, gives up, releases or extends an event on behalf of the member that holds it.",
        bodies: &[json(r##"{"$ref":"#/components/schemas/Settle"}"##)],
        answers: &[json(r##"{"$ref":"#/components/schemas/Settled"}"##)],
        errors: &[404, 500, 503, 507],
        ..ROUTE
    },
];
