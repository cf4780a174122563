//! Running harness, for every protocol.

use std::path::Path;

use crate::acp::{Acp, McpServer};
use crate::claude::{Claude, ClaudeStart};
use crate::codex::Codex;
use crate::config::Config;
use crate::failure::Failure;
use crate::launch::Prepared;
use crate::preset::Preset;
use crate::relay::Opened;
use crate::settings::HarnessSettings;
use crate::turn::{OpenSession, Prompt, Stage, Stop};
use crate::workspace::Workspace;

/// A harness process with an open session, and what ends with it.
pub(crate) struct Agent {
    spoken: Spoken,
    _files: Box<dyn Send>,
}

enum Spoken {
    Acp(Box<Acp>),
    Claude(Box<Claude>),
    Codex(Box<Codex>),
}

/// Parameters of an opened session.
pub(crate) struct Opening<'a> {
    pub(crate) settings: &'a HarnessSettings,
    pub(crate) config: &'a Config,
    pub(crate) workspace: &'a Workspace,
    pub(crate) access: &'a Opened,
    /// The session that the conversation had.
    pub(crate) stored: Option<&'a str>,
    pub(crate) stop: &'a Stop,
}

impl Agent {
    /// Starts the process and opens the stored session, or a new one. Without a session, the process has ended.
    pub(crate) async fn open(
        prepared: Prepared,
        opening: Opening<'_>,
    ) -> Result<(Self, OpenSession), Failure> {
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
        let (spoken, opened) = match preset {
            Preset::ClaudeCode if opening.settings.is_native() => {
                let start = ClaudeStart {
                    launch,
                    model: &config.model,
                    mode: config.mode,
                    mcp_url,
                    home: &opening.workspace.home,
                };
                let (claude, opened) = Claude::start(start, stored)?;
                (Spoken::Claude(Box::new(claude)), Ok(opened))
            }
            Preset::Codex => {
                let mut codex = Codex::start(launch)?;
                let opened = codex.open_session(stored, directory, stop).await;
                (Spoken::Codex(Box::new(codex)), opened)
            }
            _ => {
                let key = opening.access.key().to_owned();
                let mcp = McpServer { url: mcp_url, key };
                let mut acp = Acp::start(launch, session)?;
                let opened = acp.open_session(stored, (directory, &mcp), stop).await;
                (Spoken::Acp(Box::new(acp)), opened)
            }
        };
        let agent = Self {
            spoken,
            _files: Box::new(files),
        };
        match opened {
            Ok(opened) => Ok((agent, opened)),
            Err(failure) => Err(failure.with_last_line(&agent.end().await)),
        }
    }

    /// One turn. Why it ended: `stop`, `length`, `content_filter`, or the harness's own word.
    pub(crate) async fn turn(
        &mut self,
        prompt: &Prompt,
        stage: &mut Stage,
    ) -> Result<String, Failure> {
        match &mut self.spoken {
            Spoken::Acp(acp) => acp.turn(prompt, stage).await,
            Spoken::Claude(claude) => claude.turn(prompt, stage).await,
            Spoken::Codex(codex) => codex.turn(prompt, stage).await,
        }
    }

    /// Ends the process with all its descendants. The last lines of its standard error, without secrets.
    pub(crate) async fn end(self) -> Vec<String> {
        match self.spoken {
            Spoken::Acp(acp) => acp.end().await,
            Spoken::Claude(claude) => claude.end().await,
            Spoken::Codex(codex) => codex.end().await,
        }
    }
}
