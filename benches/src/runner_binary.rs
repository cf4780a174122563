//! Runners in processes of their own that can restart at the same address.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use crate::stage::{BenchStage, MeasuredProcess, SECRET};

/// A runner's binary, the variable of its signing secret, and its fixed address.
pub(crate) struct RunnerBinary {
    binary: PathBuf,
    secret: &'static str,
    pub(crate) listen: String,
    log: PathBuf,
}

impl RunnerBinary {
    /// The binary from the directory of this program, with a free address.
    pub(crate) fn find(
        stage: &BenchStage,
        name: &str,
        secret: &'static str,
    ) -> anyhow::Result<Self> {
        let binary = std::env::current_exe()?.with_file_name(name);
        ensure!(
            binary.exists(),
            "{} is not there: cargo build --profile dist -p local-agent -p protocol-agent",
            binary.display()
        );
        let free = std::net::TcpListener::bind("127.0.0.1:0")?;
        Ok(Self {
            binary,
            secret,
            listen: free.local_addr()?.to_string(),
            log: stage.directory().join(format!("{name}.log")),
        })
    }

    pub(crate) async fn start(&self) -> anyhow::Result<MeasuredProcess> {
        let mut command = Command::new(&self.binary);
        command.args(["--listen", &self.listen, "--log", "warn"]);
        command.env(self.secret, SECRET);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)?;
        let served = MeasuredProcess::start(&mut command, log.into()).await;
        served.with_context(|| format!("{} does not start", self.binary.display()))
    }
}
