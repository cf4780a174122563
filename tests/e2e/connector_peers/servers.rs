//! Servers of the platforms: scripts of `tests/peer` on packages of `PyPI`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Once;

use tokio::process::Command;
use uuid::Uuid;

use crate::support::listening::ChildServer;
use crate::support::peer::environment;
use crate::support::repository::repository_file;
use crate::support::skipped;

const PEERS: [&str; 4] = [
    "a2a-sdk[http-server]==1.3.0",
    "ag-ui-protocol==1.0.0",
    "uvicorn==0.54.0",
    "starlette==1.10.0",
];
static NO_PEERS: Once = Once::new();
static NO_PLATFORMS: Once = Once::new();

/// An A2A agent with this binding. `None` if its packages cannot be installed.
pub async fn a2a_agent(binding: &str) -> Option<ChildServer> {
    peer("a2a_agent.py", &[binding]).await
}

/// An AG-UI agent. `None` if its packages cannot be installed.
pub async fn ag_ui_agent() -> Option<ChildServer> {
    peer("ag_ui_agent.py", &[]).await
}

async fn peer(script: &str, arguments: &[&str]) -> Option<ChildServer> {
    let installed = environment("connector-peers-1", &PEERS).await;
    let Some(installed) = installed else {
        skipped(
            &NO_PEERS,
            "python",
            "the agents of A2A and AG-UI could not be installed",
        );
        return None;
    };
    let mut command = script_of(&installed, script);
    Some(ChildServer::spawn(command.args(arguments)).await.unwrap())
}

/// A LangGraph server. `None` unless `RUNNEL_TEST_PLATFORMS` names `langgraph`.
pub async fn langgraph() -> Option<ChildServer> {
    const PACKAGES: [&str; 2] = ["langgraph-cli[inmem]==0.4.40", "langgraph==1.2.24"];
    let installed = platform("langgraph", &PACKAGES).await?;
    let mut command = script_of(&installed, "langgraph_server.py");
    Some(ChildServer::spawn_slow(&mut command).await.unwrap())
}

/// Langflow with a flow that echoes the message.
pub struct Langflow {
    pub server: ChildServer,
    pub key: String,
    pub flow: String,
}

/// A Langflow server. `None` unless `RUNNEL_TEST_PLATFORMS` names `langflow`.
pub async fn langflow() -> Option<Langflow> {
    let installed = platform("langflow", &["langflow==1.13.0"]).await?;
    let mut command = script_of(&installed, "langflow_server.py");
    let server = ChildServer::spawn_slow(&mut command).await.unwrap();
    let [key, flow] = &server.details[..] else {
        panic!("the server prints its key and its flow");
    };
    let (key, flow) = (key.clone(), flow.clone());
    Some(Langflow { server, key, flow })
}

async fn platform(name: &str, packages: &[&str]) -> Option<PathBuf> {
    let wanted = std::env::var("RUNNEL_TEST_PLATFORMS").unwrap_or_default();
    if !wanted.split_whitespace().any(|wanted| wanted == name) {
        let why = format!("RUNNEL_TEST_PLATFORMS does not name {name} and maybe others");
        skipped(&NO_PLATFORMS, "every-platform", &why);
        return None;
    }
    Some(environment_by_uv(name, packages).await)
}

/// Like `environment`, but installed by `uv`: pip takes many minutes to resolve the versions of a large
/// platform.
async fn environment_by_uv(name: &str, packages: &[&str]) -> PathBuf {
    let uv = environment("uv==0.13.9", &["uv==0.13.9"]).await;
    let uv = uv.expect("uv can be installed").join("bin/uv");
    let finished = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("platform-{name}"));
    if !finished.exists() {
        let unfinished = finished.with_extension(Uuid::new_v4().to_string());
        run(Command::new(&uv).args(["venv", "--quiet"]).arg(&unfinished)).await;
        let mut install = Command::new(&uv);
        install.args(["pip", "install", "--quiet", "--python"]);
        run(install.arg(unfinished.join("bin/python")).args(packages)).await;
        let moved = std::fs::rename(&unfinished, &finished);
        assert!(moved.is_ok() || finished.exists(), "{moved:?}");
    }
    finished
}

async fn run(command: &mut Command) {
    let status = command.stdin(Stdio::null()).kill_on_drop(true).status();
    let status = status.await.unwrap();
    assert!(status.success(), "{command:?} ended with {status}");
}

fn script_of(environment: &Path, script: &str) -> Command {
    let mut command = Command::new(environment.join("bin/python"));
    command
        .arg(repository_file("tests/peer").join(script))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
