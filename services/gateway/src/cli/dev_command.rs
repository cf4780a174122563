//! `runnel dev`: arguments and output.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use crate::cli::{output, process_hardening};
use crate::dev::{self, ConnectorArgs, ModelOrigin, ModelPreference, Playground};

#[derive(clap::Args)]
#[command(after_help = "\
The model: OPENAI_API_KEY, OPENAI_BASE_URL and OPENAI_MODEL name one as they do for OpenAI's own clients. Without
a key and a URL, the first chat model of a runnel.toml here is taken, and nothing else of that file. Without one, a
script answers.")]
pub(super) struct DevArguments {
    /// Directory for database, settings, keys and `dev.json`.
    #[arg(long, default_value = "./runnel-data")]
    data_dir: PathBuf,
    /// Listening address; port 0 selects a free port.
    #[arg(long, default_value = "127.0.0.1:8700")]
    listen: SocketAddr,
    /// Use the scripted model even if a real model is configured.
    #[arg(long)]
    script: bool,
    /// Also serve a locally installed coding agent as an agent of this name: claude-code, codex, gemini-cli,
    /// kimi-code, opencode or qwen-code. May be repeated.
    #[arg(long, value_name = "NAME")]
    harness: Vec<String>,
    #[command(flatten)]
    connectors: ConnectorArgs,
}

/// Starts the playground and serves it until a stop signal.
pub(super) async fn dev(arguments: DevArguments, json: bool) -> anyhow::Result<ExitCode> {
    telemetry::init(json);
    process_hardening::harden();
    let wanted = if arguments.script {
        ModelPreference::Script
    } else {
        ModelPreference::Any
    };
    let DevArguments {
        data_dir,
        listen,
        harness,
        connectors,
        ..
    } = &arguments;
    let building = dev::build(data_dir, *listen, wanted, harness, connectors);
    let playground = Box::pin(building).await?;
    if json {
        let Playground {
            url,
            key,
            agent,
            runner,
            model,
            tools,
            knowledge_base,
            ..
        } = &playground;
        let told = json!({"url": url, "api_key": key, "agent": agent, "runner_id": runner,
            "model": model, "tools": tools, "knowledge_base": knowledge_base});
        output::document(&told);
    } else {
        output::line(&greeting(&playground, &arguments.data_dir));
    }
    playground.serve().await?;
    Ok(ExitCode::SUCCESS)
}

fn greeting(playground: &Playground, data_dir: &Path) -> String {
    let Playground {
        url,
        key,
        agent,
        runner,
        ..
    } = playground;
    let version = env!("CARGO_PKG_VERSION");
    let data = data_dir.display();
    let settings = playground.settings.display();
    let model = model(playground);
    let tools = playground.tools.join(", ");
    let base = &playground.knowledge_base;
    let passages = playground.passages;
    let harnesses = playground.harnesses.iter().map(|name| {
        format!(
            "coder    {name}: runnel send --conversation {name} \"Write a haiku into poem.txt\"\n"
        )
    });
    let connectors = playground.connectors.iter();
    let connectors = connectors
        .map(|name| format!("agent    {name}: runnel send --conversation {name} \"Hello\"\n"));
    let others: String = harnesses.chain(connectors).collect();
    let body = r#"{"event_type":"message.received","input":{"text":"What is Runnel?"},"conversation":{"conversation_id":"dev"}}"#;
    format!(
        "runnel {version}  {url}\n\
         data     {data}\n\
         settings {settings}\n\
         agent    {agent} → {runner}\n\
         planner  runnel send --conversation planner \"Put a note about Runnel on the board\"\n\
         model    {model}\n\
         tool     {tools}, by MCP\n\
         knows    {base}, a knowledge base of {passages} passages\n\
         {others}key      {key}\n\
         send     runnel send \"What is Runnel?\"\n\
         try      curl -N {url}/v1/events -H 'Authorization: Bearer {key}' \\\n           \
         -H 'Content-Type: application/json' -H 'Accept: text/event-stream' \\\n           \
         -d '{body}'"
    )
}

fn model(playground: &Playground) -> String {
    let model = &playground.model;
    match &playground.model_origin {
        ModelOrigin::Script { file } => format!(
            "none: a script answers, {}; OPENAI_API_KEY or OPENAI_BASE_URL brings a real one",
            file.display()
        ),
        ModelOrigin::Environment { base_url } => format!("{model} at {base_url}, by OPENAI_…"),
        ModelOrigin::File => format!("{model} of ./runnel.toml; nothing else of that file is read"),
    }
}
