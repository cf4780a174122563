//! `runnel-connectors try`: one agent against its platform, without a gateway.

mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;

use agent_core::service::start_log;
use anyhow::{Context as _, ensure};
use connectors::agent_file::AgentFile;
use connectors::driver::{StopCause, drive};
use connectors::session::MachineSession;
use connectors::turn::{ConnectorTurn, FILE_BYTES, FileContent, TurnFile};
use connectors::upstream::config::SecretHosts;
use runner_kit::CancellationToken;
use runner_kit::process::stop_requested;

use crate::options::PlatformArgs;
use crate::try_out::terminal::Terminal;

/// Arguments of `runnel-connectors try`.
#[derive(clap::Args)]
pub(crate) struct TryArgs {
    /// A file with `runner_id` and `[config]`, or a gateway's configuration with `[[agents]]`.
    config: PathBuf,
    /// The message.
    #[arg(long)]
    text: String,
    /// The agent's name, if the file has several.
    #[arg(long)]
    agent: Option<String>,
    /// Files of the message. Repeat it.
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// The state of the conversation as JSON, as printed by an earlier run.
    #[arg(long, default_value = "{}")]
    state: String,
    #[command(flatten)]
    platforms: PlatformArgs,
}

/// Runs the agent once. Exits with a failure code if the run fails.
pub(crate) fn execute(args: &TryArgs) -> anyhow::Result<ExitCode> {
    start_log(&args.platforms.log)?;
    let AgentFile { platform, config } = AgentFile::read(&args.config, args.agent.as_deref())?;
    let mut terminal = Terminal::default();
    // The caller owns both the file and the environment, so no host list is required.
    let source = args.platforms.source(SecretHosts::Any)?;
    let session = match MachineSession::new(platform, turn(args)?, &config, &source) {
        // Show a configuration failure like any other failed run, with its key.
        Ok(session) => session,
        Err(failure) => {
            terminal.show(&failure.into_result(platform.prefix))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let egress = args.platforms.egress()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let stop = StopCause {
            cancel: CancellationToken::new(),
            deadline: None,
        };
        let mut driving = Box::pin(drive(
            session,
            platform.prefix,
            &mut terminal,
            &egress,
            &stop,
        ));
        tokio::select! {
            () = &mut driving => return anyhow::Ok(()),
            asked = stop_requested() => asked?,
        }
        // Wait for the driver after the cancellation: it sends the stop call to the platform and prints the failure.
        stop.cancel.cancel();
        driving.await;
        Ok(())
    })?;
    terminal.end()
}

fn turn(args: &TryArgs) -> anyhow::Result<ConnectorTurn> {
    let files = args.files.iter().map(|path| {
        let bytes =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(
            bytes.len() < FILE_BYTES,
            "{} is larger than {FILE_BYTES} bytes",
            path.display()
        );
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        Ok(TurnFile {
            mime_type: mime_type(path).to_owned(),
            name: name.unwrap_or_else(|| "file".to_owned()),
            content: FileContent::Bytes(bytes.into()),
        })
    });
    Ok(ConnectorTurn {
        run_id: "try".to_owned(),
        user: "user_try".to_owned(),
        text: args.text.clone(),
        files: files.collect::<anyhow::Result<_>>()?,
        state: serde_json::from_str(&args.state).context("--state is no JSON object")?,
        ..ConnectorTurn::default()
    })
}

fn mime_type(path: &std::path::Path) -> &'static str {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("webp") => "image/webp",
        Some("pdf") => "application/pdf",
        Some("txt" | "md") => "text/plain",
        Some("json") => "application/json",
        Some("mp3") => "audio/mpeg",
        Some("wav") => "audio/wav",
        _ => "application/octet-stream",
    }
}
