//! `runnel migrate-config`: `LangBot` pipelines as agents and runner endpoints of `runnel.toml`.

mod egress;
mod langbot_tables;
mod read;
mod report;
mod secrets;
mod write;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use ::egress::parse_plain_url;
use clap::ValueEnum;
use langbot::migrate::{
    LocalAgentTarget, Migration, MigrationDocument, MigrationOutcome, MigrationTable,
    MigrationTarget, RunnerIds, SecretValue, Variable, migrate, secret_values,
};
use serde_json::json;

use cli::output::{self, OutputFormat};
use read::read_source;
use report::report;
use secrets::write_secrets;
use write::{MergedFile, write};

#[derive(clap::Args)]
pub(super) struct MigrateArguments {
    /// JSON or TOML (a pipeline, a list of them, or an export with several), responses of LangBot's API, an
    /// SQLite database file, or `postgres://…` (`env:NAME` and `file:PATH` keep its password off the command
    /// line).
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<String>,
    /// Add missing tables to this file. Existing ones are not changed.
    #[arg(long, value_name = "PATH")]
    write: Option<PathBuf>,
    /// The format of runner ids: `plugin:langbot-team/DifyAgent/default` or `plugin:langbot/dify-agent/default`.
    #[arg(long, value_enum, default_value = "newer")]
    ids: RunnerIdFormat,
    /// The replacement of LangBot's local agent: its plugin, or Runnel's own,
    /// `plugin:runnel/local-agent/default`.
    #[arg(long, value_enum, default_value = "langbot")]
    local_agent: LocalAgentChoice,
    /// URL of `runnel-connectors serve --ids langbot`, for example `http://127.0.0.1:9120`. It serves the
    /// runners that call other services.
    #[arg(long, value_name = "URL", value_parser = address)]
    connectors: Option<String>,
    /// URL of `langbot-bridge`, for example `http://127.0.0.1:9200`. It serves runner plugins for LangBot.
    #[arg(long, value_name = "URL", value_parser = address)]
    bridge: Option<String>,
    /// Write the secrets of the sources to this file as variables, `NAME=value`, with mode 0600. Existing ones are
    /// not changed.
    #[arg(long, value_name = "FILE")]
    secrets: Option<PathBuf>,
    /// The workspace to read from a database with several.
    #[arg(long, value_name = "UUID")]
    workspace: Option<String>,
}

fn address(text: &str) -> Result<String, String> {
    let url = parse_plain_url(text).map_err(|error| error.to_string())?;
    if url.query().is_some() {
        return Err("must have no query".to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

#[derive(Clone, Copy, ValueEnum)]
enum LocalAgentChoice {
    Langbot,
    Runnel,
}

#[derive(Clone, Copy, ValueEnum)]
enum RunnerIdFormat {
    Newer,
    Older,
}

/// Plans, prints, and writes if requested. Fails if a pipeline or another row could not be migrated.
pub(super) async fn migrate_config(
    arguments: &MigrateArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let (mut migration, secrets) = plan(arguments).await?;
    // Without these rules the gateway would refuse the migrated addresses.
    let allow = egress::lines_for_tables(&migration.tables)?;
    if !allow.is_empty() {
        migration.tables.insert(0, MigrationTable::egress(&allow));
    }
    let upstream = egress::lines_for(migration.upstream.iter().map(String::as_str))?;
    let written = match &arguments.write {
        None => MergedFile::nowhere(&migration.tables),
        Some(path) => write(path, &migration.tables)?,
    };
    let in_file = arguments.secrets.as_deref();
    let in_file = in_file.map(|path| write_secrets(path, &secrets).map(|written| (path, written)));
    let in_file = in_file.transpose()?;
    // An existing file has a master key, or a reference of its own.
    if written.outcome == "created" {
        migration.variables.push(Variable {
            name: "RUNNEL_MASTER_KEY".to_owned(),
            from: None,
            value: None,
            read_by: "the gateway: 32 random bytes as hex, for example openssl rand -hex 32"
                .to_owned(),
        });
    }
    if format.is_json() {
        let mut document = json!(migration);
        document["toml"] = json!(written.text);
        document["connectors"] = json!({"allow": upstream});
        if let Some((path, written)) = &in_file {
            document["secrets"] = json!(written);
            document["secrets"]["path"] = json!(path);
        }
        document["write"] = json!({
            "path": arguments.write,
            "outcome": written.outcome,
            "added": written.added,
            "kept": written.differing,
        });
        output::document(&document);
    } else {
        let secrets = in_file.map_or(String::new(), |(path, written)| written.summary(path));
        let start = start_of_connectors(arguments, &upstream);
        // Remarks go to standard error: standard output is the TOML, for a redirect.
        output::remark(&(report(&migration) + &secrets + &start));
        match &arguments.write {
            None => output::piece(&written.text),
            Some(path) => output::line(&written.summary(path)),
        }
    }
    Ok(if is_blocked(&migration) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn is_blocked(migration: &Migration) -> bool {
    let pipelines = migration.pipelines.iter().map(|one| one.outcome);
    let resources = migration.resources.iter().map(|one| one.outcome);
    pipelines
        .chain(resources)
        .any(|outcome| outcome == MigrationOutcome::Blocked)
}

/// The command that starts the connectors, with `--allow` for services without public HTTPS.
fn start_of_connectors(arguments: &MigrateArguments, upstream: &[String]) -> String {
    let mut text = String::new();
    if arguments.connectors.is_some() {
        text.push_str("\nStart the connectors: runnel-connectors serve --ids langbot");
        for line in upstream {
            let _ = write!(text, " --allow {line}");
        }
        text.push('\n');
    }
    text
}

/// The migration, and the secrets that variables replace.
async fn plan(arguments: &MigrateArguments) -> anyhow::Result<(Migration, Vec<SecretValue>)> {
    let mut read = Vec::new();
    for source in &arguments.sources {
        read.push(read_source(source, arguments.workspace.as_deref()).await?);
    }
    let documents: Vec<_> = read
        .iter()
        .map(|(file, value)| MigrationDocument { file, value })
        .collect();
    let to = MigrationTarget {
        ids: match arguments.ids {
            RunnerIdFormat::Newer => RunnerIds::Newer,
            RunnerIdFormat::Older => RunnerIds::Older,
        },
        local_agent: match arguments.local_agent {
            LocalAgentChoice::Langbot => LocalAgentTarget::Langbot,
            LocalAgentChoice::Runnel => LocalAgentTarget::Runnel,
        },
        connectors: arguments.connectors.as_deref(),
        bridge: arguments.bridge.as_deref(),
    };
    let migration = migrate(&documents, to).map_err(|faults| {
        let lines: Vec<_> = faults
            .iter()
            .map(|(file, fault)| format!("{file}#{} {}", fault.pointer, fault.message))
            .collect();
        anyhow::anyhow!(lines.join("\n"))
    })?;
    let secrets = secret_values(&documents, &migration);
    Ok((migration, secrets))
}
