//! Settings file of the service, written by the operator (`runnel-harness serve --settings FILE`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use protocol::id::RunnerId;
use runner_kit::SigningSecret;
use serde::Deserialize;

use crate::executable::find;
use crate::interpreter::unfit_node;
use crate::preset::Preset;
use crate::sandbox::{self, Confinement};

/// Value of an agent's `workspace` for the conversation's own directory.
pub(crate) const CONVERSATION: &str = "conversation";

/// Contents of the file. Unknown keys are errors.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HarnessFile {
    /// Listen address. Port 0 selects a free port.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// The signing secret of the runner endpoint: `env:NAME` or `file:PATH`.
    pub secret: String,
    /// Parent directory of all workspaces.
    pub workspaces: PathBuf,
    #[serde(default)]
    pub sandbox: SandboxMode,
    /// User that harnesses run as. Requires a service with root.
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub limits: HarnessLimits,
    #[serde(default)]
    pub keep: WorkspaceRetention,
    /// Directories that agents may select as their `workspace`, by name.
    #[serde(default)]
    pub directories: BTreeMap<String, PathBuf>,
    /// Paths that harnesses may read in addition to the system's, such as installation directories.
    #[serde(default)]
    pub readable: Vec<PathBuf>,
    /// TCP ports that harnesses may connect to in addition to the relay's, on any host.
    #[serde(default)]
    pub connect: Vec<u16>,
    /// Environment variables that agents may select: a value, `env:NAME` or `file:PATH`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub harnesses: Vec<HarnessSettings>,
}

/// Harness of the service.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HarnessSettings {
    pub preset: Preset,
    /// Last part of the runner id.
    #[serde(default = "default_name")]
    pub name: String,
    /// Command; the preset's by default. `acp` has no default.
    #[serde(default)]
    pub command: Option<String>,
    /// Replaces the preset's arguments.
    #[serde(default)]
    pub args: Option<Vec<String>>,
    /// True for the harness's own protocol, false for ACP. Claude Code supports both and defaults to its own; Codex
    /// supports only its own, and all others only ACP.
    #[serde(default)]
    pub native: Option<bool>,
    /// Cached result of [`unfit_node`], which starts a process.
    #[serde(skip)]
    unfit: OnceLock<Option<String>>,
}

/// Confinement of harnesses by Landlock, seccomp and namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxMode {
    /// Confined as far as the kernel supports it.
    #[default]
    Auto,
    /// The service does not start if a protection is missing.
    Required,
    /// Unconfined: only the user and the resource limits apply.
    Off,
}

/// Limits of one harness and of the service.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HarnessLimits {
    /// Maximum concurrent runs of the service; further ones are refused.
    pub live_runs: usize,
    pub memory_bytes: u64,
    pub processes: u64,
    pub file_bytes: u64,
    pub cpu_seconds: u64,
    /// Timeout of each startup request (`initialize`, opening a session), in seconds.
    pub start_seconds: u64,
}

impl Default for HarnessLimits {
    fn default() -> Self {
        Self {
            live_runs: 16,
            memory_bytes: 4 * 1024 * 1024 * 1024,
            processes: 512,
            file_bytes: 1024 * 1024 * 1024,
            cpu_seconds: 3600,
            start_seconds: 60,
        }
    }
}

/// Retention of unused workspaces.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkspaceRetention {
    /// Days since the last run.
    pub days: u64,
    /// Maximum bytes of all workspaces; the longest unused ones are removed first.
    pub bytes: u64,
}

impl Default for WorkspaceRetention {
    fn default() -> Self {
        Self {
            days: 30,
            bytes: 20 * 1024 * 1024 * 1024,
        }
    }
}

impl WorkspaceRetention {
    /// Time after the last use at which a workspace is removed.
    pub fn age(self) -> Duration {
        Duration::from_hours(self.days.saturating_mul(24))
    }
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9110))
}

fn default_name() -> String {
    "default".to_owned()
}

