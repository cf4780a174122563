//! `runnel explain`: which agent would get an event and why, and which resources its run could use. Posts
//! nothing.

mod render;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use http::Method;
use protocol::event::MESSAGE_RECEIVED;
use serde_json::{Value, json};

use crate::advice::{check_policy, print_check};
use crate::agents::AGENTS;
use crate::event_body::EventParts;
use crate::gateway::{GatewayArguments, encoded};
use crate::ids::find_id;
use crate::lifetime::parse_lifetime;
use crate::output::{self, OutputFormat};
use render::ExplainDetail;

pub(super) use render::what;

#[derive(clap::Args)]
pub struct ExplainArguments {
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
    /// Also list each right that a layer removed, with its rule, and the open parts of the host API.
    #[arg(long, short)]
    verbose: bool,
    /// Show instead which past calls of --agent a changed policy would deny or newly allow: a JSON file with
    /// `resource_policy` and `state_policy`, such as the edited output of `runnel agents show NAME --json`.
    #[arg(long, value_name = "FILE", requires = "agent", conflicts_with_all = ["file", "event_type", "text"])]
    policy: Option<PathBuf>,
    /// With --policy: the calls of runs of this time until now, such as 7d. Default: 30d.
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, requires = "policy")]
    since: Option<Duration>,
    #[command(flatten)]
    gateway: GatewayArguments,
}

/// Requests a dry run and prints its result. Succeeds even if the event would be refused.
pub(super) async fn explain(
    arguments: ExplainArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    if arguments.policy.is_some() {
        return explain_policy(arguments, format).await;
    }
    let event = event(&arguments)?;
    let Some(gateway) = arguments.gateway.find()? else {
        // `find` has printed the cause.
        return Ok(ExitCode::from(2));
    };
    let path = match &arguments.agent {
        None => "/v1/agents/dry-run".to_owned(),
        Some(agent) => {
            let id = find_id(&gateway, &AGENTS, agent).await?;
            format!("/v1/agents/{}/dry-run", encoded(&id))
        }
    };
    let request = gateway.request(Method::POST, &path)?.json(&event);
    let answer = gateway.ask(request).await?;
    if format.is_json() {
        output::document(&answer);
    } else {
        let amount = if arguments.verbose {
            ExplainDetail::All
        } else {
            ExplainDetail::Verdict
        };
        for line in render::render(&answer, amount) {
            output::line(&line);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares a policy of a file with the agent's, by the past calls of its runs.
async fn explain_policy(
    arguments: ExplainArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let (Some(policy), Some(agent)) = (&arguments.policy, &arguments.agent) else {
        bail!("--policy needs --agent");
    };
    let Some(gateway) = arguments.gateway.find()? else {
        // `find` has printed the cause.
        return Ok(ExitCode::from(2));
    };
    let id = find_id(&gateway, &AGENTS, agent).await?;
    let check = check_policy(&gateway, &id, policy, arguments.since).await?;
    print_check(&check, format);
    Ok(ExitCode::SUCCESS)
}

/// The event of the file, overridden by the arguments. A message without input gets a text.
fn event(arguments: &ExplainArguments) -> anyhow::Result<Value> {
    let parts = EventParts {
        file: arguments.file.as_deref(),
        event_type: arguments.event_type.as_deref(),
        text: arguments.text.as_deref(),
        conversation: arguments.conversation.as_deref(),
        bot: arguments.bot.as_deref(),
        actor: arguments.actor.as_deref(),
        source: arguments.source.as_deref(),
    };
    let mut event = parts.build()?;
    // The gateway refuses a message without input, which would hide the agents.
    if event["event_type"] == MESSAGE_RECEIVED {
        event
            .entry("input")
            .or_insert_with(|| json!({"text": "hello"}));
    }
    Ok(Value::Object(event))
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
