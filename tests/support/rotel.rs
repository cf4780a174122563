//! Rotel, a real OpenTelemetry collector from `PyPI`, which relays to the collector of the test.

use std::process::Stdio;
use std::sync::Once;

use tokio::process::{Child, Command};

use super::peer::environment;
use super::{TempDirectory, skipped, until};

const PACKAGE: &str = "rotel==0.0.1a15";

/// Killed on drop.
pub struct Rotel {
    pub url: String,
    _process: Child,
    _directory: TempDirectory,
}

impl Rotel {
    /// Relays to the OTLP endpoint at `target`. Returns `None` if the package cannot be installed.
    pub async fn start(target: &str) -> Option<Self> {
        static SKIPPED: Once = Once::new();
        let Some(environment) = environment(PACKAGE, &[PACKAGE]).await else {
            skipped(&SKIPPED, "python", "rotel could not be installed");
            return None;
        };
        let program = Command::new(environment.join("bin/python"))
            .args(["-c", "import rotel; print(rotel.__path__[0])"])
            .output();
        let package = String::from_utf8(program.await.unwrap().stdout).unwrap();
        let directory = TempDirectory::new();
        let [http, grpc] = [unused_address(), unused_address()];
        let process = Command::new(format!("{}/rotel-agent", package.trim()))
            .args(["start", "--otlp-http-endpoint", &http])
            .args(["--otlp-grpc-endpoint", &grpc])
            .args(["--exporter", "otlp", "--otlp-exporter-protocol", "http"])
            .args(["--otlp-exporter-endpoint", target])
            .args(["--batch-timeout", "100ms", "--pid-file"])
            .arg(directory.file("pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        until("Rotel to listen", async || {
            tokio::net::TcpStream::connect(&http).await.is_ok()
        })
        .await;
        Some(Self {
            url: format!("http://{http}"),
            _process: process,
            _directory: directory,
        })
    }
}

/// An address that no program listens at.
fn unused_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}
