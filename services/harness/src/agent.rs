//! Running harness with an open session, independent of its protocol.

use std::path::Path;

use agent_core::RunFailure;

use crate::acp::{Acp, AcpMcpServer};
use crate::claude::{Claude, ClaudeStart};
use crate::codex::Codex;
use crate::config::Config;
use crate::failure::with_error_line;
use crate::launch::PreparedLaunch;
use crate::preset::Preset;
use crate::relay::RelayKey;
use crate::settings::HarnessSettings;
use crate::turn::{OpenSession, StopSignal, TurnPrompt, TurnStage};
use crate::workspace::RunWorkspace;

/// Harness process with an open session. Dropping it also removes the secret files of the launch.
pub(crate) struct HarnessSession {
    protocol: HarnessProtocol,
    _files: Box<dyn Send>,
}

enum HarnessProtocol {
    Acp(Box<Acp>),
    Claude(Box<Claude>),
    Codex(Box<Codex>),
}

/// Parameters of an opened session.
pub(crate) struct Opening<'a> {
    pub(crate) settings: &'a HarnessSettings,
    pub(crate) config: &'a Config,
    pub(crate) workspace: &'a RunWorkspace,
    pub(crate) access: &'a RelayKey,
    /// Session id of the conversation's last run.
    pub(crate) stored: Option<&'a str>,
    pub(crate) stop: &'a StopSignal,
}

impl HarnessSession {
    /// Starts the process and opens the stored session or a new one. On failure, the process has ended.
    pub(crate) async fn open(
        prepared: PreparedLaunch,
        opening: Opening<'_>,
    ) -> Result<(Self, OpenSession), RunFailure> {
        let (launch, session, files) = prepared.split();
        let Opening {
            config,
            stored,
            stop,
            ..
        } = opening;
        let directory: &Path = &opening.workspace.path;
        let mcp_url = opening.access.url("/mcp");
        let preset = opening.settings.preset;
        let (protocol, opened) = match preset {
            Preset::ClaudeCode if opening.settings.is_native() => {
                let start = ClaudeStart {
                    launch,
                    model: &config.model,
                    mode: config.mode,
                    mcp_url,
                    home: &opening.workspace.home,
                };
                let (claude, opened) = Claude::start(start, stored)?;
                (HarnessProtocol::Claude(Box::new(claude)), Ok(opened))
            }
            Preset::Codex => {
                let mut codex = Codex::start(launch)?;
                let opened = codex.open_session(stored, directory, stop).await;
                (HarnessProtocol::Codex(Box::new(codex)), opened)
            }
            _ => {
                let key = opening.access.key().to_owned();
                let mcp = AcpMcpServer { url: mcp_url, key };
                let mut acp = Acp::start(launch, session)?;
                let opened = acp.open_session(stored, directory, &mcp, stop).await;
                (HarnessProtocol::Acp(Box::new(acp)), opened)
            }
        };
        let agent = Self {
            protocol,
            _files: Box::new(files),
        };
        match opened {
            Ok(opened) => Ok((agent, opened)),
            // Standard error is complete only after the end of the process.
            Err(failure) => Err(with_error_line(failure, &agent.end().await)),
        }
    }

    /// Runs one turn. Returns the finish reason: `stop`, `length`, `content_filter`, or the harness's own.
    pub(crate) async fn turn(
        &mut self,
        prompt: &TurnPrompt,
        stage: &mut TurnStage,
    ) -> Result<String, RunFailure> {
        match &mut self.protocol {
            HarnessProtocol::Acp(acp) => acp.turn(prompt, stage).await,
            HarnessProtocol::Claude(claude) => claude.turn(prompt, stage).await,
            HarnessProtocol::Codex(codex) => codex.turn(prompt, stage).await,
        }
    }

    /// Ends the process with all its descendants. Returns the last lines of its standard error, without secrets.
    pub(crate) async fn end(self) -> Vec<String> {
        match self.protocol {
            HarnessProtocol::Acp(acp) => acp.end().await,
            HarnessProtocol::Claude(claude) => claude.end().await,
            HarnessProtocol::Codex(codex) => codex.end().await,
        }
    }
}