impl HarnessFile {
    /// Reads and validates a file.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} cannot be used", path.display()))
    }

    /// Parses and validates the text of a file, and resolves `env:` and `file:` values.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut settings: Self = toml::from_str(text)?;
        ensure!(
            !settings.harnesses.is_empty(),
            "harnesses: name at least one"
        );
        let mut ids = BTreeSet::new();
        for harness in &settings.harnesses {
            let id = harness.runner_id()?;
            ensure!(
                ids.insert(id.clone()),
                "harnesses: {id} is there twice; give one another `name`"
            );
            ensure!(
                harness.preset.native(harness.native).is_some(),
                "harnesses: {id} cannot be served with that `native`: remove it"
            );
            ensure!(
                harness.command.is_some() || harness.preset.command(harness.is_native()).is_some(),
                "harnesses: preset acp needs a `command`"
            );
        }
        for (name, path) in &mut settings.directories {
            ensure!(
                name != CONVERSATION,
                "directories: `{name}` is the name of the conversation's own workspace"
            );
            // Resolve links now: later changes of a link must not move the workspace.
            *path = path
                .canonicalize()
                .with_context(|| format!("directories.{name}: {} is not there", path.display()))?;
            ensure!(
                path.is_dir(),
                "directories.{name}: {} is not a directory",
                path.display()
            );
        }
        for (name, value) in &mut settings.env {
            *value = resolved(value).with_context(|| format!("env.{name}"))?;
        }
        Ok(settings)
    }

    /// Sandbox of every harness, without its workspace, command and relay port.
    pub fn confinement(&self) -> Confinement {
        let limits = self.limits;
        Confinement {
            user: self.user.clone(),
            limits: sandbox::ResourceLimits {
                memory: Some(limits.memory_bytes),
                processes: Some(limits.processes),
                file_size: Some(limits.file_bytes),
                cpu_seconds: Some(limits.cpu_seconds),
            },
            read_only: self.readable.clone(),
            connect: self.connect.clone(),
            is_open: self.sandbox == SandboxMode::Off,
            is_required: self.sandbox == SandboxMode::Required,
            ..Confinement::default()
        }
    }

    /// Harnesses without a usable command: the runner id, and [`HarnessSettings::missing`].
    pub fn missing(&self) -> Vec<(RunnerId, String)> {
        let harnesses = self.harnesses.iter();
        let missing =
            harnesses.filter_map(|harness| Some((harness.runner_id().ok()?, harness.missing()?)));
        missing.collect()
    }

    /// Signing secret. Fails for an inline value.
    pub fn secret(&self) -> anyhow::Result<SigningSecret> {
        ensure!(
            self.secret.starts_with("env:") || self.secret.starts_with("file:"),
            "secret: say env:NAME or file:PATH, not the secret itself"
        );
        let text = resolved(&self.secret).context("secret")?;
        text.trim()
            .parse()
            .context("secret: the signing secret cannot be used")
    }
}

impl HarnessSettings {
    /// Runner id: `plugin:runnel/PRESET/NAME`. Fails for a `name` that is no part of an id.
    pub fn runner_id(&self) -> anyhow::Result<RunnerId> {
        let id = format!("plugin:runnel/{}/{}", self.preset.name(), self.name);
        id.parse()
            .with_context(|| format!("harnesses: {id} is not a runner id"))
    }

    /// True for the harness's own protocol, false for ACP.
    pub(crate) fn is_native(&self) -> bool {
        self.preset.native(self.native).unwrap_or_default()
    }

    /// Configured command, or the preset's default.
    pub(crate) fn command(&self) -> &str {
        let own = self.command.as_deref();
        own.or_else(|| self.preset.command(self.is_native()))
            .unwrap_or_default()
    }

