//! The measured processes: stub runner, proxy, gateways. Killed on drop.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout, Command};
use uuid::Uuid;

use crate::Options;
use crate::client::LoadConnection;
use crate::database::Database;
use crate::load::{LoadTarget, RequestKind};
use crate::stub::{RUNNER_ID, StubScript};

/// The secret shared by the gateway and its runner.
pub(crate) const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// Configuration file of a gateway, in its directory.
const CONFIG_FILE: &str = "runnel.toml";

/// Prints the listen address of this process.
pub(crate) fn announce(listener: &TcpListener) -> anyhow::Result<()> {
    println!("listening http://{}", listener.local_addr()?);
    Ok(())
}

/// A running server process.
pub(crate) struct MeasuredProcess {
    pub(crate) address: String,
    pub(crate) pid: u32,
    child: Child,
    /// Kept open: with a closed pipe, the process would fail to print.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl MeasuredProcess {
    async fn spawn(command: &mut Command, stderr: &Path) -> anyhow::Result<Self> {
        Self::start(command, fs::File::create(stderr)?.into()).await
    }

    pub(crate) async fn start(command: &mut Command, stderr: Stdio) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().context("it has ended")?;
        let mut stdout = BufReader::new(child.stdout.take().context("its output")?).lines();
        while let Some(line) = stdout.next_line().await? {
            let listens = line.contains("listening");
            if let Some((_, url)) = line.split_once("http://").filter(|_| listens) {
                return Ok(Self {
                    address: url.trim_end_matches('/').to_owned(),
                    pid,
                    child,
                    _stdout: stdout,
                });
            }
        }
        bail!("it ended before it listened")
    }

    /// Kills the process and waits for its exit.
    pub(crate) async fn kill(mut self) -> std::io::Result<()> {
        self.child.kill().await
    }
}

/// A gateway and an API key of role client.
pub(crate) struct Gateway {
    pub(crate) served: MeasuredProcess,
    pub(crate) key: String,
}

/// An API key and its id.
pub(crate) struct CreatedKey {
    pub(crate) id: String,
    pub(crate) key: String,
}

/// Additions to a gateway's configuration file.
#[derive(Clone, Copy, Default)]
pub(crate) struct ConfigAdditions<'a> {
    /// Lines of section `[server]`.
    pub(crate) server: &'a str,
    /// Lines of section `[runs]`.
    pub(crate) runs: &'a str,
    /// A further entry of `egress.allow`, in quotes.
    pub(crate) allow: &'a str,
    /// Tables at the end of the file.
    pub(crate) tables: &'a str,
}

/// The gateway's binary, the working directory, and the options.
pub(crate) struct BenchStage {
    pub(crate) options: Options,
    binary: PathBuf,
    directory: PathBuf,
    /// Shared by all gateways, because they use the same PostgreSQL database in turn.
    master_key: String,
}

