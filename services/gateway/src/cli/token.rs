//! `runnel token`: API keys, directly in the configured database.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use domain::api_key::check_api_key;
use protocol::api_key::{ApiKeySpec, KeyRole};
use protocol::id::{DEFAULT_WORKSPACE, WorkspaceId};
use protocol::limiter::OwnLimits;
use protocol::principal::PrincipalKind;
use secrecy::ExposeSecret;
use serde_json::json;
use store::{ApiKeyRecord, ChangeStamp, LastAdmin, Migrations, RevokeApiKey, Revoked, Store};
use tokio_util::task::TaskTracker;

use crate::app::open_store;
use crate::cli::config_argument::ConfigArgument;
use cli::output::{self, OutputFormat};
use clock::Clock;
use keys::api_key::{IssueError, issue, prefix_of, shown};

/// Number of keys per query.
const PAGE: u64 = 100;

#[derive(Subcommand)]
pub(super) enum TokenCommand {
    /// Create an API key. It is printed once and stored only as a hash.
    Create {
        #[command(flatten)]
        key: NewKeyArguments,
        #[command(flatten)]
        of: WorkspaceArgument,
        #[command(flatten)]
        config: ConfigArgument,
    },
    /// List the API keys, oldest first, including revoked and expired ones.
    List {
        #[command(flatten)]
        of: WorkspaceArgument,
        #[command(flatten)]
        config: ConfigArgument,
    },
    /// Revoke an API key. Every replica refuses it from the next request on.
    Revoke {
        /// The key's id, or its prefix: the 8 letters after `rnl_`.
        #[arg(value_name = "ID|PREFIX")]
        key: String,
        #[command(flatten)]
        of: WorkspaceArgument,
        #[command(flatten)]
        config: ConfigArgument,
    },
}

/// Properties of a new key.
#[derive(clap::Args)]
pub(super) struct NewKeyArguments {
    /// The role of the key.
    #[arg(long, value_parser = roles())]
    role: KeyRole,
    /// A descriptive name.
    #[arg(long)]
    name: String,
    /// Time until the key expires: a number with s, m, h, d or w. Without it the key does not expire.
    #[arg(long, value_name = "TIME", value_parser = cli::parse_lifetime)]
    expires_in: Option<Duration>,
    /// Restrict a key of role client to this agent. Can be repeated.
    #[arg(long = "agent", value_name = "NAME|ID")]
    agents: Vec<String>,
    /// Maximum requests in a minute that start runs, on each replica.
    #[arg(long, value_name = "NUMBER")]
    rate: Option<u32>,
    /// Maximum of such requests at once, after a pause. Default: the rate.
    #[arg(long, value_name = "NUMBER", requires = "rate")]
    burst: Option<u32>,
    /// Maximum live runs that the key has started, queued ones included.
    #[arg(long, value_name = "NUMBER")]
    concurrency: Option<u32>,
    /// Maximum input and output tokens in a minute of the model calls of these runs, on each replica.
    #[arg(long, value_name = "NUMBER")]
    tokens_per_minute: Option<u32>,
}

impl NewKeyArguments {
    fn spec(&self) -> ApiKeySpec {
        let expires_at = self.expires_in.map(|life| {
            let life = i64::try_from(life.as_secs()).unwrap_or(i64::MAX);
            Clock::system().now_seconds().saturating_add(life)
        });
        let limits = OwnLimits {
            rate: self.rate,
            burst: self.burst,
            concurrency: self.concurrency,
            tokens_per_minute: self.tokens_per_minute,
        };
        ApiKeySpec {
            name: self.name.clone(),
            role: self.role,
            expires_at,
            agents: (!self.agents.is_empty()).then(|| self.agents.clone()),
            limits: (limits != OwnLimits::default()).then_some(limits),
        }
    }
}

/// The workspace of the keys.
#[derive(clap::Args)]
pub(super) struct WorkspaceArgument {
    /// The id of the workspace.
    #[arg(long, value_name = "ID", default_value = DEFAULT_WORKSPACE)]
    workspace: String,
}

