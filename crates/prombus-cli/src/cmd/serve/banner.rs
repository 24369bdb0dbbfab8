//! The text that a server prints when it is ready: where its data is, where it listens, who has access, and a command to try.

use crate::config::{Settings, StoreChoice};
use crate::messages::counted;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

/// Returns the text. `addresses` are the addresses that the server is bound to.
pub fn text(settings: &Settings, addresses: &[SocketAddr], is_demo: bool) -> String {
    let is_tls = settings.server.tls.is_some();
    let (ws, http) = if is_tls { ("wss", "https") } else { ("ws", "http") };
    let mut text = format!("prombus {}\n", env!("CARGO_PKG_VERSION"));
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{:<8}{value}", format!("{name}:"));
    };
    line("data", &data(settings));
    for address in addresses {
        line("listen", &format!("{ws}://{address} and {http}://{address}"));
    }
    line("auth", &auth(settings, addresses));
    if let Some(address) = addresses.first() {
        let url = format!("{http}://{}", reachable(*address, is_tls));
        if is_demo {
            for demo in super::demo::lines(header(settings), &url) {
                line("demo", &demo);
            }
        }
        line(
            "try",
            &format!("curl {}-d '{{\"hello\":\"world\"}}' {url}/publish/greetings", header(settings)),
        );
    }
    text
}

fn data(settings: &Settings) -> String {
    match &settings.bus.store {
        StoreChoice::Log(folder) => {
            let whole = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
            whole.display().to_string()
        }
        StoreChoice::Memory => "in memory, gone at exit".to_owned(),
        StoreChoice::MongoDb(url) => url.to_string(),
    }
}

fn auth(settings: &Settings, addresses: &[SocketAddr]) -> String {
    let auth = &settings.server.auth;
    if !auth.is_configured() {
        let is_open = addresses.iter().any(|address| !address.ip().to_canonical().is_loopback());
        return match is_open {
            false => "off: this machine only",
            true => "off, and open to other machines (--insecure): anyone who can connect may read and write everything",
        }
        .to_owned();
    }
    let mut parts = Vec::new();
    if !auth.tokens.is_empty() {
        parts.push(counted(auth.tokens.len() as u64, "token"));
    }
    if auth.jwt.is_some() {
        parts.push("JWT".to_owned());
    }
    if !auth.rules.is_empty() {
        parts.push(counted(auth.rules.len() as u64, "rule"));
    }
    parts.join(", ")
}

/// The header argument of the printed curl commands. It contains a shell variable instead of the token, so the token is not
/// printed.
fn header(settings: &Settings) -> &'static str {
    let auth = &settings.server.auth;
    if auth.tokens.iter().any(|token| token.name == crate::config::TOKEN_NAME) {
        "-H \"Authorization: Bearer $WS_TOKEN\" "
    } else if auth.is_configured() {
        "-H \"Authorization: Bearer $TOKEN\" "
    } else {
        ""
    }
}

/// An address that a client on this machine can use. With TLS it is a name, because certificates are rarely for IP addresses.
fn reachable(address: SocketAddr, is_tls: bool) -> String {
    let port = address.port();
    match address.ip() {
        ip if is_tls && (ip.is_loopback() || ip.is_unspecified()) => format!("localhost:{port}"),
        IpAddr::V4(ip) if ip.is_unspecified() => format!("127.0.0.1:{port}"),
        IpAddr::V6(ip) if ip.is_unspecified() => format!("[::1]:{port}"),
        _ => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use crate::config::{Environment, load};
    use clap::Parser;
    use std::ffi::OsString;

    fn text_of(words: &[&str], variables: &[(&str, &str)]) -> String {
        let Command::Serve(args) = Args::parse_from(["prombus", "serve"].iter().chain(words)).command else {
            panic!("{words:?}")
        };
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let settings = load(None, &args.settings, &Environment::new(variables).unwrap());
        let settings = settings.unwrap().settings;
        text(&settings, &settings.server.listen, args.demo)
    }

    #[test]
    fn without_auth_the_banner_says_who_has_access_and_what_to_try() {
        let text = text_of(&["--store", "memory:"], &[]);
        let expected = format!(
            "prombus {}\n\
             data:   in memory, gone at exit\n\
             listen: ws://127.0.0.1:8090 and http://127.0.0.1:8090\n\
             auth:   off: this machine only\n\
             try:    curl -d '{{\"hello\":\"world\"}}' http://127.0.0.1:8090/publish/greetings\n",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn with_auth_the_command_to_try_names_the_token_variable() {
        let text = text_of(&["--listen", "0.0.0.0:80"], &[("WS_TOKEN", "hunter2")]);
        assert!(text.contains("auth:   1 token\n"), "{text}");
        assert!(text.contains("curl -H \"Authorization: Bearer $WS_TOKEN\" -d"), "{text}");
        assert!(text.contains("http://127.0.0.1:80/publish"), "{text}");
        assert!(!text.contains("hunter2"));
    }

    #[cfg(feature = "mongodb")]
    #[test]
    fn the_password_of_a_store_is_not_printed() {
        let text = text_of(&["--store", "mongodb://me:hunter2@db1,db2/bus?replicaSet=rs0"], &[]);
        assert!(text.contains("data:   mongodb://me:***@db1,db2/bus\n"), "{text}");
    }

    #[test]
    fn a_demo_adds_commands_to_try() {
        let text = text_of(&["--demo"], &[("WS_TOKEN", "hunter2")]);
        let demo: Vec<&str> = text.lines().filter(|line| line.starts_with("demo:")).collect();
        assert!(demo.len() >= 3, "{text}");
        let curl = "curl -H \"Authorization: Bearer $WS_TOKEN\" ";
        assert!(demo[1..].iter().all(|line| line.contains(curl)), "{text}");
        assert!(text.lines().last().unwrap().starts_with("try:"), "{text}");
    }

    #[test]
    fn an_open_server_without_auth_is_named_as_such() {
        let text = text_of(&["--listen", "0.0.0.0:80", "--insecure"], &[]);
        assert!(text.contains("auth:   off, and open to other machines (--insecure)"));
    }
}
