//! Export of administrative changes to a file or an HTTP receiver, as OCSF events (`docs/people.md`).
//!
//! Replicas claim changes in batches. A batch is marked after the receiver has accepted it, so each change is exported at
//! least once; `metadata.uid` identifies repetitions.

mod ocsf;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use egress::{Egress, EgressError, read_up_to};
use http::Method;
use http::header::CONTENT_TYPE;
use secrecy::{ExposeSecret as _, SecretString};
use store::{Store, StoreError};
use telemetry::metrics::changes_exported;
use url::Url;

/// Pause after an empty batch.
const PAUSE: Duration = Duration::from_secs(2);
/// Pauses after failures double from the first to the last.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_mins(1);
/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of a response that are read, so that its connection can be used again.
const ANSWER_BYTES: usize = 16 * 1024;

/// Receiver of exported changes.
#[derive(Clone)]
pub(crate) enum ChangeReceiver {
    /// Appends to this file, which is opened for each batch.
    File(PathBuf),
    /// Posts NDJSON. Each header may be a secret.
    Http {
        url: Url,
        headers: BTreeMap<String, SecretString>,
    },
}

/// Exports the changes of all workspaces.
pub(crate) struct ChangeExport {
    store: Store,
    egress: Egress,
    receiver: ChangeReceiver,
}

#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{}: {source}", file.display())]
    File { file: PathBuf, source: io::Error },
    #[error("{0}")]
    Egress(String),
    #[error("it answered HTTP {0}")]
    Status(u16),
    #[error("the write to the file was interrupted")]
    Interrupted,
}

impl ChangeExport {
    /// `None`: there is no receiver.
    pub(crate) fn to(
        receiver: Option<Box<ChangeReceiver>>,
        store: &Store,
        egress: &Egress,
    ) -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            store: store.clone(),
            egress: egress.clone(),
            receiver: *receiver?,
        }))
    }

    /// Exports until the process stops.
    pub(crate) async fn keep_exporting(&self) {
        let mut retry = FIRST_RETRY;
        loop {
            match self.export_batch().await {
                Ok(0) => tokio::time::sleep(PAUSE).await,
                Ok(_) if retry > FIRST_RETRY => {
                    tracing::info!("the receiver of audit.export accepts changes again");
                    retry = FIRST_RETRY;
                }
                Ok(_) => {}
                Err(error) => {
                    if retry == FIRST_RETRY {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "audit.export cannot export changes, trying again: {error}"
                        );
                    }
                    tokio::time::sleep(retry).await;
                    retry = (2 * retry).min(LAST_RETRY);
                }
            }
        }
    }

    /// Exports one batch; returns its size.
    async fn export_batch(&self) -> Result<usize, ExportError> {
        let changes = self.store.audit_log().claim_changes().await?;
        if changes.is_empty() {
            return Ok(0);
        }
        let mut lines = String::new();
        for change in &changes {
            lines.push_str(&ocsf::event(change).to_string());
            lines.push('\n');
        }
        let count = changes.len();
        let sent = match &self.receiver {
            ChangeReceiver::File(path) => append(path.clone(), lines).await,
            ChangeReceiver::Http { url, headers } => self.post(url, headers, lines).await,
        };
        changes_exported(if sent.is_ok() { "exported" } else { "failed" }, count);
        let ids = changes.iter().map(|one| one.change.id).collect();
        let log = self.store.audit_log();
        match sent {
            Ok(()) => log.mark_exported(ids).await?,
            Err(error) => {
                // If this fails, the claim ends by itself.
                let _ = log.release_changes(ids).await;
                return Err(error);
            }
        }
        Ok(count)
    }

    async fn post(
        &self,
        url: &Url,
        headers: &BTreeMap<String, SecretString>,
        lines: String,
    ) -> Result<(), ExportError> {
        let failed = |error: EgressError| ExportError::Egress(error.in_words());
        let mut request = self.egress.request(Method::POST, url).map_err(failed)?;
        for (name, value) in headers {
            request = request.header(name, value.expose_secret());
        }
        let request = request.header(CONTENT_TYPE, "application/x-ndjson");
        let sending = self.egress.send(request.timeout(TIMEOUT).body(lines));
        let response = sending.await.map_err(failed)?;
        let status = response.status();
        // The status has decided; the rest only frees the connection.
        let _ = read_up_to(response, ANSWER_BYTES).await;
        if status.is_success() {
            Ok(())
        } else {
            Err(ExportError::Status(status.as_u16()))
        }
    }
}

async fn append(path: PathBuf, lines: String) -> Result<(), ExportError> {
    let writing = tokio::task::spawn_blocking(move || {
        let written = write_synced(&path, &lines);
        written.map_err(|source| ExportError::File { file: path, source })
    });
    writing.await.map_err(|_| ExportError::Interrupted)?
}

fn write_synced(path: &Path, lines: &str) -> io::Result<()> {
    let mut file = open(path)?;
    file.write_all(lines.as_bytes())?;
    // The marks of the rows promise that the file has them.
    file.sync_data()
}

/// Opens the file at its end. A rotated file is created again.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