impl BenchStage {
    pub(crate) async fn new(options: &Options) -> anyhow::Result<Self> {
        let own = std::env::current_exe()?;
        let beside = own.parent().context("a directory of this program")?;
        let binary = match &options.gateway {
            Some(binary) => binary.clone(),
            None => build(beside).await?,
        };
        let parent = options.directory.as_deref().unwrap_or(beside);
        let directory = parent.join(format!("bench-{}", Uuid::now_v7().simple()));
        fs::create_dir_all(&directory)?;
        let stage = Self {
            options: options.clone(),
            binary: fs::canonicalize(&binary).context("there is no such gateway binary")?,
            directory: fs::canonicalize(directory)?,
            master_key: format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()),
        };
        stage.reject_memory_file_system()?;
        Ok(stage)
    }

    /// Fails on a memory file system, where a commit is not durable.
    fn reject_memory_file_system(&self) -> anyhow::Result<()> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let mut mounted: Vec<_> = mounts
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(' ').skip(1);
                fields.next().zip(fields.next())
            })
            .filter(|(mount_point, _)| self.directory.starts_with(mount_point))
            .collect();
        mounted.sort_by_key(|(mount_point, _)| mount_point.len());
        let kind = mounted.last().map_or("unknown", |(_, kind)| kind);
        ensure!(
            !["tmpfs", "ramfs"].contains(&kind),
            "{} is {kind}: name a directory on a disk with --directory",
            self.directory.display()
        );
        Ok(())
    }

    /// The median time of a small durable write, in milliseconds.
    pub(crate) fn durable_write_ms(&self) -> anyhow::Result<f64> {
        use std::io::Write;
        let path = self.directory.join("probe");
        let mut file = fs::File::create(&path)?;
        let mut times = Vec::new();
        for _ in 0..100 {
            let begin = Instant::now();
            file.write_all(&[7; 4096])?;
            file.sync_data()?;
            times.push(begin.elapsed().as_secs_f64() * 1000.0);
        }
        fs::remove_file(path)?;
        Ok(crate::figures::median(&times))
    }

    pub(crate) async fn stub(&self) -> anyhow::Result<MeasuredProcess> {
        let mut command = Command::new(std::env::current_exe()?);
        let served =
            MeasuredProcess::spawn(command.arg("stub"), &self.directory.join("stub.log")).await;
        served.context("the stub runner does not start")
    }

    /// The harness service with these settings, from the directory of the gateway's binary.
    pub(crate) async fn harness(&self, settings: &str) -> anyhow::Result<MeasuredProcess> {
        let binary = self.binary.with_file_name("runnel-harness");
        ensure!(
            binary.exists(),
            "{} is not there: cargo build --profile dist --package harness",
            binary.display()
        );
        let file = self.directory.join("harness.toml");
        fs::write(&file, settings)?;
        let mut command = Command::new(binary);
        command.args(["serve", "--settings"]).arg(file);
        let served =
            MeasuredProcess::spawn(&mut command, &self.directory.join("harness.log")).await;
        served.context("the harness service does not start")
    }

    /// Directory for files of this measurement.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The measured databases: SQLite, and PostgreSQL if given.
    pub(crate) fn databases(&self) -> Vec<Database> {
        let postgres = self.options.postgres.as_deref();
        let postgres = postgres.map(|url| Database::at("postgres", url));
        [Database::sqlite()].into_iter().chain(postgres).collect()
    }

    /// Writes the shared secret and returns its path.
    pub(crate) fn secret(&self) -> anyhow::Result<PathBuf> {
        let path = self.directory.join("endpoint.secret");
        fs::write(&path, SECRET)?;
        Ok(path)
    }

    /// A gateway with the stub as its runner, and the target for requests. Its files are in this
    /// directory.
    pub(crate) async fn gateway(
        &self,
        directory: &str,
        database: &Database,
        runner: &str,
        extra: ConfigAdditions<'_>,
    ) -> anyhow::Result<(Gateway, LoadTarget)> {
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n{server}\n[egress]\nallow = [\"{runner}\", {allow}]\n[runs]\n{runs}\n\
             [[runner_endpoints]]\nname = \"stub\"\nbase_url = \"http://{runner}\"\n\
             secret = \"file:{secret}\"\n\
             [[agents]]\nname = \"main\"\nevent_types = [\"message.received\"]\n\
             scope = {{ kind = \"global\" }}\nrunner_id = \"{RUNNER_ID}\"\n\
             resource_policy = {{ history = [\"page\"] }}\n{tables}",
            server = extra.server,
            allow = extra.allow,
            runs = extra.runs,
            tables = extra.tables,
            secret = self.secret()?.display(),
        );
        self.serve(directory, database, &text).await
    }

    /// Starts `runnel serve` with defaults. `text` is its configuration without key and database.
    pub(crate) async fn serve(
        &self,
        instance: &str,
        database: &Database,
        text: &str,
    ) -> anyhow::Result<(Gateway, LoadTarget)> {
        let directory = self.directory.join(instance);
        fs::create_dir_all(&directory)?;
        let url = database.url(&directory);
        let master_key = directory.join("master.key");
        fs::write(&master_key, &self.master_key)?;
        let settings = format!(
            "[auth]\nmaster_key = \"file:{}\"\n[database]\nurl = \"{url}\"\n{text}",
            master_key.display()
        );
        fs::write(directory.join(CONFIG_FILE), settings)?;
        let key = self.create_key(instance, "client").await?.key;
        self.start(instance, database.name, key).await
    }

    /// Starts the gateway with this directory, which [`Self::serve`] has configured.
    pub(crate) async fn start(
        &self,
        instance: &str,
        name: &'static str,
        key: String,
    ) -> anyhow::Result<(Gateway, LoadTarget)> {
        let directory = self.directory.join(instance);
        let mut command = Command::new(&self.binary);
        command
            .arg("serve")
            .arg("--config")
            .arg(directory.join(CONFIG_FILE));
        let log = directory.join("stderr.log");
        let served = MeasuredProcess::spawn(&mut command, &log).await;
        let stderr = || fs::read_to_string(&log).unwrap_or_default();
        let served = served.with_context(|| format!("the gateway does not start: {}", stderr()))?;
        let target = LoadTarget {
            name,
            address: served.address.clone(),
            pid: Some(served.pid),
            ask: RequestKind::Gateway { key: key.clone() },
        };
        Ok((Gateway { served, key }, target))
    }

    /// Creates an API key of this role for the gateway with this directory, by its command.
    pub(crate) async fn create_key(
        &self,
        instance: &str,
        role: &str,
    ) -> anyhow::Result<CreatedKey> {
        let mut command = Command::new(&self.binary);
        command.args(["token", "create", "--role", role, "--name", "bench"]);
        let config = self.directory.join(instance).join(CONFIG_FILE);
        let output = command.args(["--json", "--config"]).arg(config).output();
        let output = output.await.context("the gateway's binary does not run")?;
        let created: Value = serde_json::from_slice(&output.stdout).with_context(|| {
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            format!("no API key: {complaint}")
        })?;
        let text = |name: &str| created[name].as_str().map(str::to_owned);
        Ok(CreatedKey {
            id: text("id").context("no id of an API key")?,
            key: text("key").context("no API key")?,
        })
    }
}

