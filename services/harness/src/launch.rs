//! Command line, environment and files of one harness process.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use agent_core::RunFailure;
use serde_json::{Map, Value};

use crate::config::Config;
use crate::directory::DirectoryEntry;
use crate::executable::{find, search_path};
use crate::failure::{COMMAND_NOT_FOUND, WORKSPACE_FAILED};
use crate::git_config;
use crate::own_process;
use crate::preset::access::Access;
use crate::preset::setup;
use crate::process::Launch;
use crate::relay::RelayKey;
use crate::sandbox::Stage;
use crate::service::Harness;
use crate::workspace::RunWorkspace;

/// The folder of temporary files in a home directory.
const TMP: &str = "tmp";

/// Prepared launch with its secret files.
pub(crate) struct PreparedLaunch {
    pub(crate) launch: Launch,
    /// Additional members of the request that opens a session.
    pub(crate) session: Map<String, Value>,
    files: SecretFiles,
}

/// Files that hold secrets of a run. Dropping removes them.
struct SecretFiles(Vec<DirectoryEntry>);

impl Drop for SecretFiles {
    fn drop(&mut self) {
        for file in &self.0 {
            if let Err(error) = file.remove() {
                tracing::warn!(%error, "a file with secrets of a run cannot be removed");
            }
        }
    }
}

impl PreparedLaunch {
    /// The launch, and a guard of its files that has to live as long as the process.
    pub(crate) fn split(self) -> (Launch, Map<String, Value>, impl Send + use<>) {
        (self.launch, self.session, self.files)
    }
}

/// Prepares the launch of a harness for a run: writes its files and builds its command line.
pub(crate) fn prepare(
    harness: &Harness,
    config: &Config,
    workspace: &RunWorkspace,
    opened: &RelayKey,
) -> Result<PreparedLaunch, RunFailure> {
    let settings = &harness.settings;
    let found = find(settings.command()).ok_or_else(|| {
        RunFailure::new(COMMAND_NOT_FOUND, settings.missing().unwrap_or_default())
    })?;
    let port = if settings.preset.serves_itself() {
        Some(free_port().map_err(unwritten)?)
    } else {
        None
    };
    let access = Access {
        openai: opened.url("/openai/v1"),
        anthropic: opened.url("/anthropic"),
        mcp: opened.url("/mcp"),
        key: opened.key(),
        config,
        home: &workspace.home_path,
        directory: &workspace.path,
        port,
    };
    let preset = setup::prepare(settings.preset, &access);
    let env = environment(workspace, preset.env, config).map_err(unwritten)?;
    let mut secrets = vec![opened.key().to_owned()];
    // Redacting very short values would garble ordinary text.
    secrets.extend(
        config
            .env
            .iter()
            .map(|(_, value)| value.clone())
            .filter(|value| value.len() >= 6),
    );
    let mut files = SecretFiles(Vec::new());
    let home = &workspace.home;
    home.make_folder(OsStr::new(TMP)).map_err(unwritten)?;
    // `files` owns each file at once: an error below removes those written so far.
    for (name, content) in preset.files {
        let written = home.replace(Path::new(name), content.as_bytes());
        files.0.push(written.map_err(unwritten)?);
    }
    let mut args: Vec<OsString> = match &settings.args {
        Some(args) => args.iter().map(OsString::from).collect(),
        None if settings.is_native() => Vec::new(),
        None => settings.preset.args().iter().map(OsString::from).collect(),
    };
    args.extend(preset.args.into_iter().map(OsString::from));
    let confinement = harness.service.confinement(workspace, &found, port);
    let program = std::env::current_exe().map_err(unwritten)?;
    let namespaces = harness.service.protections.has_namespaces();
    let stage = if namespaces {
        Stage::Init
    } else {
        Stage::Sandbox
    };
    args.insert(0, found.into());
    let mut line = confinement.stage(stage, &args);
    line.insert(0, own_process::NAME.into());
    let launch = Launch {
        command: program.into(),
        args: line,
        namespaces,
        env,
        directory: workspace.path.clone(),
        start_time: Duration::from_secs(harness.service.settings.limits.start_seconds.max(1)),
        shown: settings.command().to_owned(),
        secrets,
    };
    Ok(PreparedLaunch {
        launch,
        session: preset.session,
        files,
    })
}

/// Environment of a harness process. Nothing of the service's own environment is inherited but `PATH`.
fn environment(
    workspace: &RunWorkspace,
    preset: Vec<(&'static str, String)>,
    config: &Config,
) -> std::io::Result<Vec<(String, String)>> {
    let mut env = vec![
        ("PATH".to_owned(), search_path()),
        (
            "HOME".to_owned(),
            workspace.home_path.to_string_lossy().into_owned(),
        ),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
        (
            "TMPDIR".to_owned(),
            workspace.home_path.join(TMP).to_string_lossy().into_owned(),
        ),
        ("NO_COLOR".to_owned(), "1".to_owned()),
    ];
    env.extend(git_config::variables(&workspace.path)?);
    env.extend(
        preset
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value)),
    );
    // Variables of the operator come last and override all others.
    env.extend(config.env.iter().cloned());
    Ok(env)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unwritten(error: std::io::Error) -> RunFailure {
    RunFailure::new(
        WORKSPACE_FAILED,
        format!("the harness's home cannot be prepared: {error}"),
    )
}

/// Free loopback port. Another process may take it before the harness binds it; the harness then fails to start.
fn free_port() -> std::io::Result<u16> {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}