    /// Reason that the command cannot run, with advice: one clause without a full stop. `None` if it can run.
    pub(crate) fn missing(&self) -> Option<String> {
        let command = self.command();
        let advice = || {
            format!(
                "the command `{command}` is not installed: {}",
                self.advice()
            )
        };
        let Some(found) = find(command) else {
            return Some(advice());
        };
        let unfit = self.unfit.get_or_init(|| unfit_node(&found)).as_ref();
        unfit.map(|reason| format!("the command `{command}` does not fit: {reason}"))
    }

    /// Advice to install the command, for the reason in [`Self::missing`].
    fn advice(&self) -> String {
        let package = self.preset.package(self.is_native());
        match package.filter(|_| self.command.is_none()) {
            Some(package) => {
                format!(
                    "install it with `npm install --global {package}`, or set `command` in the settings of the harness service"
                )
            }
            None => {
                "install it, or correct `command` in the settings of the harness service".to_owned()
            }
        }
    }
}

/// Resolves `env:NAME` and `file:PATH`; other values are literal.
#[expect(clippy::disallowed_methods, reason = "the settings name the variable")]
fn resolved(value: &str) -> anyhow::Result<String> {
    if let Some(name) = value.strip_prefix("env:") {
        return std::env::var(name).with_context(|| format!("the variable {name} is not set"));
    }
    if let Some(path) = value.strip_prefix("file:") {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        return Ok(text.trim_end().to_owned());
    }
    // The kernel ends environment strings at NUL, and the spawn of a process rejects it.
    if value.contains('\0') {
        bail!("a value holds no NUL");
    }
    Ok(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "secret = \"env:S\"\nworkspaces = \"/tmp/w\"\n";

    #[test]
    fn rejects_unusable_settings() {
        for (text, part) in [
            ("harnesses = []", "name at least one"),
            ("[[harnesses]]\npreset = \"acp\"", "needs a `command`"),
            (
                "[[harnesses]]\npreset = \"opencode\"\nnative = true",
                "remove it",
            ),
            (
                "[[harnesses]]\npreset = \"opencode\"\n[[harnesses]]\npreset = \"opencode\"",
                "twice",
            ),
            ("[[harnesses]]\npreset = \"vim\"", "unknown variant"),
            (
                "colour = 1\n[[harnesses]]\npreset = \"opencode\"",
                "unknown field",
            ),
            (
                "[directories]\na = \"/nowhere\"\n[[harnesses]]\npreset = \"opencode\"",
                "is not there",
            ),
            (
                "[env]\nA = \"env:RUNNEL_UNSET\"\n[[harnesses]]\npreset = \"opencode\"",
                "is not set",
            ),
        ] {
            let error = HarnessFile::parse(&format!("{HEAD}{text}")).unwrap_err();
            let message = format!("{error:#}");
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn names_missing_commands_with_their_packages() {
        let harness = |text: &str| {
            let settings = HarnessFile::parse(&format!("{HEAD}[[harnesses]]\n{text}")).unwrap();
            settings.harnesses[0].clone()
        };
        for preset in Preset::NAMED {
            let advice = harness(&format!("preset = \"{}\"", preset.name())).advice();
            assert!(advice.contains("npm install --global"), "{advice}");
        }
        let own = harness("preset = \"codex\"\ncommand = \"/nowhere/codex\"").missing();
        let own = own.expect("it is missing");
        assert!(
            own.contains("/nowhere/codex") && own.contains("correct `command`"),
            "{own}"
        );
        // A file without the right to execute it is no command.
        assert!(
            harness("preset = \"acp\"\ncommand = \"/etc/passwd\"")
                .missing()
                .is_some()
        );
        assert_eq!(
            harness("preset = \"acp\"\ncommand = \"/bin/sh\"").missing(),
            None
        );
    }

    #[test]
    fn rejects_inline_secrets() {
        let text =
            "secret = \"whsec_abc\"\nworkspaces = \"/tmp/w\"\n[[harnesses]]\npreset = \"codex\"";
        let settings = HarnessFile::parse(text).unwrap();
        assert!(format!("{:#}", settings.secret().unwrap_err()).contains("not the secret itself"));
    }
}
