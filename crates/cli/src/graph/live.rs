//! Runs a graph by an agent of a gateway.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Map, Value, json};

use crate::gateway::GatewayArguments;
use crate::graph::read::read_model_output;
use crate::graph::{GraphArguments, script};
use crate::output::OutputFormat;
use crate::send;

/// Type of the event that the protocol agent runs.
const GRAPH_RUN: &str = "graph.run";
const USAGE: u8 = 2;

#[derive(clap::Args)]
pub struct RunGraphArguments {
    #[command(flatten)]
    pub(super) graph: GraphArguments,
    #[command(flatten)]
    pub(super) live: LiveArguments,
}

#[derive(clap::Args)]
pub(super) struct LiveArguments {
    /// Post the graph to a gateway as an event of type `graph.run`, and follow its run: with the tools, rights and
    /// approvals of the agent that takes the event.
    #[arg(long)]
    pub(super) live: bool,
    /// The conversation of the event.
    #[arg(long, value_name = "ID", default_value = "dev", requires = "live")]
    conversation: String,
    /// A value for `input:event#/data/inputs/NAME`. May be repeated.
    #[arg(long = "input", value_name = "NAME=VALUE", requires = "live")]
    inputs: Vec<String>,
    #[command(flatten)]
    gateway: GatewayArguments,
}

/// Posts the graph and follows its run. Exit code 0: the run completed.
pub(super) async fn run_live(
    arguments: RunGraphArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let RunGraphArguments { graph, live } = arguments;
    let declaration = script::body(&read_model_output(&graph.file)?);
    if !declaration.is_object() {
        bail!("{} declares no graph", graph.file.display());
    }
    let inputs = inputs(&live.inputs)?;
    let Some(gateway) = live.gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    let event = json!({
        "event_type": GRAPH_RUN,
        "conversation": {"conversation_id": live.conversation},
        "data": {"declaration": declaration, "inputs": inputs},
    });
    let Value::Object(event) = event else {
        bail!("the event is no object");
    };
    send::post(&gateway, event, format, send::OnBusy::Wait).await
}

/// Values that are JSON keep their type; others are texts.
fn inputs(given: &[String]) -> anyhow::Result<Map<String, Value>> {
    let mut inputs = Map::new();
    for one in given {
        let Some((name, value)) = one.split_once('=') else {
            bail!("--input {one}: write NAME=VALUE");
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        inputs.insert(name.to_owned(), value);
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_keep_json_types() {
        let given = ["n=3", "city=Oslo", "list=[1]", "empty="].map(str::to_owned);
        let found = inputs(&given).unwrap();
        assert_eq!(
            Value::Object(found),
            json!({"n": 3, "city": "Oslo", "list": [1], "empty": ""})
        );
        assert!(inputs(&["city".to_owned()]).is_err());
    }
}
