//! Restate on one node, from npm, with a service of ten steps.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::client::LoadConnection;
use crate::stage::{BenchStage, MeasuredProcess};

const FILES: [(&str, &str); 3] = [
    ("package.json", include_str!("../../restate/package.json")),
    (
        "package-lock.json",
        include_str!("../../restate/package-lock.json"),
    ),
    ("service.mjs", include_str!("../../restate/service.mjs")),
];
/// Limit of the start, which creates the partitions of a new node.
const START: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(100);

/// A server with its service. Both stop on drop.
pub(super) struct RestatePeer {
    pub(super) ingress: String,
    pub(super) pid: u32,
    _server: Child,
    _service: MeasuredProcess,
}

impl RestatePeer {
    /// Starts a new node in the directory of the measurement. Its log is synced, which is its default.
    pub(super) async fn start(stage: &BenchStage) -> anyhow::Result<Self> {
        let packages = install().await?;
        let mut command = Command::new("node");
        command.arg(packages.join("service.mjs"));
        command.env("RESTATE_LOGGING", "ERROR");
        let service = MeasuredProcess::start(&mut command, Stdio::inherit()).await;
        let service = service.context("Restate's service does not start; it needs Node 20")?;

        let [node, admin, ingress] = [free_address()?, free_address()?, free_address()?];
        let base = stage.directory().join("restate");
        fs::create_dir_all(&base)?;
        let log = fs::File::create(base.join("output.log"))?;
        let server = Command::new(packages.join(server_program()?))
            .current_dir(&base)
            .env("RESTATE_BASE_DIR", &base)
            .env("RESTATE_NODE_NAME", "bench")
            .env("RESTATE_LISTEN_MODE", "tcp")
            .env("RESTATE_BIND_ADDRESS", node)
            .env("RESTATE_ADMIN__BIND_ADDRESS", &admin)
            .env("RESTATE_INGRESS__BIND_ADDRESS", &ingress)
            .env("RESTATE_DISABLE_TELEMETRY", "true")
            .env("RESTATE_LOG_FILTER", "warn")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("Restate's server does not start")?;
        let uri = format!("http://{}", service.address);
        let register = post(&admin, "/deployments", &json!({"uri": uri}).to_string());
        until(&admin, &register, 201).await?;
        // The ingress learns of the service some time after the registration.
        until(&ingress, &post(&ingress, "/bench/awaited", "{}"), 200).await?;
        Ok(Self {
            ingress,
            pid: server.id().context("Restate's server has ended")?,
            _server: server,
            _service: service,
        })
    }
}

/// Installs the locked packages next to this program, once for each lock file.
async fn install() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let directory = own.with_file_name("restate-peer");
    let is_installed = directory.join("node_modules").exists()
        && FILES
            .iter()
            .all(|(name, text)| is_equal(&directory.join(name), text));
    if is_installed {
        return Ok(directory);
    }
    fs::create_dir_all(&directory)?;
    for (name, text) in FILES {
        fs::write(directory.join(name), text)?;
    }
    // No package needs its scripts: the server is a binary in a package.
    let installed = Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(&directory)
        .status();
    let installed = installed
        .await
        .context("npm does not run; install Node 20")?;
    ensure!(installed.success(), "npm cannot install Restate");
    Ok(directory)
}

fn is_equal(file: &Path, text: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|found| found == text)
}

/// The server's program, without the script that would start it as a child.
fn server_program() -> anyhow::Result<String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => anyhow::bail!("Restate has no server for {other}"),
    };
    let package = format!("@restatedev/restate-server-linux-{architecture}");
    Ok(format!("node_modules/{package}/bin/restate-server"))
}

fn free_address() -> anyhow::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

fn post(address: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Repeats a request until it is answered with `status`.
async fn until(address: &str, request: &[u8], status: u16) -> anyhow::Result<()> {
    let answered = timeout(START, async {
        while send(address, request).await.ok() != Some(status) {
            tokio::time::sleep(POLL).await;
        }
    });
    answered
        .await
        .with_context(|| format!("Restate at {address} does not answer {status}"))
}

async fn send(address: &str, request: &[u8]) -> anyhow::Result<u16> {
    let mut connection = LoadConnection::open(address).await?;
    connection.send(request).await?;
    connection.answer(|_| {}).await
}
