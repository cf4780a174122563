//! Time from the event to a harness's first piece, compared with the same harness started directly. Also the
//! service's memory while sessions are idle. The harness is the fake ACP agent of the tests and needs only
//! Python.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

use crate::Options;
use crate::client::LoadConnection;
use crate::figures::{percentile, write};
use crate::process::{machine, resident};
use crate::stage::{BenchStage, ConfigAdditions};

const RUNNER: &str = "plugin:runnel/acp/default";

pub(crate) async fn run(options: &Options, sessions: usize) -> anyhow::Result<()> {
    let stage = BenchStage::new(options).await?;
    println!("{}", machine());
    let agent = FakeAgent::find().await?;
    let secret = stage.secret()?;
    let settings = format!(
        "listen = \"127.0.0.1:0\"\nsecret = \"file:{}\"\nworkspaces = {}\nreadable = [{}]\n\
         [[harnesses]]\npreset = \"acp\"\ncommand = {}\nargs = [{}, \"good\"]\n",
        secret.display(),
        quoted(&stage.directory().join("workspaces")),
        [quoted(&agent.prefix), quoted(&agent.folder())].join(", "),
        quoted(&agent.python),
        quoted(&agent.script),
    );
    let service = stage.harness(&settings).await?;
    let tables = format!(
        "[[model_providers]]\nname = \"script\"\nkind = \"scripted\"\n[[models]]\nmodel_id = \"m\"\nprovider = \"script\"\n\
         [[agents]]\nname = \"coder\"\nevent_types = [\"bench.coded\"]\nscope = {{ kind = \"global\" }}\nrunner_id = \"{RUNNER}\"\n\
         resource_policy = {{ models = [\"m\"] }}\nstate_policy = {{ enabled = true, scopes = [\"conversation\"] }}\n\
         config = {{ model = \"m\" }}\n"
    );
    let extra = ConfigAdditions {
        tables: &tables,
        allow: "\"127.0.0.1:1\"",
        ..ConfigAdditions::default()
    };
    let database = stage.databases().into_iter().next().context("a database")?;
    let (_gateway, target) = stage
        .gateway("harness", &database, &service.address, extra)
        .await?;
    let (mut by_hand, mut through) = (Vec::new(), Vec::new());
    for session in 0..sessions {
        by_hand.push(agent.first_piece(stage.directory()).await?);
        let request = target.request(session, "text/event-stream", "bench.coded");
        through.push(first_piece(&target.address, &request).await?);
    }
    let memory = resident(service.pid)? as f64 / 1024.0 / 1024.0;
    let [hand, way] = [&by_hand, &through].map(|times| percentile(times, 50.0));
    println!(
        "first piece    +{:.0} ms p50 over the harness started by hand ({hand:.0} ms), {sessions} sessions",
        way - hand
    );
    println!("memory         {memory:.1} MiB of the service with {sessions} idle sessions");
    let figures = json!({
        "sessions": sessions, "added_p50_ms": way - hand, "by_hand_p50_ms": hand, "memory_mib": memory,
    });
    write(options, &json!({"machine": machine(), "harness": figures}))
}

/// The path as a TOML string.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.to_string_lossy())
}

/// Milliseconds from the request to the first `message.delta`. Reads the stream to its end.
async fn first_piece(address: &str, request: &[u8]) -> anyhow::Result<f64> {
    let mut connection = LoadConnection::open(address).await?;
    let begin = Instant::now();
    connection.send(request).await?;
    let (mut text, mut first) = (String::new(), None);
    let status = connection
        .answer(|part| {
            text.push_str(&String::from_utf8_lossy(part));
            if first.is_none() && text.contains("message.delta") {
                first = Some(begin.elapsed());
            }
        })
        .await?;
    ensure!(
        status == 200 && text.contains("run.completed"),
        "HTTP {status}: {text}"
    );
    Ok(first.context("no piece")?.as_secs_f64() * 1000.0)
}

/// The fake agent.
struct FakeAgent {
    python: PathBuf,
    prefix: PathBuf,
    script: PathBuf,
}

impl FakeAgent {
    async fn find() -> anyhow::Result<Self> {
        let program =
            "import os, sys; print(os.path.realpath(sys.executable)); print(sys.base_prefix)";
        let printed = Command::new("python3")
            .args(["-c", program])
            .output()
            .await?;
        let printed = String::from_utf8(printed.stdout)?;
        let mut lines = printed.lines().map(PathBuf::from);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/acp_agent.py");
        Ok(Self {
            python: lines.next().context("python3")?,
            prefix: lines.next().context("python3")?,
            script: script.canonicalize()?,
        })
    }

    fn folder(&self) -> PathBuf {
        self.script
            .parent()
            .map(Path::to_path_buf)
            .unwrap_or_default()
    }

    /// Milliseconds from the start of the process to the first piece of its answer.
    async fn first_piece(&self, directory: &Path) -> anyhow::Result<f64> {
        let begin = Instant::now();
        let mut child = Command::new(&self.python)
            .arg(&self.script)
            .arg("good")
            .env("HOME", directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut stdin = child.stdin.take().context("its input")?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
        send(&mut stdin, 1, "initialize", hello).await?;
        response(&mut lines, 1).await?;
        send(
            &mut stdin,
            2,
            "session/new",
            json!({"cwd": directory, "mcpServers": []}),
        )
        .await?;
        let opened = response(&mut lines, 2).await?;
        let prompt = json!([{"type": "text", "text": "hello"}]);
        let params = json!({"sessionId": opened["result"]["sessionId"], "prompt": prompt});
        send(&mut stdin, 3, "session/prompt", params).await?;
        while let Some(line) = lines.next_line().await? {
            if line.contains("agent_message_chunk") {
                return Ok(begin.elapsed().as_secs_f64() * 1000.0);
            }
        }
        anyhow::bail!("the agent sent nothing")
    }
}

async fn send(
    stdin: &mut tokio::process::ChildStdin,
    id: u64,
    method: &str,
    params: Value,
) -> anyhow::Result<()> {
    let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    stdin.write_all(format!("{message}\n").as_bytes()).await?;
    Ok(stdin.flush().await?)
}

async fn response(
    lines: &mut tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    id: u64,
) -> anyhow::Result<Value> {
    while let Some(line) = lines.next_line().await? {
        let message: Value = serde_json::from_str(&line)?;
        if message["id"] == id {
            return Ok(message);
        }
    }
    anyhow::bail!("the agent ended")
}
