//! Harnesses of one settings file as runners.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::id::RunnerId;
use runner_kit::Runner;

use crate::executable::find;
use crate::installation;
use crate::interpreter;
use crate::protections::Protections;
use crate::relay::CredentialRelay;
use crate::sandbox::Confinement;
use crate::settings::{HarnessFile, HarnessSettings};
use crate::workspace::{RunWorkspace, Workspaces};

/// Parts that all harnesses of a service share.
pub struct HarnessService {
    pub(crate) settings: HarnessFile,
    pub(crate) workspaces: Workspaces,
    pub(crate) relay: CredentialRelay,
    pub(crate) protections: Protections,
}

/// One harness as a runner.
#[derive(Clone)]
pub(crate) struct Harness {
    pub(crate) service: Arc<HarnessService>,
    pub(crate) settings: HarnessSettings,
    id: RunnerId,
}

impl HarnessService {
    /// Examines the machine and logs the protections that hold, see [`Protections::examine`].
    pub fn new(settings: HarnessFile, workspaces: Workspaces, relay: CredentialRelay) -> Self {
        let protections = Protections::examine(Some(&settings));
        protections.log();
        Self {
            settings,
            workspaces,
            relay,
            protections,
        }
    }

    /// Sandbox of a harness in this workspace. `port`: loopback port of its processes.
    pub(crate) fn confinement(
        &self,
        workspace: &RunWorkspace,
        command: &Path,
        port: Option<u16>,
    ) -> Confinement {
        let mut confinement = self.settings.confinement();
        confinement.read_write = vec![workspace.path.clone(), workspace.home_path.clone()];
        confinement
            .read_only
            .extend(files_to_execute(command, &self.settings));
        confinement.connect.push(self.relay.port());
        // The harness binds this port, and its other processes connect to it.
        confinement.connect.extend(port);
        confinement.bind.extend(port);
        confinement
    }

    /// One line for each harness: runner id, and command or the reason of its absence. Logs missing commands, too.
    pub fn offered(&self) -> Vec<String> {
        let harnesses = self.settings.harnesses.iter();
        harnesses
            .filter_map(|harness| {
                let id = harness.runner_id().ok()?;
                if let Some(reason) = harness.missing() {
                    tracing::warn!("harness {id} is not available, {reason}");
                    return Some(format!("{id}: not available, {reason}"));
                }
                Some(format!("{id}: {}", find(harness.command())?.display()))
            })
            .collect()
    }

    /// A runner for each harness of the settings.
    pub fn runners(self: &Arc<Self>) -> anyhow::Result<Vec<Arc<dyn Runner>>> {
        let harnesses = self.settings.harnesses.iter();
        harnesses
            .map(|settings| {
                let runner: Arc<dyn Runner> = Arc::new(Harness {
                    service: Arc::clone(self),
                    settings: settings.clone(),
                    id: settings.runner_id()?,
                });
                Ok(runner)
            })
            .collect()
    }
}

impl Harness {
    pub(crate) fn id(&self) -> &RunnerId {
        &self.id
    }
}

/// Files that a command needs. Folders that contain all workspaces or the signing secret are excluded.
fn files_to_execute(command: &Path, settings: &HarnessFile) -> Vec<PathBuf> {
    let secret = settings.secret.strip_prefix("file:").map(Path::new);
    let private = [Some(settings.workspaces.as_path()), secret];
    let private: Vec<_> = private
        .into_iter()
        .flatten()
        .filter_map(|path| path.canonicalize().ok())
        .collect();
    // A command in a shared folder would open workspaces of other conversations to its harness.
    let is_around_private = |path: &PathBuf| {
        let real = path.canonicalize();
        real.is_ok_and(|real| private.iter().any(|private| private.starts_with(&real)))
    };
    let mut files = installation::files_of(command);
    files.extend(interpreter::files_of(command));
    files.retain(|path| !is_around_private(path));
    files
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn reads_no_folder_that_holds_workspaces_or_secret() {
        let name = format!("runnel-command-{}", uuid::Uuid::new_v4());
        let root = std::env::temp_dir().canonicalize().unwrap().join(name);
        fs::create_dir_all(root.join("workspaces")).unwrap();
        fs::create_dir_all(root.join("node_modules/agent")).unwrap();
        for (path, text) in [
            ("harness.secret", "secret"),
            ("package.json", r#"{"bin": "agent"}"#),
            ("agent", "program"),
            ("node_modules/agent/cli.js", "program"),
        ] {
            fs::write(root.join(path), text).unwrap();
        }
        let path = |name: &str| root.join(name);
        let files = |command: &str, workspaces: &str, secret: &str| {
            let text = format!(
                "secret = {:?}\nworkspaces = {:?}\n[[harnesses]]\npreset = \"codex\"",
                format!("file:{}", path(secret).display()),
                path(workspaces)
            );
            let mut files = files_to_execute(&path(command), &HarnessFile::parse(&text).unwrap());
            files.dedup();
            files
        };
        let own = "workspaces";
        assert_eq!(files("agent", own, "other.secret"), [path("agent")]);
        assert_eq!(
            files("agent", "elsewhere", "harness.secret"),
            [path("agent")]
        );
        let outside = files("agent", "elsewhere", "other.secret");
        assert_eq!(outside, [path("agent"), root.clone()]);
        let package = files("node_modules/agent/cli.js", own, "harness.secret");
        assert_eq!(
            package,
            [path("node_modules/agent/cli.js"), path("node_modules")]
        );
        fs::remove_dir_all(root).unwrap();
    }
}
