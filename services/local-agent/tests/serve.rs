//! Runs the binary as a service: start, request, stop.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Output, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_local-agent");
const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// Killed on drop.
struct LocalAgentProcess(Child);

impl Drop for LocalAgentProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn agent(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments).env_clear();
    command
}

/// Starts the binary and returns its address.
fn start(command: &mut Command) -> (LocalAgentProcess, String) {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = piped.spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let (id, url) = line.trim().split_once(" listening on http://").unwrap();
    assert!(id.starts_with("plugin:"), "{line}");
    (LocalAgentProcess(child), url.to_owned())
}

fn health(address: &str) -> Output {
    agent(&["--health", "--listen", address]).output().unwrap()
}

#[test]
fn serves_health_rejects_unsigned_and_stops() {
    let mut command = agent(&["--listen", "127.0.0.1:0"]);
    let (mut agent, address) = start(command.env("LOCAL_AGENT_SECRET", SECRET));
    assert!(health(&address).status.success());

    let mut socket = std::net::TcpStream::connect(&address).unwrap();
    std::io::Write::write_all(&mut socket, b"GET /runners HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 401"), "unsigned: {answer}");

    let pid = agent.0.id().to_string();
    let kill = Command::new("kill").arg(&pid).status().unwrap();
    assert!(kill.success());
    assert!(agent.0.wait().unwrap().success());
    let gone = health(&address);
    assert!(!gone.status.success());
    assert!(String::from_utf8_lossy(&gone.stderr).contains("nothing answers well"));
}

#[test]
fn requires_secret_in_environment_or_file() {
    let file = std::env::temp_dir().join(format!("local-agent-{}.secret", std::process::id()));
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let mut command = agent(&[
        "--listen",
        "127.0.0.1:0",
        "--runner-id",
        "plugin:langbot/local-agent/default",
    ]);
    let (agent_of_langbot, _) = start(command.env("LOCAL_AGENT_SECRET_FILE", &file));
    drop(agent_of_langbot);
    std::fs::remove_file(&file).unwrap();

    let refused = agent(&["--listen", "127.0.0.1:0"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && stderr.contains("LOCAL_AGENT_SECRET"),
        "{stderr}"
    );
    let bad = agent(&["--listen", "127.0.0.1:0"])
        .env("LOCAL_AGENT_SECRET", "short")
        .output()
        .unwrap();
    assert!(
        !String::from_utf8_lossy(&bad.stderr).contains("short"),
        "errors never contain the secret"
    );
}
