//! Which server, token and certificates a command uses: flags, then the environment, then a context, then defaults.

use super::file::{Context, Contexts};
use crate::args::{DEFAULT_URL, ServerArgs, ServerValues};
use prombus_client::Address;
use std::path::PathBuf;

/// The server of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Chosen {
    pub url: String,
    pub token: Option<String>,
    pub ca_cert: Option<PathBuf>,
}

/// The values that can name the server of a command.
#[derive(Default)]
struct Given {
    flags: ServerValues,
    variables: ServerValues,
    /// `WS_TOKEN`.
    server_token: Option<String>,
}

/// Decides which server a command uses.
///
/// # Errors
/// When the context does not exist, or the file of contexts cannot be used.
pub fn choose(args: &ServerArgs) -> anyhow::Result<Chosen> {
    let server_token = std::env::var("WS_TOKEN").ok().filter(|token| !token.is_empty());
    let ServerArgs { flags, variables } = args.clone();
    resolve(Given { flags: set(flags), variables: set(variables), server_token }, Contexts::load)
}

/// The values without those that are empty: an empty value counts as not given.
fn set(values: ServerValues) -> ServerValues {
    let full = |text: Option<String>| text.filter(|text| !text.is_empty());
    ServerValues {
        url: full(values.url),
        token: full(values.token),
        ca_cert: values.ca_cert.filter(|path| !path.as_os_str().is_empty()),
        context: full(values.context),
    }
}

fn resolve(given: Given, load: impl FnOnce() -> anyhow::Result<Contexts>) -> anyhow::Result<Chosen> {
    let needs_contexts = needs_contexts(&given);
    let contexts = if needs_contexts { load()? } else { Contexts::default() };
    let Given { flags, variables, server_token } = given;
    let is_named = flags.context.is_some();
    let name = flags.context.or(variables.context).or_else(|| contexts.current.clone());
    let found = match &name {
        Some(name) if needs_contexts => Some(contexts.get(name)?.clone()),
        _ => None,
    };
    let of_context = found.as_ref().map(|context| context.url.clone());
    let variable_url = if is_named { None } else { variables.url.clone() };
    // A server that --context alone names is not the one for which PROMBUS_TOKEN was set, unless PROMBUS_URL names the same.
    let is_of_context = is_named && flags.url.is_none();
    let url = flags.url.or(variable_url).or(of_context).unwrap_or_else(|| DEFAULT_URL.to_owned());
    let has_variable_token =
        !is_of_context || variables.url.is_some_and(|variable_url| is_same_server(&variable_url, &url));
    let variable_token = variables.token.filter(|_| has_variable_token);
    // The token of the server on this machine is not sent to others.
    let server_token =
        server_token.filter(|_| Address::parse(&url).is_ok_and(|address| address.is_loopback()));
    // The token of a context goes to the server of that context only.
    let found = found.filter(|context| is_same_server(&context.url, &url));
    let Context { token: context_token, ca_cert: context_cert, .. } = found.unwrap_or_default();
    let (first, second) =
        if is_named { (context_token, variable_token) } else { (variable_token, context_token) };
    let (first_cert, second_cert) =
        if is_named { (context_cert, variables.ca_cert) } else { (variables.ca_cert, context_cert) };
    Ok(Chosen {
        url,
        token: flags.token.or(first).or(second).or(server_token),
        ca_cert: flags.ca_cert.or(first_cert).or(second_cert),
    })
}

/// Whether a context can supply a value: flags and variables together may describe the server completely.
fn needs_contexts(given: &Given) -> bool {
    let Given { flags, variables, .. } = given;
    let Some(url) = flags.url.as_ref().or(variables.url.as_ref()) else { return true };
    let is_tls = Address::parse(url).is_ok_and(|address| address.is_tls());
    let has_token = flags.token.is_some() || variables.token.is_some();
    let has_certificates = !is_tls || flags.ca_cert.is_some() || variables.ca_cert.is_some();
    flags.context.is_some() || !has_token || !has_certificates
}