fn roles() -> impl TypedValueParser<Value = KeyRole> {
    let possible = KeyRole::ALL.map(|role| {
        let help = match role {
            KeyRole::Owner => "Create and list workspaces, without access to their content",
            KeyRole::Admin => "Everything a client may, and endpoints, runners, agents, API keys",
            KeyRole::Operator => {
                "Everything a viewer may, and cancel and retry runs, answer interactions"
            }
            KeyRole::Viewer => "Read what an admin reads, and change nothing",
            KeyRole::Approver => "Read interactions and their runs, and answer them",
            KeyRole::Client => "Post events, read runs",
        };
        PossibleValue::new(role.as_str()).help(help)
    });
    PossibleValuesParser::new(possible)
        .try_map(|text| KeyRole::parse(&text).ok_or("is no role of an API key"))
}

/// Runs a `token` command.
pub(super) async fn token(command: TokenCommand, format: OutputFormat) -> anyhow::Result<ExitCode> {
    let (TokenCommand::Create { config, of, .. }
    | TokenCommand::List { config, of }
    | TokenCommand::Revoke { config, of, .. }) = &command;
    let workspace = of.workspace.clone();
    let settings = if matches!(command, TokenCommand::Create { .. }) {
        config.load_for_database()?
    } else {
        config.load_for_existing_database()?
    };
    // Checked before the database is opened, which may create it.
    if let TokenCommand::Create { key, .. } = &command {
        check(&key.spec())?;
        let is_elsewhere = key.role == KeyRole::Owner && workspace != DEFAULT_WORKSPACE;
        ensure!(
            !is_elsewhere,
            "a key of role owner belongs to no workspace: leave --workspace out"
        );
    }
    let store = open_store(&settings, &TaskTracker::new(), Migrations::New).await?;
    let done = run(&store, &workspace, command, format).await;
    // Also after an error, so that SQLite removes its write-ahead log.
    store.close().await;
    done.map(|()| ExitCode::SUCCESS)
}

async fn run(
    store: &Store,
    workspace: &str,
    command: TokenCommand,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let Some(workspace) = store.access().find_workspace(workspace).await? else {
        bail!(
            "there is no workspace {workspace}; `runnel workspace list` shows them, and \
             `runnel workspace create` makes one"
        );
    };
    let workspace = workspace.id;
    match command {
        TokenCommand::Create { key, .. } => create(store, &workspace, &key.spec(), format).await,
        TokenCommand::List { .. } => list(store, &workspace, format).await,
        TokenCommand::Revoke { key, .. } => revoke(store, workspace, &key, format).await,
    }
}

/// Fails with the first fault of a new key, under the name of its argument.
fn check(spec: &ApiKeySpec) -> anyhow::Result<()> {
    let faults = check_api_key(spec, Clock::system().now_seconds());
    let Some(fault) = faults.first() else {
        return Ok(());
    };
    match fault.pointer.as_str() {
        "/expires_at" => bail!("--expires-in must end before the year 10000"),
        "/agents" => bail!("--agent restricts a key of role client to 1 to 16 agents"),
        "/limits" => {
            bail!(
                "--rate, --concurrency and --tokens-per-minute are for keys of role admin, operator or client"
            )
        }
        pointer => {
            let argument = pointer.rsplit('/').next().unwrap_or(pointer);
            let argument = argument.replace('_', "-");
            bail!("--{argument} {}", fault.message)
        }
    }
}

