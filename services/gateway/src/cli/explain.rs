//! `runnel explain`: which agent would get an event and why, and which resources its run could use. Posts
//! nothing.

mod render;

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use http::Method;
use protocol::event::MESSAGE_RECEIVED;
use serde_json::{Map, Value, json};

use crate::cli::gateway::{Gateway, GatewayArguments, next_cursor};
use crate::cli::output;

#[derive(clap::Args)]
pub(super) struct ExplainArguments {
    /// A file with an event for `POST /v1/events`; `-` is standard input. Default: an event of the type
    /// `--type`.
    file: Option<PathBuf>,
    /// Explain this agent, by name or id, even if it does not win. Default: the winner.
    #[arg(long)]
    agent: Option<String>,
    /// The event type. Default: the file's, else `message.received`.
    #[arg(long = "type")]
    event_type: Option<String>,
    /// The input text. Default for a message without text: `hello`.
    #[arg(long)]
    text: Option<String>,
    /// The conversation of the event.
    #[arg(long)]
    conversation: Option<String>,
    /// The bot of the event.
    #[arg(long)]
    bot: Option<String>,
    /// The id of the actor.
    #[arg(long)]
    actor: Option<String>,
    /// The source of the event. The gateway's default is `api`.
    #[arg(long)]
    source: Option<String>,
    #[command(flatten)]
    gateway: GatewayArguments,
}

/// Maximum size of an event.
const MAX_BYTES: u64 = 5 * 1024 * 1024;

/// Requests a dry run and prints its result. Succeeds even if the event would be refused.
pub(super) async fn explain(arguments: ExplainArguments, json: bool) -> anyhow::Result<ExitCode> {
    let event = event(&arguments)?;
    let Some(gateway) = arguments.gateway.find()? else {
        return Ok(ExitCode::from(2));
    };
    let path = match &arguments.agent {
        None => "/v1/agents/dry-run".to_owned(),
        Some(agent) => format!("/v1/agents/{}/dry-run", find_agent(&gateway, agent).await?),
    };
    let request = gateway.request(Method::POST, &path)?.json(&event);
    let answer = gateway.ask(request).await?;
    if json {
        output::document(&answer);
    } else {
        for line in render::render(&answer) {
            output::line(&line);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Id of an agent given by name or id.
async fn find_agent(gateway: &Gateway, named: &str) -> anyhow::Result<String> {
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/agents?limit=100{cursor}");
        let page = gateway.ask(gateway.request(Method::GET, &path)?).await?;
        let agents = page["items"].as_array().map_or(&[][..], Vec::as_slice);
        let found = agents
            .iter()
            .find(|agent| agent["name"] == named || agent["id"] == named);
        if let Some(id) = found.and_then(|agent| agent["id"].as_str()) {
            return Ok(id.to_owned());
        }
        match next_cursor(&page) {
            Some(next) => cursor = format!("&cursor={next}"),
            None => bail!("there is no agent {named}; GET /v1/agents lists them"),
        }
    }
}

/// The event of the file, overridden by the arguments.
fn event(arguments: &ExplainArguments) -> anyhow::Result<Value> {
    let mut event = match &arguments.file {
        None => Map::new(),
        Some(file) => read_event(file)?,
    };
    let mut put = |path: &[&str], value: Option<&str>| {
        let (Some(value), Some((last, objects))) = (value, path.split_last()) else {
            return;
        };
        let mut place = &mut event;
        for name in objects {
            let inner = place.entry(*name).or_insert_with(|| json!({}));
            if !inner.is_object() {
                *inner = json!({});
            }
            let Value::Object(inner) = inner else { return };
            place = inner;
        }
        place.insert((*last).to_owned(), json!(value));
    };
    put(&["event_type"], arguments.event_type.as_deref());
    put(&["input", "text"], arguments.text.as_deref());
    put(
        &["conversation", "conversation_id"],
        arguments.conversation.as_deref(),
    );
    put(&["bot_id"], arguments.bot.as_deref());
    put(&["actor", "actor_id"], arguments.actor.as_deref());
    put(&["source"], arguments.source.as_deref());
    if let Some(actor) = event.get_mut("actor").and_then(Value::as_object_mut) {
        actor.entry("actor_type").or_insert_with(|| json!("user"));
    }
    event
        .entry("event_type")
        .or_insert_with(|| json!(MESSAGE_RECEIVED));
    if event["event_type"] == MESSAGE_RECEIVED {
        event
            .entry("input")
            .or_insert_with(|| json!({"text": "hello"}));
    }
    Ok(Value::Object(event))
}

fn read_event(file: &std::path::Path) -> anyhow::Result<Map<String, Value>> {
    let (what, mut text) = (file.display(), Vec::new());
    let read = if file.as_os_str() == "-" {
        std::io::stdin()
            .lock()
            .take(MAX_BYTES + 1)
            .read_to_end(&mut text)
    } else {
        std::fs::File::open(file)
            .and_then(|opened| opened.take(MAX_BYTES + 1).read_to_end(&mut text))
    };
    read.with_context(|| format!("cannot read {what}"))?;
    if text.len() as u64 > MAX_BYTES {
        bail!("{what} is larger than 5 MiB, the maximum for a gateway");
    }
    serde_json::from_slice(&text).with_context(|| format!("{what} is not a JSON object"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: ExplainArguments,
    }

    #[test]
    fn arguments_build_the_event() {
        let check = |line: &[&str], expected: Value| {
            let line = Line::parse_from([&["explain"], line].concat());
            assert_eq!(event(&line.arguments).unwrap(), expected);
        };
        check(
            &[],
            json!({"event_type": "message.received", "input": {"text": "hello"}}),
        );
        check(&["--type", "a.b"], json!({"event_type": "a.b"}));
        check(
            &[
                "--text",
                "hi",
                "--conversation",
                "c",
                "--bot",
                "b",
                "--actor",
                "u",
                "--source",
                "s",
            ],
            json!({
                "event_type": "message.received", "input": {"text": "hi"}, "bot_id": "b",
                "conversation": {"conversation_id": "c"}, "source": "s",
                "actor": {"actor_id": "u", "actor_type": "user"},
            }),
        );
    }
}
