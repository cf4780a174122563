//! Commands of `runnel`. All support `--json`.

mod agents;
mod backup;
mod budgets;
mod check_config;
mod conform;
mod conversations;
mod dev_command;
mod endpoints;
mod event_body;
mod explain;
mod extract_text;
mod facts;
mod gateway;
#[cfg(feature = "graph")]
mod graph;
mod health;
mod help;
mod ids;
mod interactions;
mod kb;
mod keys;
mod migrate_config;
mod openapi;
mod output;
mod process_hardening;
mod runs;
mod send;
mod serve;
mod table;
mod token;
mod version;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::{FromArgMatches as _, Parser, Subcommand};

use crate::app::embedded_file;
use crate::config::{Config, ConfigErrors};

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
    /// Send a message and follow its run. Without a text at a terminal: a chat.
    Send(send::SendArguments),
    /// List, show, watch, cancel and retry runs.
    #[command(subcommand)]
    Runs(runs::RunsCommand),
    /// List and show conversations.
    #[command(subcommand)]
    Conversations(conversations::ConversationsCommand),
    /// List and answer questions of runs.
    #[command(subcommand)]
    Interactions(interactions::InteractionsCommand),
    /// List, show, enable, disable and delete agents.
    #[command(subcommand)]
    Agents(agents::AgentsCommand),
    /// List and refresh runner endpoints.
    #[command(subcommand)]
    Endpoints(endpoints::EndpointsCommand),
    /// List the budgets, what is used and left of them, and when they reset.
    Budgets(budgets::BudgetsArguments),
    /// Explain which agent would get an event, and what its run could use. Posts nothing.
    Explain(explain::ExplainArguments),
    /// Add documents to knowledge bases, and search them.
    #[command(subcommand)]
    Kb(kb::KbCommand),
    /// Check, render or run an action graph. Needs no gateway and no model.
    #[cfg(feature = "graph")]
    #[command(subcommand)]
    Graph(graph::GraphCommand),
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

/// Location of the configuration.
#[derive(clap::Args)]
struct ConfigArgument {
    /// The configuration file. Default: `runnel.toml` in the working directory if it exists, else built-in
    /// defaults.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigArgument {
    fn path(&self) -> Option<PathBuf> {
        // Only the working directory is searched: a file of a parent would be used by surprise.
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
                settings.database.display_url()
            ));
        }
        Ok(settings)
    }

    /// The same for a command that reads or changes what a database has: a missing file is an error.
    fn load_for_existing_database(&self) -> anyhow::Result<Config> {
        let settings = self.load_for_database()?;
        // SQLite would create the file, and the command would act on an empty database.
        if let Some(file) = embedded_file(&settings.database.url)
            && !file.exists()
        {
            bail!(
                "there is no database at {}: start `runnel serve` or `runnel dev` first, or name its configuration \
                 by --config",
                file.display()
            );
        }
        Ok(settings)
    }
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
    if version {
        version::print(verbose, json);
        return ExitCode::SUCCESS;
    }
    let Some(command) = command else {
        output::fault("a command is missing; `runnel --help` lists them");
        return ExitCode::from(2);
    };
    let outcome = match command {
        Command::Dev(arguments) => Box::pin(dev_command::dev(arguments, json)).await,
        Command::Serve(arguments) => Box::pin(serve::serve(&arguments, json)).await,
        Command::CheckConfig(arguments) => {
            Box::pin(check_config::check_config(&arguments, json)).await
        }
        Command::Health(arguments) => health::health(&arguments, json).await,
        Command::MigrateConfig(arguments) => migrate_config::migrate_config(&arguments, json).await,
        Command::Openapi(arguments) => openapi::openapi(&arguments),
        Command::Token(command) => token::token(command, json).await,
        Command::Workspace(command) => workspace::workspace(command, json).await,
        Command::Keys(command) => keys::keys(command, json).await,
        Command::Send(arguments) => Box::pin(send::send(arguments, json)).await,
        Command::Runs(command) => Box::pin(runs::runs(command, json)).await,
        Command::Conversations(command) => conversations::conversations(command, json).await,
        Command::Interactions(command) => Box::pin(interactions::interactions(command, json)).await,
        Command::Agents(command) => agents::agents(command, json).await,
        Command::Endpoints(command) => endpoints::endpoints(command, json).await,
        Command::Budgets(arguments) => budgets::budgets(arguments, json).await,
        Command::Backup(arguments) => backup::backup(arguments, json).await,
        Command::Completions(arguments) => Ok(help::completions(&arguments)),
        Command::Man(arguments) => help::man(&arguments),
        Command::Explain(arguments) => explain::explain(arguments, json).await,
        Command::Kb(command) => kb::kb(command, json).await,
        #[cfg(feature = "graph")]
        Command::Graph(command) => Box::pin(graph::graph(command, json)).await,
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
