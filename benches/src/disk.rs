//! Bytes and syncs that processes send to a disk.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::process::{children, written};

/// The processes that write a database: the gateway, and the server of PostgreSQL with its children.
pub(crate) struct DiskWriters {
    pub(crate) gateway: u32,
    pub(crate) server: Option<u32>,
}

impl DiskWriters {
    fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let mut pids = vec![self.gateway];
        if let Some(server) = self.server {
            pids.extend(children(server)?);
            pids.push(server);
        }
        Ok(pids)
    }

    /// Bytes written since these processes started.
    pub(crate) fn written(&self) -> anyhow::Result<u64> {
        let mut bytes = written(self.gateway)?;
        if let Some(server) = self.server {
            // The bytes of a child that has just ended are in the count of the server, which is read last.
            let live = children(server)?
                .into_iter()
                .filter_map(|pid| written(pid).ok());
            bytes += live.sum::<u64>() + written(server)?;
        }
        Ok(bytes)
    }

    /// Calls of `fsync` and `fdatasync` by these processes during `work`. Tracing slows them.
    pub(crate) async fn syncs<T>(
        &self,
        directory: &Path,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<u64> {
        let summary = directory.join("strace.txt");
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-e", "trace=fsync,fdatasync", "-o"]);
        command.arg(&summary);
        let pids = self.pids()?;
        for pid in &pids {
            command.args(["-p", &pid.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::piped()).kill_on_drop(true);
        let mut tracing = command.spawn().context("strace does not run; install it")?;
        let id = tracing.id().context("strace has ended")?.to_string();
        // Held open until the end, because strace also prints the threads that it detaches from.
        let mut lines = BufReader::new(tracing.stderr.take().context("its output")?).lines();
        let mut attached = 0;
        while attached < pids.len() {
            let line = lines
                .next_line()
                .await?
                .context("strace attaches to nothing")?;
            // A session of the server may end before strace reaches it.
            let has_ended = line.contains("No such process");
            ensure!(
                has_ended || !line.contains("ptrace("),
                "{line}: run as root"
            );
            attached += usize::from(has_ended || line.contains(" attached"));
        }
        work.await?;
        let interrupted = Command::new("kill").args(["-INT", &id]).status().await?;
        ensure!(interrupted.success(), "strace has ended early");
        tracing.wait().await?;
        Ok(count_calls(&tokio::fs::read_to_string(summary).await?))
    }
}

/// The sum of the calls in a summary of strace: `% time, seconds, usecs/call, calls, errors, syscall`.
fn count_calls(summary: &str) -> u64 {
    let rows = summary.lines().filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let is_sync = columns.last().is_some_and(|name| name.ends_with("sync"));
        columns.get(3).filter(|_| is_sync)?.parse::<u64>().ok()
    });
    rows.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_calls_of_strace_summary() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n\
            ------ ----------- ----------- --------- --------- ----------------\n \
            60.00    0.012422          41       302           fdatasync\n \
            40.00    0.002422          41        11         1 fsync\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.014844          41       313           total\n";
        assert_eq!(count_calls(summary), 313);
        assert_eq!(count_calls(""), 0);
    }
}
