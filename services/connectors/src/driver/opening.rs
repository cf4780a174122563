//! Opens the session of a gateway's run and reads the files of its event.

use runner_kit::{Host, RunHandle};
use secrecy::SecretString;

use crate::catalogue::Platform;
use crate::session::MachineSession;
use crate::turn::{ConnectorTurn, FILE_BYTES, FileContent};
use crate::upstream::config::SecretSource;
use crate::upstream::failure::{ConnectorFailure, Mapped};

/// Maximum bytes of all artifacts of one event.
const EVENT_BYTES: usize = 32 * 1024 * 1024;

/// Opens the session of a run.
pub async fn open(
    platform: &Platform,
    run: &RunHandle,
    source: &SecretSource,
) -> Mapped<MachineSession> {
    let mut turn = ConnectorTurn::of(&run.context)?;
    let config = &run.context.config;
    let has_artifacts = turn
        .files
        .iter()
        .any(|file| matches!(file.content, FileContent::Artifact(_)));
    if has_artifacts {
        // Validate the configuration first, so that an invalid one fails before any file is read.
        MachineSession::new(platform, turn.clone(), config, source)?;
        read_artifacts(&mut turn, &run.host).await?;
    }
    // The reads above may renew the token, so take it after them.
    turn.run_token = Some(SecretString::from(run.host.access().await.token));
    MachineSession::new(platform, turn, config, source)
}

async fn read_artifacts(turn: &mut ConnectorTurn, host: &Host) -> Mapped {
    let mut left = EVENT_BYTES;
    for file in &mut turn.files {
        let FileContent::Artifact(id) = &file.content else {
            continue;
        };
        let last = FILE_BYTES as u64 - 1;
        let bytes = host.artifacts().read(id, 0, last).await;
        let bytes = bytes.map_err(|error| {
            ConnectorFailure::upload(&file.name, &format!("cannot be read ({})", error.code))
        })?;
        // The call cuts a longer file at `last`, so a full range means a larger file.
        if bytes.len() >= FILE_BYTES {
            let fault = format!("is larger than {FILE_BYTES} bytes");
            return Err(ConnectorFailure::upload(&file.name, &fault));
        }
        left = left.checked_sub(bytes.len()).ok_or_else(|| {
            let fault = format!("is beyond the bound of {EVENT_BYTES} bytes for all files");
            ConnectorFailure::upload(&file.name, &fault)
        })?;
        file.content = FileContent::Bytes(bytes.into());
    }
    Ok(())
}
