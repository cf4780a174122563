//! The binary as a service: start, requests, stop.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_runnel-protocol-agent");
const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// Service process. Killed on drop.
struct ProtocolAgentProcess(Child);

impl Drop for ProtocolAgentProcess {
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

/// Starts the service and returns the address that it reports.
fn start(command: &mut Command) -> (ProtocolAgentProcess, String) {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = piped.spawn().unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let (id, url) = line.trim().split_once(" listening on http://").unwrap();
    assert_eq!(id, "plugin:runnel/protocol-agent/default");
    (ProtocolAgentProcess(child), url.to_owned())
}

fn is_healthy(address: &str) -> bool {
    let output = agent(&["--health", "--listen", address]).output().unwrap();
    output.status.success()
}

#[test]
fn serves_refuses_unsigned_requests_and_stops() {
    let mut command = agent(&["--listen", "127.0.0.1:0"]);
    let (mut agent, address) = start(command.env("PROTOCOL_AGENT_SECRET", SECRET));
    assert!(is_healthy(&address));

    let mut socket = TcpStream::connect(&address).unwrap();
    socket.write_all(b"GET /runners HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 401"), "unsigned: {answer}");

    let pid = agent.0.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert!(agent.0.wait().unwrap().success());
    assert!(!is_healthy(&address));
}

#[test]
fn missing_secret_is_named() {
    let refused = agent(&["--listen", "127.0.0.1:0"]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(error.contains("PROTOCOL_AGENT_SECRET"), "{error}");
}