/// Whether two URLs name the same server with the same protection: `http://` and `https://` differ.
fn is_same_server(one: &str, other: &str) -> bool {
    match (Address::parse(one), Address::parse(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts(current: Option<&str>) -> Contexts {
        let context = |url: &str, token: &str| Context {
            url: url.to_owned(),
            token: Some(token.to_owned()),
            ca_cert: Some("ca.pem".into()),
        };
        let by_name = [
            ("prod".to_owned(), context("https://bus.example", "prod-token")),
            ("dev".to_owned(), context("http://dev:8090", "dev-token")),
        ];
        Contexts { current: current.map(str::to_owned), by_name: by_name.into() }
    }

    /// Flags or variables: each of `url`, `token` and `context` with its value.
    fn values(pairs: &[(&str, &str)]) -> ServerValues {
        let value = |name| pairs.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned());
        ServerValues { url: value("url"), token: value("token"), ca_cert: None, context: value("context") }
    }

    fn given(flags: &[(&str, &str)], variables: &[(&str, &str)]) -> Given {
        Given { flags: values(flags), variables: values(variables), server_token: None }
    }

    fn chosen(given: Given, current: Option<&str>) -> (String, Option<String>) {
        let chosen = resolve(given, || Ok(contexts(current))).unwrap();
        (chosen.url, chosen.token)
    }

    fn pair(url: &str, token: Option<&str>) -> (String, Option<String>) {
        (url.to_owned(), token.map(str::to_owned))
    }

    #[test]
    fn a_flag_takes_precedence_over_the_environment_a_context_and_the_default() {
        assert_eq!(chosen(Given::default(), None), pair(DEFAULT_URL, None));
        assert_eq!(chosen(Given::default(), Some("dev")), pair("http://dev:8090", Some("dev-token")));
        assert_eq!(
            chosen(given(&[], &[("context", "prod")]), Some("dev")),
            pair("https://bus.example", Some("prod-token"))
        );
        let env = [("url", "http://e"), ("token", "e"), ("context", "prod")];
        assert_eq!(chosen(given(&[], &env), Some("dev")), pair("http://e", Some("e")));
        let prod = pair("https://bus.example", Some("prod-token"));
        assert_eq!(chosen(given(&[("context", "prod")], &env[..2]), None), prod);
        let flags = [("url", "http://f"), ("token", "f")];
        assert_eq!(chosen(given(&flags, &env[2..]), Some("dev")), pair("http://f", Some("f")));
    }

    #[test]
    fn the_token_of_a_context_is_not_sent_to_another_server() {
        for url in ["http://other:8090", "http://dev:8091", "https://dev:8090"] {
            for given in [
                given(&[("url", url)], &[]),
                given(&[], &[("url", url)]),
                given(&[("url", url), ("context", "dev")], &[]),
            ] {
                let chosen = resolve(given, || Ok(contexts(Some("dev")))).unwrap();
                assert_eq!((chosen.token, chosen.ca_cert), (None, None), "{url}");
            }
        }
        assert_eq!(
            chosen(given(&[("url", "ws://dev:8090/ws")], &[]), Some("dev")).1.as_deref(),
            Some("dev-token"),
            "the same server"
        );
    }

    #[test]
    fn the_variable_token_is_not_sent_to_the_server_of_a_named_context() {
        let contexts = || {
            let mut contexts = contexts(None);
            contexts.by_name.values_mut().for_each(|context| context.token = None);
            Ok(contexts)
        };
        let token = |flags: &[(&str, &str)], variables: &[(&str, &str)]| {
            resolve(given(flags, variables), contexts).unwrap().token
        };
        let dev = [("context", "dev")];
        assert_eq!(token(&dev, &[("token", "t")]), None);
        assert_eq!(token(&dev, &[("token", "t"), ("url", "http://other:8090")]), None);
        let sent = Some("t".to_owned());
        assert_eq!(token(&dev, &[("token", "t"), ("url", "ws://dev:8090")]), sent);
        assert_eq!(token(&[("context", "dev"), ("url", "http://f")], &[("token", "t")]), sent);
        assert_eq!(token(&[("context", "dev"), ("token", "t")], &[]), sent);
        assert_eq!(token(&[], &[("context", "dev"), ("token", "t")]), sent);
        assert_eq!(token(&[("url", "http://f")], &[("token", "t")]), sent);
    }

    #[test]
    fn the_token_of_the_server_is_sent_to_this_machine_only() {
        let token = |flags: &[(&str, &str)]| {
            let given = Given { server_token: Some("t".to_owned()), ..given(flags, &[]) };
            resolve(given, || Ok(contexts(None))).unwrap().token
        };
        let sent = Some("t".to_owned());
        assert_eq!(token(&[]), sent, "the default server");
        assert_eq!(token(&[("url", "ws://localhost:9000")]), sent);
        assert_eq!(token(&[("url", "http://bus.example")]), None);
        assert_eq!(token(&[("url", "http://127.0.0.1.bus.example")]), None);
    }

    #[test]
    fn an_unknown_context_is_an_error_and_is_named() {
        let error =
            resolve(given(&[("context", "stage")], &[]), || Ok(contexts(None))).unwrap_err().to_string();
        assert!(error.contains("\"stage\"") && error.contains("context list"), "{error}");
    }

    #[test]
    fn the_file_of_contexts_is_not_read_if_url_and_token_are_given() {
        let is_read = |flags: &[(&str, &str)], variables: &[(&str, &str)]| {
            resolve(given(flags, variables), || anyhow::bail!("unreadable")).is_err()
        };
        let server = [("url", "http://f"), ("token", "f")];
        assert!(!is_read(&server, &[]) && !is_read(&[], &server) && !is_read(&server[..1], &server[1..]));
        assert!(is_read(&server[..1], &[]) && is_read(&[], &server[1..]));
        assert!(is_read(&[("context", "dev")], &server), "a context is named");
        assert!(is_read(&[("url", "https://f"), ("token", "f")], &[]), "it may have a certificate");
    }
}
