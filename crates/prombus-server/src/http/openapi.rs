//! Generates `/openapi.json` from the table of routes. The schemas of bodies are in `schemas.json`.

use super::access::Access;
use super::parameters::ParameterIn;
use super::route::{Content, Route};
use axum::http::StatusCode;
use bytes::Bytes;
use prombus_protocol::ErrorCode;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const SCHEMAS: &str = include_str!("schemas.json");

/// The document that describes these routes. `has_auth`: whether the server requires tokens.
pub(super) fn document(routes: &[Route], has_auth: bool) -> Bytes {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.verb.name()] = operation(route, has_auth);
    }
    let mut schemas = parsed(SCHEMAS);
    schemas["Error"]["properties"]["code"]["enum"] =
        ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "prombus",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A durable event bus. Without configured auth, no token is needed and only this machine has access.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "ticket": { "type": "apiKey", "in": "query", "name": "ticket" },
            },
        },
    });
    document.to_string().into()
}

/// Parses a schema of this crate. A test parses all of them.
fn parsed(json: &str) -> Value {
    serde_json::from_str(json).expect("the schemas in this crate are JSON")
}

fn operation(route: &Route, has_auth: bool) -> Value {
    let mut operation = json!({
        "summary": route.about,
        "operationId": operation_id(route),
        "parameters": parameters(route),
        "responses": responses(route),
        "security": match route.access {
            _ if !has_auth => json!([]),
            Access::Open => json!([]),
            Access::Token | Access::Admin => json!([{ "token": [] }]),
            Access::Ticket => json!([{ "token": [] }, { "ticket": [] }]),
        },
    });
    if route.access == Access::Admin {
        operation["description"] = "Requires the scope admin.".into();
    }
    if !route.bodies.is_empty() {
        operation["requestBody"] =
            json!({ "required": !route.is_body_optional, "content": contents(route.bodies) });
    }
    operation
}

fn operation_id(route: &Route) -> String {
    let words = route.path.split('/').filter(|word| !word.is_empty());
    let words = words.map(|word| word.trim_matches(['{', '}']).replace('.', "_"));
    [route.verb.name().to_owned()].into_iter().chain(words).collect::<Vec<_>>().join("_")
}

fn parameters(route: &Route) -> Value {
    let in_path = route.path.split('/').filter_map(|word| word.strip_prefix('{')?.strip_suffix('}'));
    let takes_pattern = route.path.contains("{group}") || route.path.starts_with("/subscribe/");
    let in_path = in_path.map(|name| {
        let schema = match name {
            "topic" if takes_pattern => "Pattern",
            "topic" => "Topic",
            "key" => "Key",
            _ => "GroupName",
        };
        let reference = format!("#/components/schemas/{schema}");
        json!({ "name": name, "in": "path", "required": true, "schema": { "$ref": reference } })
    });
    let others = route.parameters.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "in": match parameter.place { ParameterIn::Query => "query", ParameterIn::Header => "header" },
            "required": parameter.is_required,
            "description": parameter.about,
            "schema": parsed(parameter.schema),
        })
    });
    in_path.chain(others).collect()
}

fn contents(contents: &[Content]) -> Value {
    let mut by_type = Map::new();
    for content in contents {
        by_type.insert(content.content_type.to_owned(), json!({ "schema": parsed(content.schema) }));
    }
    by_type.into()
}

fn responses(route: &Route) -> Value {
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({ "description": "OK.", "content": contents(route.answers) }));
    if route.created {
        let place = json!({ "description": "Path of the new resource.", "schema": { "type": "string" } });
        let created = json!({
            "description": "Created.", "content": contents(route.answers), "headers": { "Location": place },
        });
        responses.insert("201".to_owned(), created);
    }
    let error =
        Content { content_type: "application/json", schema: r##"{"$ref":"#/components/schemas/Error"}"## };
    for status in statuses(route) {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json!({ "description": status.canonical_reason().unwrap_or_default() });
        if status != StatusCode::NOT_MODIFIED {
            response["content"] = contents(&[error]);
        }
        if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            response["headers"]["Accept-Encoding"] =
                json!({ "description": "Supported encodings.", "schema": { "type": "string" } });
        }
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response["headers"]["Retry-After"] =
                json!({ "description": "When to retry, in seconds.", "schema": { "type": "integer" } });
        }
        responses.insert(status.as_u16().to_string(), response);
    }
    responses.into()
}

/// All error statuses of a route. Every route refuses an invalid query (400) and a foreign host or origin (403).
fn statuses(route: &Route) -> BTreeSet<u16> {
    let mut statuses: BTreeSet<u16> = route.errors.iter().copied().chain([400, 403]).collect();
    if route.access != Access::Open {
        statuses.insert(401);
    }
    if !route.bodies.is_empty() {
        // The body is too slow, too large, or has an unsupported encoding.
        statuses.extend([408, 413, 415]);
    }
    if route.is_compressed {
        statuses.insert(406);
    }
    statuses
}