impl Drop for BenchStage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The log that only appends and syncs.
pub(crate) async fn append_log(stage: &BenchStage) -> anyhow::Result<MeasuredProcess> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("append-log")
        .arg(stage.directory.join("append.log"));
    let served = MeasuredProcess::start(&mut command, Stdio::inherit()).await;
    served.context("the log does not start")
}

/// The proxy that only forwards.
pub(crate) async fn passthrough(upstream: &str) -> anyhow::Result<MeasuredProcess> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["passthrough", upstream]);
    let served = MeasuredProcess::start(&mut command, Stdio::inherit()).await;
    served.context("the proxy does not start")
}

/// The connectors service, from the directory of the gateway's binary. It may also reach this platform, which is
/// not public.
pub(crate) async fn connectors(
    options: &Options,
    platform: &str,
) -> anyhow::Result<MeasuredProcess> {
    let program = match &options.gateway {
        Some(gateway) => gateway.clone(),
        None => std::env::current_exe()?,
    };
    let binary = program.with_file_name("runnel-connectors");
    ensure!(
        binary.exists(),
        "{} is not there: cargo build --profile dist --package connectors",
        binary.display()
    );
    let mut command = Command::new(binary);
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--log", "warn"])
        .args(["--allow", platform])
        .env("RUNNEL_CONNECTORS_SECRET", SECRET);
    let served = MeasuredProcess::start(&mut command, Stdio::inherit()).await;
    served.context("the connectors service does not start")
}

/// Builds the gateway with the profile of packages, in the directory of this program.
async fn build(directory: &Path) -> anyhow::Result<PathBuf> {
    ensure!(
        directory.ends_with("dist"),
        "only figures of the packages' profile are meaningful: cargo run --profile dist -p benches"
    );
    let mut command = Command::new("cargo");
    command.args([
        "build",
        "--profile",
        "dist",
        "-p",
        "gateway",
        "--bin",
        "runnel",
    ]);
    let built = command.status().await.context("cargo does not run")?;
    ensure!(built.success(), "the gateway does not build");
    Ok(directory.join("runnel"))
}

/// Sets the script of the stub runner.
pub(crate) async fn play(stub: &str, script: StubScript) -> anyhow::Result<()> {
    let status = post(stub, "/control", &script.to_json().to_string()).await?;
    ensure!(status == 200, "the stub runner answered {status}");
    Ok(())
}

/// Releases the held streams.
pub(crate) async fn release(stub: &str) -> anyhow::Result<()> {
    let status = post(stub, "/release", "{}").await?;
    ensure!(status == 200, "the stub runner answered {status}");
    Ok(())
}

/// Lets each held stream send one more event.
pub(crate) async fn tick(stub: &str) -> anyhow::Result<()> {
    let status = post(stub, "/tick", "{}").await?;
    ensure!(status == 200, "the stub runner answered {status}");
    Ok(())
}

/// Results of async runs that a gateway has accepted from the stub runner.
pub(crate) async fn appended(stub: &str) -> anyhow::Result<u64> {
    let counts = control(stub).await?;
    counts["appended"].as_u64().context("a count")
}

/// Connections and runs that the stub runner has accepted.
pub(crate) async fn stub_counts(stub: &str) -> anyhow::Result<(u64, u64)> {
    let counts = control(stub).await?;
    let count = |name: &str| counts[name].as_u64().context("a count");
    Ok((count("connections")?, count("runs")?))
}

async fn control(stub: &str) -> anyhow::Result<Value> {
    let mut connection = LoadConnection::open(stub).await?;
    connection
        .send(b"GET /control HTTP/1.1\r\nhost: stub\r\n\r\n")
        .await?;
    let mut body = Vec::new();
    connection
        .answer(|part| body.extend_from_slice(part))
        .await?;
    Ok(serde_json::from_slice(&body)?)
}

async fn post(address: &str, path: &str, body: &str) -> anyhow::Result<u16> {
    let mut connection = LoadConnection::open(address).await?;
    let length = body.len();
    let request =
        format!("POST {path} HTTP/1.1\r\nhost: stub\r\ncontent-length: {length}\r\n\r\n{body}");
    connection.send(request.as_bytes()).await?;
    connection.answer(|_| {}).await
}
