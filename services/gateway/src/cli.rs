//! Commands of `runnel`. All support `--json`. The crate `cli` has those of a client.

mod backup;
mod check_config;
mod config_argument;
mod conform;
mod dev_command;
mod extract_text;
mod health;
mod help;
mod keys;
mod migrate_config;
mod openapi;
mod process_hardening;
mod serve;
mod token;
mod version;
mod workspace;

use std::path::Path;
use std::process::ExitCode;

use clap::{FromArgMatches as _, Parser, Subcommand};
use serde_json::Value;

use crate::config::parse_toml;
use cli::ClientCommand;
use cli::output::{self, OutputFormat};

/// The gateway for agent runs over plain HTTP.
#[derive(Parser)]
#[command(name = "runnel", about, arg_required_else_help = true, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print JSON for programs.
    #[arg(long, global = true)]
    json: bool,
    /// Print the version.
    #[arg(long, short = 'V')]
    version: bool,
    /// With --version: print features, platform and profile too.
    #[arg(long, requires = "version")]
    verbose: bool,
}

const AFTER_HELP: &str = "\
Environment:
  RUNNEL_URL, RUNNEL_API_KEY  the gateway of commands with --url and --key
  RUNNEL_LOG                  log filter, such as info,gateway=debug
  RUNNEL__SECTION__KEY        a setting of the configuration, such as RUNNEL__SERVER__LISTEN
  NO_COLOR, TERM=dumb         no colours

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.";

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
    /// Print an OpenAPI document.
    Openapi(openapi::OpenapiArguments),
    /// Manage API keys in the configured database.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Manage workspaces in the configured database.
    #[command(subcommand)]
    Workspace(workspace::WorkspaceCommand),
    /// Convert LangBot pipelines or a database into agents, endpoints, models and tools. Prints them
    /// unless `--write` is given.
    MigrateConfig(migrate_config::MigrateArguments),
    /// Manage the keys that sign run tokens and cursors, in the configured database.
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    #[command(flatten)]
    Client(ClientCommand),
    /// Copy the SQLite database and the artifacts into one file, while the gateway runs.
    Backup(backup::BackupArguments),
    /// Print a completion script for a shell.
    Completions(help::CompletionsArguments),
    /// Print the manual page, or write those of all commands.
    Man(help::ManArguments),
    /// Extract the text of a document from standard input. The gateway runs this command in a child process.
    #[command(name = knowledge::extract::COMMAND, hide = true)]
    ExtractText(extract_text::ExtractArguments),
    /// List the failpoints of this binary, one per line.
    #[command(hide = true)]
    Failpoints,
    /// Test a runner endpoint against the runner contract.
    Conform(Box<conform::ConformArguments>),
}

/// Runs the command. Exit codes: 0 success; 1 failure; 2 wrong usage.
pub async fn run() -> ExitCode {
    let matches = help::command_for_terminal().get_matches();
    let Cli {
        command,
        json,
        version,
        verbose,
    } = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let format = OutputFormat::from(json);
    if version {
        if verbose {
            version::print_details(format);
        } else {
            version::print(format);
        }
        return ExitCode::SUCCESS;
    }
    let Some(command) = command else {
        output::fault("a command is missing; `runnel --help` lists them");
        return ExitCode::from(2);
    };
    let outcome = match command {
        Command::Dev(arguments) => Box::pin(dev_command::dev(arguments, format)).await,
        Command::Serve(arguments) => Box::pin(serve::serve(&arguments, format)).await,
        Command::CheckConfig(arguments) => {
            Box::pin(check_config::check_config(&arguments, format)).await
        }
        Command::Health(arguments) => health::health(&arguments, format).await,
        Command::MigrateConfig(arguments) => {
            migrate_config::migrate_config(&arguments, format).await
        }
        Command::Openapi(arguments) => openapi::openapi(&arguments),
        Command::Token(command) => token::token(command, format).await,
        Command::Workspace(command) => workspace::workspace(command, format).await,
        Command::Keys(command) => keys::keys(command, format).await,
        Command::Client(command) => Box::pin(command.run(parse_script, format)).await,
        Command::Backup(arguments) => backup::backup(arguments, format).await,
        Command::Completions(arguments) => Ok(help::completions(&arguments)),
        Command::Man(arguments) => help::man(&arguments),
        Command::ExtractText(arguments) => extract_text::extract_text(&arguments),
        Command::Failpoints => Ok(failpoints()),
        Command::Conform(arguments) => Ok(Box::pin(conform::conform(*arguments, format)).await),
    };
    outcome.unwrap_or_else(|error| {
        output::error(&error, format);
        ExitCode::FAILURE
    })
}

/// Parses a script of `runnel graph` like the configuration, so that syntax errors read the same.
fn parse_script(path: &Path, text: &str) -> anyhow::Result<Value> {
    parse_toml(path, text).map_err(|fault| anyhow::anyhow!("{fault}"))
}

fn failpoints() -> ExitCode {
    for name in store::failpoint::NAMES {
        output::line(name);
    }
    ExitCode::SUCCESS
}
