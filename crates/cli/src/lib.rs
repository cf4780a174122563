//! Commands of `runnel` that need no gateway of their own: clients of a running one, and action graphs.
//!
//! The binary adds its own commands, which use [`output`] too.

pub mod dev_file;
pub mod output;

mod actions;
mod advice;
mod agents;
mod approvals;
mod budgets;
mod changes;
mod conversations;
mod endpoints;
mod event_body;
mod explain;
mod facts;
mod gateway;
#[cfg(feature = "graph")]
mod graph;
mod ids;
mod interactions;
mod kb;
mod lifetime;
mod limits;
mod login;
mod parse_toml;
mod pauses;
mod runs;
mod schedules;
mod send;
mod session_file;
mod sources;
mod table;
mod webhooks;

use std::process::ExitCode;

use clap::Subcommand;

use output::OutputFormat;

pub use ids::tail;
pub use lifetime::parse_lifetime;
pub use parse_toml::ParseToml;
pub use runs::{ACTIONS_FAILED, INCOMPLETE, waits_for};

/// A command of a client, with its arguments.
#[derive(Subcommand)]
pub enum ClientCommand {
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
    /// List the actions that runs request of their chat platform.
    #[command(subcommand)]
    Actions(actions::ActionsCommand),
    /// List and revoke approvals of tool calls.
    #[command(subcommand)]
    Approvals(approvals::ApprovalsCommand),
    /// List, show, enable, disable and delete agents, and advise on their least rights.
    #[command(subcommand)]
    Agents(agents::AgentsCommand),
    /// List and refresh runner endpoints.
    #[command(subcommand)]
    Endpoints(endpoints::EndpointsCommand),
    /// List the budgets and what is left of them, set and reset them.
    Budgets(budgets::BudgetsArguments),
    /// List and export administrative changes: who changed what.
    #[command(subcommand)]
    Changes(changes::ChangesCommand),
    /// Pause the runs of an agent, of a workspace or of all workspaces.
    Pause(pauses::PauseArguments),
    /// End a pause. Held runs are dispatched at a rate.
    Resume(pauses::ResumeArguments),
    /// List the pauses and the number of runs that wait.
    Pauses(pauses::PausesArguments),
    /// List the limits of keys, models and providers on the replica that answers.
    Limits(limits::LimitsArguments),
    /// List, show, run, pause and resume schedules.
    #[command(subcommand)]
    Schedules(schedules::SchedulesCommand),
    /// List sources of events, and try their filters.
    #[command(subcommand)]
    Sources(sources::SourcesCommand),
    /// List and test webhooks, list deliveries and send them again.
    #[command(subcommand)]
    Webhooks(webhooks::WebhooksCommand),
    /// Sign in with the identity provider of a gateway, for the commands after it.
    Login(login::LoginArguments),
    /// Delete the session of `runnel login` on this machine.
    Logout,
    /// Explain which agent would get an event, and what its run could use. Posts nothing.
    Explain(explain::ExplainArguments),
    /// Add documents to knowledge bases, and search them.
    #[command(subcommand)]
    Kb(kb::KbCommand),
    /// Check, render or run an action graph. Needs no gateway and no model.
    #[cfg(feature = "graph")]
    #[command(subcommand)]
    Graph(graph::GraphCommand),
}

impl ClientCommand {
    /// Runs the command. `parse_script` reads the tools of `graph` in TOML. Exit codes: 0 success; 1 failure; 2 wrong
    /// usage; 130 ended by Ctrl-C.
    pub async fn run(
        self,
        parse_script: ParseToml,
        format: OutputFormat,
    ) -> anyhow::Result<ExitCode> {
        #[cfg(not(feature = "graph"))]
        let _ = parse_script;
        match self {
            Self::Send(arguments) => Box::pin(send::send(arguments, format)).await,
            Self::Runs(command) => Box::pin(runs::runs(command, format)).await,
            Self::Conversations(command) => conversations::conversations(command, format).await,
            Self::Interactions(command) => {
                Box::pin(interactions::interactions(command, format)).await
            }
            Self::Actions(command) => actions::actions(command, format).await,
            Self::Approvals(command) => approvals::approvals(command, format).await,
            Self::Agents(command) => agents::agents(command, format).await,
            Self::Endpoints(command) => endpoints::endpoints(command, format).await,
            Self::Budgets(arguments) => Box::pin(budgets::budgets(arguments, format)).await,
            Self::Changes(command) => changes::changes(command, format).await,
            Self::Pause(arguments) => pauses::pause(arguments, format).await,
            Self::Resume(arguments) => pauses::resume(arguments, format).await,
            Self::Pauses(arguments) => pauses::pauses(arguments, format).await,
            Self::Limits(arguments) => limits::limits(arguments, format).await,
            Self::Schedules(command) => Box::pin(schedules::schedules(command, format)).await,
            Self::Sources(command) => sources::sources(command, format).await,
            Self::Webhooks(command) => Box::pin(webhooks::webhooks(command, format)).await,
            Self::Login(arguments) => Box::pin(login::login(arguments, format)).await,
            Self::Logout => login::logout(),
            Self::Explain(arguments) => explain::explain(arguments, format).await,
            Self::Kb(command) => kb::kb(command, format).await,
            #[cfg(feature = "graph")]
            Self::Graph(command) => Box::pin(graph::graph(command, parse_script, format)).await,
        }
    }
}
