//! `runnel dev`: arguments and output.

mod banner;
mod lines;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use crate::cli::process_hardening;
use crate::dev::{
    self, DevNote, DevOptions, ModelPreference, Playground, SidecarArgs, USUAL_PORTS,
};
use cli::output::{self, OutputFormat};
use telemetry::LogFormat;

/// Log filter without `-v` and `-q`. The output has lines of its own for ended runs and for runners.
const BESIDE_LINES: &str = "warn,runs::finish=error,runs::discovery=error";
/// Log filter of `-q`. The output has lines of its own for runners.
const QUIET: &str = "warn,runs::discovery=error";

#[derive(clap::Args)]
#[command(after_help = "\
The model: OPENAI_API_KEY, OPENAI_BASE_URL and OPENAI_MODEL name one as they do for OpenAI's own clients. Without
a key and a URL, the first chat model of a runnel.toml here is taken. Without one, a script answers.

The settings, each above the one before: the generated ones (runnel-data/dev.toml), runnel.toml without its sections
about a deployment (server, auth, database, bus, metrics, telemetry, host_api, ledger, artifacts, builtin_runners),
runnel-dev.toml, and variables RUNNEL__SECTION__KEY.")]
pub(super) struct DevArguments {
    /// Directory for database, settings, keys and `dev.json`.
    #[arg(long, value_name = "DIRECTORY", default_value = "./runnel-data")]
    data_dir: PathBuf,
    /// Listening address; port 0 selects a free port. Default: `server.listen` of the settings, else 127.0.0.1:8700.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// A runner of your own, by its base URL. The first one gets the messages. A single one may have the secret of
    /// `RUNNER_SECRET`. May be repeated.
    #[arg(long, value_name = "URL")]
    runner: Vec<String>,
    /// Use the scripted model even if a real model is configured.
    #[arg(long)]
    script: bool,
    /// Leave the runnel.toml of this directory out.
    #[arg(long)]
    no_config: bool,
    /// Ports of this machine at which a model server is looked for.
    #[arg(long, value_name = "PORT", value_delimiter = ',', default_values_t = USUAL_PORTS)]
    model_ports: Vec<u16>,
    #[command(flatten)]
    sidecars: SidecarArgs,
    #[command(flatten)]
    amount: OutputAmount,
}

#[derive(clap::Args)]
struct OutputAmount {
    /// Print the complete log. `RUNNEL_LOG` sets another filter.
    #[arg(long, short)]
    verbose: bool,
    /// Print the banner, changes of your runners, warnings (such as failed runs) and errors, but no line for each run.
    #[arg(long, short, conflicts_with = "verbose")]
    quiet: bool,
}

impl OutputAmount {
    fn log_filter(&self, format: OutputFormat) -> &'static str {
        match (self.quiet, format.is_json()) {
            (true, true) => "warn",
            (true, false) => QUIET,
            (false, true) => "info",
            (false, false) if self.verbose => "info",
            (false, false) => BESIDE_LINES,
        }
    }
}

/// Starts the playground and serves it until a stop signal.
pub(super) async fn dev(arguments: DevArguments, format: OutputFormat) -> anyhow::Result<ExitCode> {
    let log_format = if format.is_json() {
        LogFormat::Json
    } else {
        LogFormat::Text
    };
    telemetry::init(log_format, arguments.amount.log_filter(format));
    let print = if arguments.amount.quiet {
        print_quietly
    } else {
        print
    };
    // Before the data directory and secrets are opened.
    process_hardening::harden();
    let building = dev::build(DevOptions {
        data_dir: arguments.data_dir,
        listen: arguments.listen,
        model: if arguments.script {
            ModelPreference::Script
        } else {
            ModelPreference::Any
        },
        model_ports: arguments.model_ports,
        sidecars: arguments.sidecars,
        runners: arguments.runner,
        reads_own_file: !arguments.no_config,
    });
    let playground = Box::pin(building).await?;
    if format.is_json() {
        // With JSON, standard output has one document, which a program can parse.
        output::document(&to_json(&playground));
        Box::pin(playground.serve(|_| {})).await?;
    } else {
        output::line(&banner::text(&playground));
        Box::pin(playground.serve(print)).await?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(note: DevNote) {
    output::remark(&match note {
        DevNote::RunEnded(run) => lines::ended(&run),
        DevNote::Runner(text) => lines::runner(&text),
    });
}

fn print_quietly(note: DevNote) {
    if let DevNote::Runner(_) = note {
        print(note);
    }
}

fn to_json(playground: &Playground) -> serde_json::Value {
    let Playground {
        url,
        key,
        agent,
        model,
        tools,
        knowledge_base,
        runners,
        ..
    } = playground;
    let (agent, runner) = agent.clone().unzip();
    json!({"url": url, "api_key": key, "agent": agent, "runner_id": runner, "model": model, "tools": tools,
        "knowledge_base": knowledge_base, "runners": runners})
}
