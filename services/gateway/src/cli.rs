//! Commands of `runnel`. All support `--json`.

mod check_config;
mod conform;
mod dev_command;
mod explain;
mod extract_text;
mod gateway;
mod graph;
mod health;
mod kb;
mod keys;
mod migrate_config;
mod openapi;
mod output;
mod process_hardening;
mod send;
mod serve;
mod token;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{Config, ConfigErrors};

/// The gateway for agent runs over plain HTTP.
#[derive(Parser)]
#[command(name = "runnel", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print JSON for programs.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Start a playground: an agent with a model, a tool and a knowledge base, in one process.
    Dev(dev_command::DevArguments),
    /// Serve the gateway as configured.
    Serve(serve::ServeArguments),
    /// Check the configuration and report all faults.
    CheckConfig(check_config::CheckConfigArguments),
    /// Check whether a gateway accepts new runs. Exit code 0: yes.
    Health(health::HealthArguments),
    /// Print an `OpenAPI` document.
    Openapi(openapi::OpenapiArguments),
    /// Manage API keys in the configured database.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Manage workspaces in the configured database.
    #[command(subcommand)]
    Workspace(workspace::WorkspaceCommand),
    /// Convert `LangBot` pipelines or a database into agents, runner endpoints, models and tools. Prints them
    /// unless `--write` is given.
    MigrateConfig(migrate_config::MigrateArguments),
    /// Manage the keys that sign run tokens and cursors, in the configured database.
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Send a message and follow its run.
    Send(send::SendArguments),
    /// Explain which agent would get an event and why, and which resources its run could use. Posts nothing.
    Explain(explain::ExplainArguments),
    /// Add documents to knowledge bases, and search them.
    #[command(subcommand)]
    Kb(kb::KbCommand),
    /// Check, render or run an action graph that a model declared. Needs no gateway and no model.
    #[command(subcommand)]
    Graph(graph::GraphCommand),
    /// Extract the text of a document from standard input. The gateway runs this command in a child process.
    #[command(name = knowledge::extract::COMMAND, hide = true)]
    ExtractText(extract_text::ExtractArguments),
    /// List the failpoints of this binary, one per line.
    #[command(hide = true)]
    Failpoints,
    /// Test a runner endpoint against the runner contract.
    Conform(Box<conform::ConformArguments>),
}

/// Location of the configuration.
#[derive(clap::Args)]
struct ConfigArgument {
    /// The configuration file. Default: `runnel.toml` in the working directory if it exists, else built-in
    /// defaults.
    #[arg(long, short)]
    config: Option<PathBuf>,
}

impl ConfigArgument {
    fn path(&self) -> Option<PathBuf> {
        let default = || Some(PathBuf::from("runnel.toml")).filter(|path| path.exists());
        self.config.clone().or_else(default)
    }

    /// Settings of a command that uses the database directly. Without a file it prints the location of the
    /// database, since a wrong working directory would silently create a new one.
    fn load_for_database(&self) -> Result<Config, ConfigErrors> {
        let path = self.path();
        let settings = Config::load(path.as_deref())?;
        if path.is_none() {
            output::remark(&format!(
                "there is no runnel.toml here and no --config: the database is {}",
                settings.database.place()
            ));
        }
        Ok(settings)
    }
}

/// Runs the command. Exit codes: 0 success; 1 failure; 2 wrong usage.
pub async fn run() -> ExitCode {
    let Cli { command, json } = Cli::parse();
    let outcome = match command {
        Command::Dev(arguments) => dev_command::dev(arguments, json).await,
        Command::Serve(arguments) => serve::serve(&arguments, json).await,
        Command::CheckConfig(arguments) => check_config::check_config(&arguments, json).await,
        Command::Health(arguments) => health::health(&arguments, json).await,
        Command::MigrateConfig(arguments) => migrate_config::migrate_config(&arguments, json).await,
        Command::Openapi(arguments) => openapi::openapi(&arguments),
        Command::Token(command) => token::token(command, json).await,
        Command::Workspace(command) => workspace::workspace(command, json).await,
        Command::Keys(command) => keys::keys(command, json).await,
        Command::Send(arguments) => send::send(arguments, json).await,
        Command::Explain(arguments) => explain::explain(arguments, json).await,
        Command::Kb(command) => kb::kb(command, json).await,
        Command::Graph(command) => graph::graph(command, json),
        Command::ExtractText(arguments) => extract_text::extract_text(&arguments),
        Command::Failpoints => Ok(failpoints()),
        Command::Conform(arguments) => Ok(Box::pin(conform::conform(*arguments, json)).await),
    };
    outcome.unwrap_or_else(|error| {
        output::error(&error, json);
        ExitCode::FAILURE
    })
}

fn failpoints() -> ExitCode {
    for name in store::failpoint::NAMES {
        output::line(name);
    }
    ExitCode::SUCCESS
}
