//! Tests of the settings for a store that several gateways share.

use super::*;
use crate::config::StoreUrl;
use crate::config::settings::MongoSettings;

const URL: &str = "mongodb://me:hunter2@a,b/bus?replicaSet=rs0";

#[test]
fn a_mongodb_store_has_its_own_settings() {
    let settings = load_with(&["--store", URL], &[]).unwrap();
    assert_eq!(settings.bus.store, StoreChoice::MongoDb(StoreUrl::new(URL)));
    let defaults = MongoSettings {
        database: None,
        prefix: String::new(),
        readable: true,
        write_concern: "majority".to_owned(),
    };
    assert_eq!((settings.bus.mongodb, settings.advertise), (defaults, None));
    assert_eq!(settings.server.engine_wait, std::time::Duration::from_secs(10));

    let text = "store = \"mongodb+srv://host\"\nadvertise = \"bus-1:8090\"\nrelay_insecure = true\n\
                [engine]\nwait_ms = 3_000\n\
                [mongodb]\ndatabase = \"d\"\nprefix = \"p_\"\nreadable = false\nwrite_concern = \"2\"\n";
    let file = TempFile::new("mongodb", text);
    let settings = load_with(&["--config", &file.path()], &[]).unwrap();
    assert_eq!(settings.bus.store, StoreChoice::MongoDb(StoreUrl::new("mongodb+srv://host")));
    let MongoSettings { database, prefix, readable, write_concern } = settings.bus.mongodb;
    assert_eq!((database.as_deref(), prefix.as_str(), readable), (Some("d"), "p_", false));
    assert_eq!((write_concern.as_str(), settings.advertise.as_deref()), ("2", Some("bus-1:8090")));
    assert_eq!((settings.bus.limits.engine_wait_ms, settings.server.engine_wait.as_millis()), (3_000, 3_000));
    assert!(settings.server.relay_insecure);
}

#[test]
fn the_password_of_a_store_is_never_shown() {
    let settings = load_with(&[], &[("PROMBUS_STORE", URL)]).unwrap();
    assert!(!format!("{settings:?}{settings:#?}").contains("hunter2"));
    let lines = load_with(&["--store", URL, "--advertise", "nowhere", "--listen", "x"], &[]).unwrap_err();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(!lines.concat().contains("hunter2"), "{lines:?}");
    let faults = check("f", &format!("store = \"{URL}\"\nadvertise = \"x\"\n[mongodb]\ndatabase = \"\"\n"));
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(!faults.concat().contains("hunter2"), "{faults:?}");
    for broken in [format!("store = \"{URL}\n"), format!("store = {URL}\n"), format!("store = [\"{URL}\"]\n")]
    {
        let faults = check("f", &broken);
        assert!(!faults.is_empty() && !faults.concat().contains("hunter2"), "{faults:?}");
    }
}

#[test]
fn a_gateway_that_listens_on_all_addresses_needs_an_advertised_address() {
    let open = |more: &[&str]| {
        let words: Vec<&str> = ["--listen", "0.0.0.0:8090"].iter().chain(more).copied().collect();
        load_with(&words, &[("WS_TOKEN", "x")])
    };
    let lines = open(&["--store", "mongodb://host"]).unwrap_err();
    assert!(lines[0].starts_with("--listen: 0.0.0.0:8090 is not an address"), "{lines:?}");
    assert!(lines[0].contains("--advertise HOST:PORT"), "{lines:?}");
    assert!(open(&["--store", "mongodb://host", "--advertise", "10.0.0.5:8090"]).is_ok());
    assert!(open(&[]).is_ok(), "a store that is not shared needs no advertised address");
    assert!(load_with(&["--store", "mongodb://host", "--listen", "127.0.0.1:0"], &[]).is_ok());
    // `config check` accepts such a file: the address may come from the environment.
    assert!(check("f", "listen = [\"0.0.0.0:1\"]\nstore = \"mongodb://host\"\n").is_empty());
    for bad in ["10.0.0.5", ":8090", "host:0", "http://host:80", "host:port"] {
        let lines = load_with(&["--store", "mongodb://host", "--advertise", bad], &[]).unwrap_err();
        assert!(lines[0].starts_with("--advertise: expected a host and a port"), "{bad}: {lines:?}");
    }
    for wildcard in ["0.0.0.0:8090", "[::]:8090", "[::ffff:0.0.0.0]:8090"] {
        let lines = load_with(&["--store", "mongodb://host", "--advertise", wildcard], &[]).unwrap_err();
        assert!(lines[0].contains("other gateways cannot connect to it"), "{wildcard}: {lines:?}");
    }
}

#[test]
fn a_mongodb_url_without_a_host_is_refused() {
    for url in ["mongodb:", "mongodb://", "mongodb+srv:host"] {
        let lines = load_with(&["--store", url], &[]).unwrap_err();
        assert!(lines[0].starts_with("--store: no server is named"), "{url}: {lines:?}");
    }
}
