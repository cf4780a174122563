//! `runnel token`: API keys, written to the configured database itself.

use std::process::ExitCode;

use anyhow::ensure;
use clap::{Subcommand, ValueEnum};
use protocol::id::WorkspaceId;
use serde_json::json;
use tokio_util::task::TaskTracker;

use crate::app::{DEFAULT_WORKSPACE, create_api_key, open_store};
use crate::cli::{ConfigArgument, output};
use crate::clock::Clock;
use crate::config::Config;

#[derive(Subcommand)]
pub(super) enum TokenCommand {
    /// Make an API key. It is printed once and kept only as a hash.
    Create {
        /// What the key may do.
        #[arg(long, value_enum)]
        role: Role,
        /// A name to know it by.
        #[arg(long)]
        name: String,
        #[command(flatten)]
        config: ConfigArgument,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Role {
    /// Everything a client may, and endpoints, runners, agents, catalog.
    Admin,
    /// Post events, read runs.
    Client,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Client => "client",
        }
    }
}

/// Runs a `token` command.
pub(super) async fn token(command: TokenCommand, json: bool) -> anyhow::Result<ExitCode> {
    let TokenCommand::Create { role, name, config } = command;
    ensure!(
        !name.is_empty() && name.len() <= 128,
        "--name must have 1 to 128 bytes"
    );
    let config = Config::load(config.path().as_deref())?;
    let tasks = TaskTracker::new();
    let store = open_store(&config.database.url, &tasks).await?;
    let workspace = WorkspaceId(DEFAULT_WORKSPACE.to_owned());
    let (id, key) =
        create_api_key(&store, &Clock::system(), &workspace, role.as_str(), &name).await?;
    store.close().await;
    if json {
        output::line(&json!({"id": id, "role": role.as_str(), "key": key}).to_string());
    } else {
        output::line(&key);
    }
    Ok(ExitCode::SUCCESS)
}
