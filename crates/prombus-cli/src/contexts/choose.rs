//! Which server, token and certificates a command uses: flags, then the environment, then a context, then defaults.

use super::file::{Context, Contexts};
use crate::args::{DEFAULT_URL, ServerArgs};
use prombus_client::Address;
use std::path::PathBuf;

/// The server of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Chosen {
    pub url: String,
    pub token: Option<String>,
    pub ca_cert: Option<PathBuf>,
}

/// The values of flags and of environment variables, separately.
#[derive(Default)]
struct Given {
    url: Source<String>,
    token: Source<String>,
    ca_cert: Source<PathBuf>,
    context: Source<String>,
    /// `WS_TOKEN`.
    server_token: Option<String>,
}

/// Where a value was given.
struct Source<T> {
    flag: Option<T>,
    env: Option<T>,
}

impl<T> Default for Source<T> {
    fn default() -> Self {
        Self { flag: None, env: None }
    }
}

impl<T: PartialEq> Source<T> {
    /// `value` is that of the flag or, without a flag, that of the variable.
    fn new(value: Option<T>, env: Option<T>) -> Self {
        match value == env {
            true => Self { flag: None, env },
            false => Self { flag: value, env },
        }
    }
}

/// Decides which server a command uses.
///
/// # Errors
/// When the context does not exist, or the file of contexts cannot be used.
pub fn choose(args: &ServerArgs) -> anyhow::Result<Chosen> {
    let var = |name: &str| std::env::var(name).ok();
    // An empty variable counts as unset.
    let given = |value: &Option<String>, name: &str| {
        let full = |text: Option<String>| text.filter(|text| !text.is_empty());
        Source::new(full(value.clone()), full(var(name)))
    };
    let file = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
    let given = Given {
        url: given(&args.url, "PROMBUS_URL"),
        token: given(&args.token, "PROMBUS_TOKEN"),
        ca_cert: Source::new(file(args.ca_cert.clone()), file(var("PROMBUS_CA_CERT").map(PathBuf::from))),
        context: given(&args.context, "PROMBUS_CONTEXT"),
        server_token: var("WS_TOKEN").filter(|token| !token.is_empty()),
    };
    resolve(given, Contexts::load)
}

fn resolve(given: Given, load: impl FnOnce() -> anyhow::Result<Contexts>) -> anyhow::Result<Chosen> {
    let Given { url, token, ca_cert, context, server_token } = given;
    let is_named = context.flag.is_some();
    // A server that the flags describe completely needs no file.
    let is_tls = |url: &String| Address::parse(url).is_ok_and(|address| address.is_tls());
    let lacks_certificates = ca_cert.flag.is_none() && url.flag.as_ref().is_some_and(is_tls);
    let needs_contexts = is_named || url.flag.is_none() || token.flag.is_none() || lacks_certificates;
    let contexts = if needs_contexts { load()? } else { Contexts::default() };
    let name = context.flag.or(context.env).or_else(|| contexts.current.clone());
    let found = match &name {
        Some(name) if needs_contexts => Some(contexts.get(name)?.clone()),
        _ => None,
    };
    let of_context = found.as_ref().map(|context| context.url.clone());
    let env_url = if is_named { None } else { url.env };
    let url = url.flag.or(env_url).or(of_context).unwrap_or_else(|| DEFAULT_URL.to_owned());
    // The token of a context goes to the server of that context only.
    let found = found.filter(|context| is_same_server(&context.url, &url));
    let Context { token: context_token, ca_cert: context_cert, .. } = found.unwrap_or_default();
    let (first, second) = if is_named { (context_token, token.env) } else { (token.env, context_token) };
    let (first_cert, second_cert) =
        if is_named { (context_cert, ca_cert.env) } else { (ca_cert.env, context_cert) };
    Ok(Chosen {
        url,
        token: token.flag.or(first).or(second).or(server_token),
        ca_cert: ca_cert.flag.or(first_cert).or(second_cert),
    })
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

    fn flag(text: &str) -> Source<String> {
        Source { flag: Some(text.to_owned()), env: None }
    }

    fn env(text: &str) -> Source<String> {
        Source { flag: None, env: Some(text.to_owned()) }
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
        let given = Given { context: env("prod"), ..Given::default() };
        assert_eq!(chosen(given, Some("dev")), pair("https://bus.example", Some("prod-token")));
        let given = Given { url: env("http://e"), token: env("e"), context: env("prod"), ..Given::default() };
        assert_eq!(chosen(given, Some("dev")), pair("http://e", Some("e")));
        let given =
            Given { url: env("http://e"), token: env("e"), context: flag("prod"), ..Given::default() };
        assert_eq!(chosen(given, None), pair("https://bus.example", Some("prod-token")));
        let given =
            Given { url: flag("http://f"), token: flag("f"), context: env("prod"), ..Given::default() };
        assert_eq!(chosen(given, Some("dev")), pair("http://f", Some("f")));
    }

    #[test]
    fn the_token_of_a_context_is_not_sent_to_another_server() {
        for url in ["http://other:8090", "http://dev:8091", "https://dev:8090"] {
            for given in [
                Given { url: flag(url), ..Given::default() },
                Given { url: env(url), ..Given::default() },
                Given { url: flag(url), context: flag("dev"), ..Given::default() },
            ] {
                let chosen = resolve(given, || Ok(contexts(Some("dev")))).unwrap();
                assert_eq!((chosen.token, chosen.ca_cert), (None, None), "{url}");
            }
        }
        let given = Given { url: flag("ws://dev:8090/ws"), ..Given::default() };
        assert_eq!(chosen(given, Some("dev")).1.as_deref(), Some("dev-token"), "the same server");
    }

    #[test]
    fn an_unknown_context_is_an_error_and_is_named() {
        let given = Given { context: flag("stage"), ..Given::default() };
        let error = resolve(given, || Ok(contexts(None))).unwrap_err().to_string();
        assert!(error.contains("\"stage\"") && error.contains("context list"), "{error}");
    }

    #[test]
    fn the_file_of_contexts_is_not_needed_if_url_and_token_are_given() {
        let given = Given { url: flag("http://f"), token: flag("f"), ..Given::default() };
        assert!(resolve(given, || anyhow::bail!("unreadable")).is_ok());
        let given = Given { url: flag("http://f"), ..Given::default() };
        assert!(resolve(given, || anyhow::bail!("unreadable")).is_err());
    }
}
