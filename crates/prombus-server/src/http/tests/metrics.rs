//! Tests of `/metrics`: its formats, and the counters of requests.

use super::{Answer, Rig, request};
use crate::http::routes::ROUTES;
use axum::body::Body;
use flate2::read::GzDecoder;
use std::io::Read as _;

async fn scrape(rig: &Rig, headers: &[(&str, &str)]) -> Answer {
    let request =
        headers.iter().fold(request("GET", "/metrics"), |it, (name, value)| it.header(*name, *value));
    rig.send(request.body(Body::empty()).expect("a request")).await
}

async fn text(rig: &Rig) -> String {
    String::from_utf8(scrape(rig, &[]).await.body.to_vec()).expect("text")
}

#[tokio::test]
async fn openmetrics_and_gzip_are_negotiated() {
    let rig = Rig::open();
    rig.fill("t", 0..3).await;
    let plain = scrape(&rig, &[]).await;
    assert!(!plain.headers.contains_key("content-encoding"));
    let open =
        scrape(&rig, &[("accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")]).await;
    assert_eq!(open.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let body = std::str::from_utf8(&open.body).expect("text");
    assert!(
        body.contains("# TYPE events_published counter\nevents_published_total{topic=\"t\"} 3\n"),
        "{body}"
    );
    assert!(body.contains("# TYPE prombus_build info\nprombus_build_info{version="), "{body}");
    assert!(body.ends_with("\n# EOF\n") && body.matches("# EOF").count() == 1, "{body}");
    let zipped = scrape(&rig, &[("accept-encoding", "gzip")]).await;
    assert_eq!(zipped.headers["content-encoding"], "gzip");
    assert_eq!(zipped.headers["vary"], "accept, accept-encoding");
    let mut unzipped = String::new();
    GzDecoder::new(&zipped.body[..]).read_to_string(&mut unzipped).expect("gzip");
    assert!(unzipped.contains("events_published_total{topic=\"t\"} 3\n"), "{unzipped}");
    assert!(zipped.body.len() * 3 < unzipped.len(), "{} of {}", zipped.body.len(), unzipped.len());
}

/// In OpenMetrics, a counter `a_total` and a gauge `a` would be two families of the same name, and a parser refuses the scrape.
#[tokio::test]
async fn no_two_families_have_the_same_name() {
    let rig = Rig::open();
    let body = scrape(&rig, &[("accept", "application/openmetrics-text")]).await.body;
    let body = String::from_utf8(body.to_vec()).expect("text");
    let mut families: Vec<&str> =
        body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let count = families.len();
    families.sort_unstable();
    families.dedup();
    assert!(count > 40 && families.len() == count, "{families:?}");
}

#[tokio::test]
async fn requests_are_counted_by_the_template_of_their_route() {
    let rig = Rig::open();
    for topic in ["a", "b", "c"] {
        rig.post(&format!("/publish/{topic}"), "1").await.ok();
    }
    rig.post("/publish/a", "no JSON").await.error(400, "bad_json");
    rig.get("/secret-path").await.error(404, "not_found");
    rig.get("/publish/secret-topic").await.error(405, "method_not_allowed");
    let nothing = request("GET", "/export?topic=a").header("accept-encoding", "identity;q=0");
    assert_eq!(rig.send(nothing.body(Body::empty()).expect("a request")).await.status, 406);
    let text = text(&rig).await;
    for (labels, count) in [
        ("route=\"/publish/{topic}\",method=\"POST\",code=\"200\"", 3),
        ("route=\"/publish/{topic}\",method=\"POST\",code=\"400\"", 1),
        ("route=\"unmatched\",method=\"GET\",code=\"404\"", 1),
        ("route=\"unmatched\",method=\"GET\",code=\"405\"", 1),
        ("route=\"/export\",method=\"GET\",code=\"406\"", 1),
    ] {
        assert!(
            text.contains(&format!("prombus_http_requests_total{{{labels}}} {count}\n")),
            "{labels}\n{text}"
        );
    }
    let labels = "{route=\"/publish/{topic}\",method=\"POST\"}";
    assert!(text.contains(&format!("prombus_http_request_duration_seconds_count{labels} 4\n")), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

/// A status without a counter of its own would be hidden under `other`.
#[tokio::test]
async fn every_documented_status_has_a_counter() {
    let rig = Rig::open();
    let counters = rig.gateway.metrics.requests.route("/documented", "GET");
    let errors = ROUTES.iter().flat_map(|route| route.errors).copied();
    for status in errors.chain([101, 200, 201, 204, 400, 401, 403, 405, 406, 408, 413, 415, 426]) {
        counters.count(status, std::time::Duration::ZERO);
    }
    let text = text(&rig).await;
    assert!(text.contains("route=\"/documented\",method=\"GET\",code=\"507\""), "{text}");
    assert!(!text.contains("code=\"other\""), "{text}");
}

#[tokio::test]
async fn the_age_of_a_group_is_that_of_its_oldest_unsettled_event() {
    let rig = Rig::open();
    drop(rig.bus.subscribe("t", "behind").from_earliest().await.expect("subscribes"));
    drop(rig.bus.subscribe("quiet", "done").from_earliest().await.expect("subscribes"));
    rig.fill("t", 0..1).await;
    let name = "prombus_group_oldest_unsettled_age_seconds";
    let age = async |labels: &str| -> f64 {
        let text = text(&rig).await;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}{labels} ")));
        line.unwrap_or_else(|| panic!("no {labels} in\n{text}")).parse().expect("a number")
    };
    let behind = "{topic=\"t\",group=\"behind\"}";
    let started = std::time::Instant::now();
    while age(behind).await < 0.02 {
        assert!(started.elapsed().as_secs() < 20, "it does not grow");
    }
    assert!(age(behind).await < 60.0, "it is the time since the commit, not since the event's ts");
    assert_eq!(age("{topic=\"quiet\",group=\"done\"}").await, 0.0);
}
