//! `prombus context`: named servers.

use super::table::{Side, lines};
use crate::args::{ContextAddArgs, ContextCommand};
use crate::contexts::{Context, Contexts, check_name, masked};
use crate::messages::io_reason;
use crate::output::stdout;
use crate::wrong_arguments::WrongArguments;
use anyhow::{Context as _, anyhow, bail};
use prombus_client::Client;
use serde_json::{Value, json};
use std::io::{Read, Write, stdin};
use std::path::Path;
use std::process::ExitCode;

/// A token file is not longer than this.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

/// Runs the command.
///
/// # Errors
/// When the file of contexts cannot be used, or a context does not exist.
pub fn run(command: &ContextCommand) -> anyhow::Result<ExitCode> {
    match command {
        ContextCommand::Add(args) => add(args)?,
        ContextCommand::Use { name, json, .. } => choose(name.as_deref(), json.json)?,
        ContextCommand::List { json } => list(json.json)?,
        ContextCommand::Show { name, json } => show(name.as_deref(), json.json)?,
        ContextCommand::Remove { name, json } => remove(name, json.json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn add(args: &ContextAddArgs) -> anyhow::Result<()> {
    check_name(&args.name).map_err(WrongArguments::new)?;
    // Fails before the token is read from standard input.
    check_new(args, &Contexts::load()?)?;
    let token = match (&args.token, &args.token_file) {
        (Some(token), _) => Some(token.clone()),
        (None, Some(file)) => Some(read_token(file)?),
        (None, None) => None,
    };
    if token.as_ref().is_some_and(|token| token.trim().is_empty() || token.chars().any(char::is_control)) {
        bail!("the token is empty or contains characters that a token cannot have");
    }
    let ca_cert = args.ca_cert.as_ref().map(|file| {
        // Commands are run from other folders too.
        std::fs::canonicalize(file).map_err(|error| anyhow!("{}: {}", file.display(), io_reason(&error)))
    });
    let ca_cert = ca_cert.transpose()?;
    // Checks the URL and the certificate.
    let mut builder = Client::builder(&args.url);
    if let Some(file) = &ca_cert {
        builder = builder.ca_cert(file);
    }
    builder.build()?;
    let contexts = Contexts::change(|contexts| {
        check_new(args, contexts)?;
        contexts.by_name.insert(args.name.clone(), Context { url: args.url.clone(), token, ca_cert });
        if args.is_chosen {
            contexts.current = Some(args.name.clone());
        }
        Ok(())
    })?;
    let name = &args.name;
    let is_current = contexts.current.as_deref() == Some(name);
    if args.json.json {
        writeln!(stdout(), "{}", as_json(name, contexts.get(name)?, is_current))?;
        return Ok(());
    }
    match is_current {
        true => writeln!(stdout(), "added {name}; commands use it now")?,
        false => writeln!(stdout(), "added {name}; `prombus context use {name}` makes commands use it")?,
    }
    Ok(())
}

fn check_new(args: &ContextAddArgs, contexts: &Contexts) -> anyhow::Result<()> {
    if contexts.by_name.contains_key(&args.name) && !args.force {
        bail!("there is a context {:?} already; --force replaces it", args.name);
    }
    Ok(())
}

/// The token in a file, without the line end.
fn read_token(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    if file == Path::new("-") {
        stdin().take(TOKEN_BYTES_MAX).read_to_string(&mut text).context("cannot read the token")?;
    } else {
        let opened = std::fs::File::open(file);
        let opened = opened.map_err(|error| anyhow!("{}: {}", file.display(), io_reason(&error)))?;
        opened.take(TOKEN_BYTES_MAX).read_to_string(&mut text).with_context(|| file.display().to_string())?;
    }
    Ok(text.trim().to_owned())
}

fn choose(name: Option<&str>, is_json: bool) -> anyhow::Result<()> {
    let contexts = Contexts::change(|contexts| {
        name.map(|name| contexts.get(name).map(drop)).transpose()?;
        contexts.current = name.map(str::to_owned);
        Ok(())
    })?;
    match (name, name.and_then(|name| contexts.by_name.get(name)).map(|context| &context.url)) {
        _ if is_json => writeln!(stdout(), "{}", json!({ "current": name }))?,
        (Some(name), Some(url)) => writeln!(stdout(), "commands use {name} ({url}) now")?,
        _ => writeln!(stdout(), "commands use no context now")?,
    }
    Ok(())
}

fn list(is_json: bool) -> anyhow::Result<()> {
    let contexts = Contexts::load()?;
    let is_current = |name: &String| contexts.current.as_ref() == Some(name);
    if is_json {
        let all: Vec<Value> =
            contexts.by_name.iter().map(|(name, it)| as_json(name, it, is_current(name))).collect();
        writeln!(stdout(), "{}", Value::from(all))?;
        return Ok(());
    }
    if contexts.by_name.is_empty() {
        writeln!(stdout(), "no contexts; `prombus context add` adds one")?;
        return Ok(());
    }
    let row = |(name, context): (&String, &Context)| {
        let mark = if is_current(name) { "*" } else { "" };
        let text = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let token = text(context.token.as_deref().map(masked));
        let ca_cert = text(context.ca_cert.as_ref().map(|file| file.display().to_string()));
        vec![mark.to_owned(), name.clone(), context.url.clone(), token, ca_cert]
    };
    let rows: Vec<Vec<String>> = contexts.by_name.iter().map(row).collect();
    let columns = ["", "NAME", "URL", "TOKEN", "CA CERT"].map(|name| (name, Side::Left));
    write!(stdout(), "{}", lines(&columns, &rows))?;
    Ok(())
}

fn show(name: Option<&str>, is_json: bool) -> anyhow::Result<()> {
    let contexts = Contexts::load()?;
    let name = name
        .or(contexts.current.as_deref())
        .context("no context is in use; `prombus context use NAME` chooses one")?;
    let context = contexts.get(name)?;
    let is_current = contexts.current.as_deref() == Some(name);
    if is_json {
        writeln!(stdout(), "{}", as_json(name, context, is_current))?;
        return Ok(());
    }
    let mut lines = vec![("name", name.to_owned()), ("url", context.url.clone())];
    lines.push(("token", context.token.as_deref().map_or_else(|| "-".to_owned(), masked)));
    let ca_cert = context.ca_cert.as_ref().map(|file| file.display().to_string());
    lines.push(("ca cert", ca_cert.unwrap_or_else(|| "-".to_owned())));
    lines.push(("in use", if is_current { "yes" } else { "no" }.to_owned()));
    for (title, text) in lines {
        writeln!(stdout(), "{title:<8} {text}")?;
    }
    Ok(())
}

fn as_json(name: &str, context: &Context, is_current: bool) -> Value {
    json!({
        "name": name,
        "url": context.url,
        "token": context.token.as_deref().map(masked),
        "ca_cert": context.ca_cert,
        "current": is_current,
    })
}

fn remove(name: &str, is_json: bool) -> anyhow::Result<()> {
    let contexts = Contexts::change(|contexts| {
        contexts.get(name)?;
        contexts.by_name.remove(name);
        if contexts.current.as_deref() == Some(name) {
            contexts.current = None;
        }
        Ok(())
    })?;
    match is_json {
        true => writeln!(stdout(), "{}", json!({ "removed": name, "current": contexts.current }))?,
        false => writeln!(stdout(), "removed {name}")?,
    }
    Ok(())
}
