//! Checks the merged values and converts them to [`Settings`]. Definitions check single values; this module checks settings
//! that depend on each other or need their own parser.

use super::auth::auth;
use super::definitions;
use super::problems::Problems;
use super::setting::Setting;
use super::settings::{LogFormat, Settings, StoreChoice};
use super::source::Source;
use super::store_url::StoreUrl;
use crate::messages::one_line;
use prombus::{TopicOptions, TopicRule};
use prombus_server::{Rate, TlsOptions, check_tls};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::filter::Targets;

/// Converts a source to settings. Do not use the result if there are problems.
pub fn settings(problems: &mut Problems, source: &Source) -> Settings {
    let mut settings = Settings::default();
    for setting in definitions::all().filter(|setting| !Setting::is_in_list(setting)) {
        if let Some(value) = source.get(setting.path) {
            setting.apply(&mut settings, value, problems);
        }
    }
    if let Some(listen) = source.texts("listen") {
        settings.server.listen = addresses(problems, &listen);
    }
    settings.server.tls = tls(problems, source);
    settings.server.auth = auth(problems, source);
    settings.server.max_payload_bytes = settings.bus.limits.max_payload_bytes;
    let rates = &mut settings.server.rates;
    rates.connection_publish = rate(problems, source, "rate.connection_publish");
    rates.connection_deliver = rate(problems, source, "rate.connection_deliver");
    settings.bus.topics = topics(problems, source);
    settings.server.engine_wait = Duration::from_millis(settings.bus.limits.engine_wait_ms);
    store(problems, source, &mut settings.bus.store);
    shared_store(problems, source, &mut settings);
    if let Some(filter) = source.text("log") {
        check_log_filter(problems, filter);
        settings.log.filter = filter.to_owned();
    }
    match source.text("log_format") {
        None | Some("text") => {}
        Some("json") => settings.log.format = LogFormat::Json,
        Some(other) => problems.add("log_format", format!("{other:?}: expected text or json")),
    }
    settings
}

fn addresses(problems: &mut Problems, listen: &[&str]) -> Vec<SocketAddr> {
    if listen.is_empty() {
        problems.add("listen", "no address is given; e.g. 127.0.0.1:8090");
    }
    let mut addresses = Vec::new();
    for (at, text) in listen.iter().enumerate() {
        // Names other than `localhost` are not resolved: a name's address may change, and with it who has access.
        let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        match numeric.as_deref().unwrap_or(text).parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 && addresses.contains(&address) => {
                problems.add(format!("listen[{at}]"), format!("{text} is given twice"));
            }
            Ok(address) => addresses.push(address),
            Err(_) => {
                let how =
                    "expected an IP address and a port, e.g. 127.0.0.1:8090, 0.0.0.0:8090 or [::1]:8090";
                problems.add(format!("listen[{at}]"), format!("{text:?} is not an address; {how}"));
            }
        }
    }
    addresses
}

fn tls(problems: &mut Problems, source: &Source) -> Option<TlsOptions> {
    let (cert, key) = match (source.text("tls.cert"), source.text("tls.key")) {
        (Some(cert), Some(key)) => (cert, key),
        (Some(_), None) => {
            problems.add("tls.cert", "the certificate's key is missing: set tls.key (--tls-key) too");
            return None;
        }
        (None, Some(_)) => {
            problems.add("tls.key", "the key's certificate is missing: set tls.cert (--tls-cert) too");
            return None;
        }
        (None, None) => return None,
    };
    let found_before = problems.found.len();
    problems.file("tls.cert", cert);
    problems.file("tls.key", key);
    let tls = TlsOptions { cert: PathBuf::from(cert), key: PathBuf::from(key) };
    // Files that cannot be read are already reported.
    if problems.found.len() == found_before
        && let Err(error) = check_tls(&tls)
    {
        problems.add("tls.cert", one_line(&error.into()));
    }
    Some(tls)
}

/// The rate whose settings begin with `path`, if it is set. The default burst is the number of events per second, but at least 1.
fn rate(problems: &mut Problems, source: &Source, path: &str) -> Option<Rate> {
    let burst_path = format!("{path}_burst");
    let burst = source.number(&burst_path);
    match source.number(&format!("{path}_per_second")) {
        Some(per_second) => Some(Rate { per_second, burst: burst.unwrap_or_else(|| per_second.max(1.0)) }),
        None if burst.is_some() => {
            let key = path.rsplit('.').next().unwrap_or(path);
            problems.add(burst_path, format!("has no effect without {key}_per_second"));
            None
        }
        None => None,
    }
}

/// The rules of `[[topic]]`, in the order of the file: the first that matches a topic applies.
fn topics(problems: &mut Problems, source: &Source) -> Vec<TopicRule> {
    let mut rules = Vec::new();
    for (path, table) in source.tables("topic") {
        let mut options = table.clone();
        let name = options.remove("name");
        let name = name.as_ref().and_then(toml::Value::as_str);
        let Some(name) = problems.required(&path, "name", name) else { continue };
        let options: TopicOptions = match options.try_into() {
            Ok(options) => options,
            Err(error) => {
                problems.add(path, error.message());
                continue;
            }
        };
        match TopicRule::new(name, options) {
            Ok(rule) => rules.push(rule),
            Err(error) => problems.add(format!("{path}.{}", error.name), error.why),
        }
    }
    rules
}

