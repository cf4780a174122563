//! The binary: start, health check, stop, and a trial against a platform.
#![expect(clippy::unwrap_used, reason = "a test states its precondition")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_runnel-connectors");
const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// Killed on drop.
struct ServiceProcess(Child);

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments).env_clear();
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn serves_until_stop_signal() {
    let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--ids", "langbot"]);
    let serve = serve.env("RUNNEL_CONNECTORS_SECRET", SECRET);
    let started = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut service = ServiceProcess(started.unwrap());
    let mut lines = BufReader::new(service.0.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let (_, port) = first.rsplit_once(':').unwrap();
    let health = |port: &str| command(&["health", "--port", port]).status().unwrap();
    assert!(health(port).success());
    let pid = service.0.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert!(service.0.wait().unwrap().success());
    assert!(!health(port).success());
    let ids: Vec<_> = lines.map(Result::unwrap).collect();
    for id in [
        "plugin:runnel/dify-agent/default",
        "plugin:langbot/dify-agent/default",
    ] {
        assert!(ids.iter().any(|offered| offered == id), "{ids:?}");
    }
}

#[test]
fn rejects_options_that_expose_secrets() {
    for (arguments, secret, part) in [
        (&["serve"][..], None, "RUNNEL_CONNECTORS_SECRET"),
        (&["serve"], Some("short"), "cannot be used"),
        (&["serve", "--secrets", ""], Some(SECRET), "--secrets"),
        (
            &["serve", "--secrets", "RUNNEL_"],
            Some(SECRET),
            "--secrets",
        ),
        (&["serve", "--allow", "10.0.0.1"], Some(SECRET), "no port"),
    ] {
        let mut serve = command(arguments);
        if let Some(secret) = secret {
            serve.env("RUNNEL_CONNECTORS_SECRET", secret);
        }
        let refused = serve.args(["--listen", "127.0.0.1:0"]).output().unwrap();
        let stderr = text(&refused.stderr);
        assert!(
            !refused.status.success() && stderr.contains(part),
            "{arguments:?}: {stderr}"
        );
        assert!(!stderr.contains("short"), "{stderr}");
    }
}

/// Runs an HTTP agent against a platform that sends this body once.
fn try_against(body: &'static str, events: &str) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let platform = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let read = socket.read(&mut request).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        socket.write_all((head + body).as_bytes()).unwrap();
        text(&request[..read])
    });
    let file = std::env::temp_dir().join(format!("connectors-{}.toml", address.replace(':', "-")));
    let config = format!(
        "runner_id = \"http-agent\"\n[config]\nurl = \"http://{address}/\"\nformat = \"lines\"\n\
         headers = {{ authorization = \"env:CONNECTOR_KEY\" }}\nevents = {{ {events} }}\n"
    );
    std::fs::write(&file, config).unwrap();
    let file_name = file.to_str().unwrap();
    let tried = command(&["try", file_name, "--text", "hello", "--allow", &address])
        .env("CONNECTOR_KEY", "key-of-the-test")
        .output()
        .unwrap();
    std::fs::remove_file(&file).unwrap();
    let request = platform.join().unwrap();
    assert!(
        request.contains("authorization: key-of-the-test"),
        "{request}"
    );
    tried
}

#[test]
fn tries_an_agent_and_prints_its_results() {
    let tried = try_against(
        "{\"t\": \"He\"}\n{\"t\": \"llo\", \"s\": \"s-1\"}\n",
        "delta = \".t\", session = \".s?\"",
    );
    assert!(tried.status.success(), "{tried:?}");
    assert_eq!(
        text(&tried.stdout),
        "He\n[state] external.session_id = s-1\nllo\n[completed] stop\n\
         to continue: --state '{\"external.session_id\":\"s-1\"}'\n"
    );
}

#[test]
fn failures_are_printed_with_their_code() {
    let tried = try_against(
        "{\"e\": \"broken: key-of-the-test\"}\n",
        "delta = \".t\", error = \".e?\"",
    );
    assert!(!tried.status.success());
    assert_eq!(
        text(&tried.stdout),
        "[failed] http_agent.api_error: the platform reported an error: broken: [redacted]\n"
    );
}
