//! Programs in TypeScript: installed and built by npm once for all test runs.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Once;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use tokio::process::Command;
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::listening::ChildServer;
use super::repository::repository_file;
use super::runner::SECRET;
use super::skipped;

/// A directory of this repository with a `package.json` and its lock file.
pub struct NodeProject {
    path: &'static str,
    built: OnceCell<Option<PathBuf>>,
    skipped: Once,
}

impl NodeProject {
    pub const fn at(path: &'static str) -> Self {
        Self {
            path,
            built: OnceCell::const_new(),
            skipped: Once::new(),
        }
    }

    /// A copy with its packages installed and, if it has a build, built. `None` without Node or a package
    /// source. `need` is the name in `RUNNEL_TEST_REQUIRE`.
    pub async fn built(&self, need: &str) -> Option<&Path> {
        let built = self.built.get_or_init(|| build(self.path)).await;
        if built.is_none() {
            skipped(
                &self.skipped,
                need,
                "Node and npm are not there, too old, or could not install",
            );
        }
        built.as_deref()
    }
}

/// Run no package scripts, and refuse packages that need another Node version.
const INSTALL: [&str; 5] = [
    "ci",
    "--no-audit",
    "--no-fund",
    "--ignore-scripts",
    "--engine-strict",
];

static ECHO: NodeProject = NodeProject::at("examples/typescript");

/// The echo runner of `examples/typescript` as a child process. `None` without Node.
pub async fn typescript_echo() -> Option<ChildServer> {
    let built = ECHO.built("node").await?;
    let mut command = Command::new("node");
    command
        .arg(built.join("dist/echo_runner.js"))
        .env("PORT", "0")
        .env("RUNNER_SECRET", SECRET);
    Some(ChildServer::spawn(&mut command).await.unwrap())
}

/// The directory name is a hash of the source. The first test run moves the finished copy into place.
async fn build(path: &str) -> Option<PathBuf> {
    let node = Command::new("node").arg("--version").output().await;
    node.ok()?;
    let files = files_of(&repository_file(path));
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = format!("{}-{}", path.replace('/', "-"), fingerprint(&files));
    let finished = cache.join(&name);
    if finished.exists() {
        return Some(finished);
    }
    let unfinished = cache.join(format!("{name}-{}", Uuid::new_v4()));
    std::fs::create_dir(&unfinished).unwrap();
    for (name, bytes) in &files {
        std::fs::write(unfinished.join(name), bytes).unwrap();
    }
    let installed = npm(&unfinished, &INSTALL).await;
    if installed.is_ok() {
        let built = npm(&unfinished, &["run", "build", "--if-present"]).await;
        built.unwrap_or_else(|printed| panic!("{path} cannot be built\n{printed}"));
    }
    let moved =
        installed.is_ok() && (std::fs::rename(&unfinished, &finished).is_ok() || finished.exists());
    let _ = std::fs::remove_dir_all(&unfinished);
    moved.then_some(finished)
}

/// File names and contents in order. Directories are skipped: they hold installed packages and build output.
pub fn files_of(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let mut files: Vec<_> = files
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

pub fn fingerprint(files: &[(String, Vec<u8>)]) -> String {
    let digests = files.iter().flat_map(|(name, bytes)| {
        [name.as_bytes(), bytes].map(|part| digest(&SHA256, part).as_ref().to_vec())
    });
    let digest_of_all = digest(&SHA256, &digests.collect::<Vec<_>>().concat());
    let mut hex = String::new();
    for byte in &digest_of_all.as_ref()[..8] {
        write!(hex, "{byte:02x}").unwrap();
    }
    hex
}

/// Returns the output of npm as the error.
async fn npm(directory: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("npm")
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ended = tokio::time::timeout(Duration::from_mins(5), output).await;
    let output = ended
        .map_err(|late| late.to_string())?
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let printed = [output.stdout, output.stderr].concat();
    Err(String::from_utf8_lossy(&printed).into_owned())
}