fn store(problems: &mut Problems, source: &Source, store: &mut StoreChoice) {
    match source.text("data") {
        Some("") => problems.add("data", "is empty"),
        Some(folder) => *store = StoreChoice::Log(PathBuf::from(folder)),
        None => {}
    }
    // Problems show only the scheme of the URL, because the rest may contain a password.
    match source.text("store").map(|url| url.split_once(':')) {
        None | Some(Some(("log", ""))) => {}
        Some(Some(("memory", ""))) => *store = StoreChoice::Memory,
        Some(Some(("mongodb" | "mongodb+srv", rest))) => match rest.strip_prefix("//") {
            _ if !cfg!(feature = "mongodb") => {
                problems.add("store", "this prombus was built without MongoDB support (feature mongodb)");
            }
            Some(hosts) if !hosts.is_empty() => {
                *store = StoreChoice::MongoDb(StoreUrl::new(source.text("store").unwrap_or_default()));
            }
            _ => problems.add("store", "no server is named; e.g. mongodb://localhost:27017"),
        },
        Some(Some((scheme @ ("nats" | "tls"), _))) => {
            let why = format!("this build has no store for {scheme}:; expected log:, memory: or mongodb://…");
            problems.add("store", why);
        }
        _ => problems.add("store", "unknown store; expected log:, memory: or mongodb://…"),
    }
}

/// Reads and checks the settings of a store that several gateways can share.
fn shared_store(problems: &mut Problems, source: &Source, settings: &mut Settings) {
    let mongodb = &mut settings.bus.mongodb;
    let named = |path| source.text(path).map(str::to_owned);
    mongodb.database = named("mongodb.database");
    mongodb.prefix = named("mongodb.prefix").unwrap_or_default();
    if let Some(write_concern) = named("mongodb.write_concern") {
        mongodb.write_concern = write_concern;
    }
    for path in ["mongodb.database", "mongodb.write_concern"] {
        if source.text(path) == Some("") {
            problems.add(path, "is empty");
        }
    }
    settings.advertise = named("advertise");
    let is_address = |text: &String| {
        let (host, port) = text.rsplit_once(':').unwrap_or_default();
        !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok_and(|port| port != 0)
    };
    const EXPECTED: &str = "expected a host and a port, e.g. 10.0.0.5:8090 or bus-1.example.com:8090";
    match &settings.advertise {
        Some(text) if !is_address(text) => problems.add("advertise", EXPECTED),
        Some(text) if is_wildcard(text) => {
            let why = "means all addresses of this machine: other gateways cannot connect to it";
            problems.add("advertise", format!("{text} {why}; {EXPECTED}"));
        }
        _ => {}
    }
}

/// Whether the host is `0.0.0.0` or `[::]`.
fn is_wildcard(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().to_canonical().is_unspecified())
}

fn check_log_filter(problems: &mut Problems, filter: &str) {
    if let Err(error) = filter.parse::<Targets>() {
        let how = "expected error, warn, info, debug, trace, or a filter like info,prombus_server=debug";
        problems.add("log", format!("{filter:?} is not a filter ({error}); {how}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_certificate_is_reported_together_with_other_problems() {
        let file = std::env::temp_dir().join(format!("prombus-no-certificate-{}", std::process::id()));
        std::fs::write(&file, "no certificate").expect("a file");
        let mut source = Source::default();
        source.set("log_format", "", "xml");
        source.set("listen", "", vec!["nowhere"]);
        source.set("tls.cert", "", file.display().to_string());
        source.set("tls.key", "", file.display().to_string());
        let mut problems = Problems::default();
        settings(&mut problems, &source);
        std::fs::remove_file(&file).expect("it is there");
        let paths: Vec<&str> = problems.found.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["listen[0]", "tls.cert", "log_format"]);
    }

    #[test]
    fn the_default_burst_is_the_rate_of_one_second_and_a_burst_needs_a_rate() {
        let mut problems = Problems::default();
        let mut rate_of = |per_second: Option<f64>, burst: Option<f64>| {
            let mut source = Source::default();
            per_second.into_iter().for_each(|rate| source.set("a.b_per_second", "", rate));
            burst.into_iter().for_each(|burst| source.set("a.b_burst", "", burst));
            rate(&mut problems, &source, "a.b")
        };
        assert_eq!(rate_of(None, None), None);
        assert_eq!(rate_of(Some(200.0), None), Some(Rate { per_second: 200.0, burst: 200.0 }));
        assert_eq!(rate_of(Some(200.0), Some(9.0)), Some(Rate { per_second: 200.0, burst: 9.0 }));
        assert_eq!(rate_of(Some(0.5), None), Some(Rate { per_second: 0.5, burst: 1.0 }));
        assert_eq!(rate_of(None, Some(5.0)), None);
        assert_eq!(problems.found.len(), 1);
        let problem = &problems.found[0];
        assert_eq!(
            (problem.path.as_str(), problem.why.as_str()),
            ("a.b_burst", "has no effect without b_per_second")
        );
    }
}
