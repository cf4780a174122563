//! `runnel dev`: what it prints.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use crate::cli::output;
use crate::dev::{self, Playground};
use crate::telemetry;

#[derive(clap::Args)]
pub(super) struct DevArguments {
    /// Where database, keys and `dev.json` are kept.
    #[arg(long, default_value = "./runnel-data")]
    data_dir: PathBuf,
    /// Where to listen; port 0 takes any free one.
    #[arg(long, default_value = "127.0.0.1:8700")]
    listen: SocketAddr,
}

/// Starts the playground and serves it until it is told to stop.
pub(super) async fn dev(arguments: DevArguments, json: bool) -> anyhow::Result<ExitCode> {
    telemetry::init(json);
    let playground = dev::build(&arguments.data_dir, arguments.listen).await?;
    if json {
        let Playground {
            url,
            key,
            agent,
            runner,
            ..
        } = &playground;
        output::line(
            &json!({"url": url, "api_key": key, "agent": agent, "runner_id": runner}).to_string(),
        );
    } else {
        output::line(&greeting(&playground, &arguments.data_dir));
    }
    playground.serve().await?;
    Ok(ExitCode::SUCCESS)
}

fn greeting(playground: &Playground, data_dir: &std::path::Path) -> String {
    let Playground {
        url,
        key,
        agent,
        runner,
        ..
    } = playground;
    let version = env!("CARGO_PKG_VERSION");
    let data = data_dir.display();
    let body = r#"{"event_type":"message.received","input":{"text":"hello"},"conversation":{"conversation_id":"dev"}}"#;
    format!(
        "runnel {version}  {url}\n\
         data     {data}\n\
         agent    {agent} → {runner}\n\
         key      {key}\n\
         try      curl -N {url}/v1/events -H 'Authorization: Bearer {key}' \\\n           \
         -H 'Content-Type: application/json' -H 'Accept: text/event-stream' \\\n           \
         -d '{body}'"
    )
}
