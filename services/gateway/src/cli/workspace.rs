//! `runnel workspace`: workspaces, directly in the configured database.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Subcommand;
use protocol::principal::PrincipalKind;
use protocol::workspace::WorkspaceSpec;
use serde_json::json;
use store::{ChangeStamp, Migrations, Store, WorkspaceRecord};
use tokio_util::task::TaskTracker;

use crate::app::open_store;
use crate::cli::config_argument::ConfigArgument;
use cli::output::{self, OutputFormat};
use clock::Clock;
use keys::api_key::{issue_workspace, shown_workspace};

/// Number of workspaces per query.
const PAGE: u64 = 100;

#[derive(Subcommand)]
pub(super) enum WorkspaceCommand {
    /// Create a workspace with an API key of role admin. The key is printed once and stored only as a hash.
    Create {
        /// Its permanent id: 1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit.
        id: String,
        /// A display name. Default: the id.
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        config: ConfigArgument,
    },
    /// List the workspaces.
    List {
        #[command(flatten)]
        config: ConfigArgument,
    },
}

/// Runs a `workspace` command.
pub(super) async fn workspace(
    command: WorkspaceCommand,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let (WorkspaceCommand::Create { config, .. } | WorkspaceCommand::List { config }) = &command;
    let settings = if matches!(command, WorkspaceCommand::Create { .. }) {
        config.load_for_database()?
    } else {
        config.load_for_existing_database()?
    };
    let spec = match command {
        WorkspaceCommand::Create { id, name, .. } => Some(WorkspaceSpec { id, name }),
        WorkspaceCommand::List { .. } => None,
    };
    if let Some((pointer, message)) = spec.as_ref().and_then(WorkspaceSpec::fault) {
        bail!(
            "the workspace's {} {message}",
            pointer.trim_start_matches('/')
        );
    }
    let store = open_store(&settings, &TaskTracker::new(), Migrations::New).await?;
    let done = match spec {
        Some(spec) => create(&store, &spec, format).await,
        None => list(&store, format).await,
    };
    // Also after an error, so that SQLite removes its write-ahead log.
    store.close().await;
    done.map(|()| ExitCode::SUCCESS)
}

async fn create(store: &Store, spec: &WorkspaceSpec, format: OutputFormat) -> anyhow::Result<()> {
    let stamp = ChangeStamp::of(PrincipalKind::Cli, Clock::system().now_ms());
    let created = issue_workspace(store, &stamp, spec).await?;
    let created = created.ok_or_else(|| {
        anyhow!(
            "there is a workspace {id} already; take another id, or make a key of it with \
             `runnel token create --workspace {id} --role admin --name …`",
            id = spec.id
        )
    })?;
    if format.is_json() {
        output::document(&json!(created));
    } else {
        output::line(&created.api_key.key);
        output::remark(&format!(
            "workspace {} was made; this is its first API key, of role admin",
            spec.id
        ));
    }
    Ok(())
}

async fn list(store: &Store, format: OutputFormat) -> anyhow::Result<()> {
    let mut all: Vec<WorkspaceRecord> = Vec::new();
    loop {
        let after = all.last().map(|workspace| workspace.id.to_string());
        let page = store
            .access()
            .list_workspaces(after.as_deref(), PAGE)
            .await?;
        all.extend(page.items);
        if !page.has_more {
            break;
        }
    }
    if format.is_json() {
        let items: Vec<_> = all.into_iter().map(shown_workspace).collect();
        output::document(&json!({ "items": items }));
        return Ok(());
    }
    output::line(&format!("{:36}  {:20}  name", "id", "created"));
    for workspace in all {
        let id = workspace.id.as_str();
        let created = match workspace.created_at {
            // Created by a migration.
            0 => "-".to_owned(),
            at => output::time(at),
        };
        output::line(&format!("{id:36}  {created:20}  {}", workspace.name));
    }
    Ok(())
}
