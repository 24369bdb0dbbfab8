//! Tests that the OpenAPI document matches the server.

use super::{Answer, Rig, request};
use crate::http::routes::ROUTES;
use axum::body::Body;
use serde_json::Value;
use std::collections::BTreeSet;

async fn document(rig: &Rig) -> Value {
    rig.get("/openapi.json").await.ok()
}

/// Follows a reference.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).unwrap_or_else(|| panic!("no {reference}")),
        None => schema,
    }
}

/// Checks a value against the parts of JSON Schema that the document uses most: references, types, required and known properties,
/// items, alternatives.
fn fits(document: &Value, schema: &Value, value: &Value) -> bool {
    let schema = resolved(document, schema);
    for word in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[word].as_array() {
            return choices.iter().any(|choice| fits(document, choice, value));
        }
    }
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_type = match &schema["type"] {
        Value::Null => true,
        Value::Array(types) => types.contains(&name.into()),
        one => one == name,
    };
    let fields_fit = value.as_object().is_none_or(|fields| {
        let required = schema["required"].as_array().into_iter().flatten();
        let has_all = required.into_iter().all(|name| fields.contains_key(name.as_str().expect("a name")));
        let known = schema["properties"].as_object();
        has_all
            && fields.iter().all(|(name, value)| match known.map(|known| known.get(name)) {
                Some(Some(schema)) => fits(document, schema, value),
                Some(None) => false,
                None => true,
            })
    });
    let items_fit = schema["items"].is_null()
        || value.as_array().into_iter().flatten().all(|item| fits(document, &schema["items"], item));
    is_type && fields_fit && items_fit
}

/// Checks that the document declares this response for the operation.
fn check(document: &Value, operation: &Value, answer: &Answer, what: &str) {
    let response = &operation["responses"][answer.status.as_str()];
    assert!(response.is_object(), "{what}: {} is not declared: {answer:?}", answer.status);
    let content_type = answer.headers["content-type"].to_str().expect("text");
    let content = &response["content"][content_type];
    assert!(content.is_object(), "{what}: {content_type} is not declared for {}", answer.status);
    if content_type == "application/json" {
        let json: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert!(fits(document, &content["schema"], &json), "{what}: {json} is not as declared");
    }
}

/// Valid and invalid requests of a route: query, content type, body.
fn attempts(route: &str) -> Vec<(&'static str, &'static str, &'static str)> {
    match route {
        "post /publish/{topic}" => {
            vec![("", "", "1"), ("", "application/x-ndjson", "1\n2"), ("", "", "{"), ("?ts=x", "", "1")]
        }
        "get /replay" => vec![
            ("?topic=t", "", ""),
            ("", "", ""),
            ("?topic=t&from=afterId&afterId=0196f1d0-1c2a-7b3c-8d4e-5f6071829304", "", ""),
        ],
        "get /export" => vec![("?topic=t", "", ""), ("?topic=t&ndjson=0", "", ""), ("?topic=", "", "")],
        "put /groups/{topic}/{group}" => vec![("", "", "{}"), ("", "", "{\"from\":\"x\"}")],
        "post /groups/{topic}/{group}/seek" => vec![
            ("", "", "{\"to\":\"earliest\"}"),
            ("?preview=1", "", "{\"to\":\"latest\"}"),
            ("?preview=x", "", "{\"to\":\"latest\"}"),
            ("", "", "{}"),
        ],
        "post /groups/{topic}/{group}/settle" => vec![
            ("", "", "{\"id\":\"0196f1d0-1c2a-7b3c-8d4e-5f6071829304\",\"verdict\":\"ack\"}"),
            ("", "", "{}"),
        ],
        _ => vec![("", "", ""), ("?topic=%zz", "", "")],
    }
}

#[tokio::test]
async fn every_route_responds_as_declared() {
    let rig = Rig::open();
    let locked = Rig::with_tokens(&[("token", &[])]);
    let document = document(&rig).await;
    let paths = document["paths"].as_object().expect("paths");
    // Deletions come last, so that the other operations find a group.
    let mut operations: Vec<(&str, &str, &Value)> = Vec::new();
    for (path, methods) in paths {
        operations
            .extend(methods.as_object().expect("methods").iter().map(|(verb, it)| (&**path, &**verb, it)));
    }
    operations.sort_by_key(|(path, verb, _)| (*verb == "delete", *verb != "put", *path));
    rig.fill("t", 0..3).await;
    let mut member = rig.bus.subscribe("t", "g").from_earliest().await.expect("joined");
    let _delivery = member.next().await.expect("open").expect("a delivery");
    let mut good = 0;
    for (path, verb, operation) in operations {
        for (query, content_type, body) in attempts(&format!("{verb} {path}")) {
            for (topic, group) in [("t", "g"), ("none", "none"), ("a..b", "g")] {
                let address = path.replace("{topic}", topic).replace("{group}", group) + query;
                let what = format!("{verb} {address} {body:?}");
                let request = request(&verb.to_uppercase(), &address);
                let request = request.header("content-type", content_type).body(Body::from(body));
                let response = rig.start(request.expect("a request")).await;
                if response.headers()["content-type"] == "text/event-stream" {
                    // The stream has no end.
                    assert!(operation["responses"]["200"]["content"]["text/event-stream"].is_object());
                    good += 1;
                    continue;
                }
                let (parts, body) = response.into_parts();
                let body = http_body_util::BodyExt::collect(body).await.expect("a body").to_bytes();
                let answer = Answer { status: parts.status, headers: parts.headers, body };
                good += usize::from(answer.status == 200);
                check(&document, operation, &answer, &what);
            }
        }
        let address = path.replace("{topic}", "t").replace("{group}", "g");
        let bare = request(&verb.to_uppercase(), &address).body(Body::empty()).expect("a request");
        check(&document, operation, &locked.send(bare).await, &address);
        let foreign = request(&verb.to_uppercase(), &address).header("origin", "https://evil.example");
        let foreign = foreign.body(Body::empty()).expect("a request");
        check(&document, operation, &rig.send(foreign).await, &address);
    }
    assert!(good > ROUTES.len(), "{good}");
}

#[tokio::test]
async fn the_document_has_exactly_the_existing_routes() {
    let rig = Rig::open();
    let document = document(&rig).await;
    let mut documented = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (verb, operation) in methods.as_object().expect("methods") {
            documented.insert((path.clone(), verb.clone()));
            assert!(ids.insert(operation["operationId"].as_str().expect("an id")), "{path} {verb}");
        }
        for verb in ["get", "post", "put", "delete", "patch"] {
            if methods[verb].is_null() {
                let address = path.replace("{topic}", "t").replace("{group}", "g");
                let request = request(&verb.to_uppercase(), &address).body(Body::empty());
                assert_eq!(rig.send(request.expect("a request")).await.status, 405, "{verb} {path}");
            }
        }
    }
    let routes: BTreeSet<_> =
        ROUTES.iter().map(|route| (route.path.to_owned(), route.verb.name().to_owned())).collect();
    assert_eq!(documented, routes);
    assert_eq!(routes.len(), ROUTES.len());
    // Every reference resolves.
    let text = document.to_string();
    for part in text.split("\"$ref\":\"#").skip(1) {
        let reference = part.split('"').next().expect("a reference");
        assert!(document.pointer(reference).is_some(), "{reference}");
    }
}