async fn create(
    store: &Store,
    workspace: &WorkspaceId,
    spec: &ApiKeySpec,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let issued = issue(store, &stamp(), workspace, spec).await;
    let (record, key) = match issued {
        Err(IssueError::UnknownAgent(at)) => {
            let named = spec.agents.iter().flatten().nth(at);
            bail!(
                "the workspace has no agent {}; `runnel agents list` shows them",
                named.map_or("", String::as_str)
            );
        }
        issued => issued?,
    };
    let key = key.expose_secret();
    if format.is_json() {
        output::line(
            &json!({"id": record.id, "role": record.role, "name": record.name,
                "prefix": record.prefix, "expires_at": spec.expires_at,
                "agents": record.agents, "limits": record.limits, "key": key})
            .to_string(),
        );
    } else {
        output::line(key);
    }
    Ok(())
}

async fn list(store: &Store, workspace: &WorkspaceId, format: OutputFormat) -> anyhow::Result<()> {
    let mut keys: Vec<ApiKeyRecord> = Vec::new();
    loop {
        let after = keys.last().map(|key| key.id.to_string());
        let page = store
            .access()
            .list_api_keys(workspace, after.as_deref(), PAGE)
            .await?;
        keys.extend(page.items);
        if !page.has_more {
            break;
        }
    }
    if format.is_json() {
        let items: Vec<_> = keys.into_iter().map(shown).collect();
        output::document(&json!({ "items": items }));
        return Ok(());
    }
    output::line(&format!(
        "{:36}  {:8}  {:6}  {:6}  {:20}  {:20}  {:20}  {:20}  name",
        "id", "prefix", "role", "agents", "created", "last used", "expires", "revoked"
    ));
    let time = |at: Option<i64>| at.map_or("-".to_owned(), output::time);
    for key in keys {
        let agents = key.agents.as_ref();
        let agents = agents.map_or("all".to_owned(), |agents| agents.len().to_string());
        output::line(&format!(
            "{:36}  {:8}  {:6}  {:6}  {:20}  {:20}  {:20}  {:20}  {}",
            key.id.to_string(),
            key.prefix,
            key.role.as_str(),
            agents,
            output::time(key.created_at),
            time(key.last_used_at),
            time(key.expires_at),
            time(key.revoked_at),
            key.name,
        ));
    }
    Ok(())
}

async fn revoke(
    store: &Store,
    workspace: WorkspaceId,
    named: &str,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let found = find(store, &workspace, named).await?;
    let Some(found) = found else {
        // The argument may be a complete key, so it is not repeated.
        bail!("there is no API key with this id or prefix; `runnel token list` shows them all");
    };
    let revoke = RevokeApiKey {
        workspace,
        id: found.id,
        last_admin: LastAdmin::Goes,
        at: Clock::system().now_ms(),
    };
    let (key, was_last_admin) = match store.change(stamp(), revoke).await? {
        Revoked::Now {
            key,
            was_last_admin,
        } => (key, was_last_admin),
        Revoked::Before(key) => (key, false),
        Revoked::LastAdmin | Revoked::Owner | Revoked::Unknown => {
            bail!("the API key was deleted by another command; list the keys again")
        }
    };
    let since = key.revoked_at.map(output::time).unwrap_or_default();
    if format.is_json() {
        output::document(&json!(shown(key)));
    } else {
        output::line(&format!(
            "revoked {} {} ({}), since {since}",
            key.id, key.name, key.prefix
        ));
    }
    if was_last_admin {
        output::remark(
            "it was the last key of role admin: the admin API has no key until you make \
             another with `runnel token create --role admin --name …`",
        );
    }
    Ok(())
}

/// The author of changes by these commands.
fn stamp() -> ChangeStamp {
    ChangeStamp::of(PrincipalKind::Cli, Clock::system().now_ms())
}

/// Finds a key by id, by prefix, or by its full text, such as a leaked key.
async fn find(
    store: &Store,
    workspace: &WorkspaceId,
    named: &str,
) -> anyhow::Result<Option<ApiKeyRecord>> {
    if let Ok(id) = named.parse() {
        return Ok(store.access().find_api_key_by_id(workspace, id).await?);
    }
    let prefix = prefix_of(named).unwrap_or(named);
    Ok(store
        .access()
        .find_api_key_by_prefix(workspace, prefix)
        .await?)
}
