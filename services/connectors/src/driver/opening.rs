//! A session of a gateway's run, with the bytes of its files.

use runner_kit::{Host, Run};
use secrecy::SecretString;

use crate::catalogue::Platform;
use crate::session::Session;
use crate::turn::{FILE_BYTES, FileContent, Turn};
use crate::upstream::config::SecretSource;
use crate::upstream::failure::Failure;

/// Bytes of all artifacts of one event.
const EVENT_BYTES: usize = 32 * 1024 * 1024;

/// Makes the session of a run. A configuration that is invalid fails before anything is read.
pub async fn open(
    platform: &Platform,
    run: &Run,
    source: &SecretSource,
) -> Result<Session, Failure> {
    let mut turn = Turn::of(&run.context)?;
    let config = &run.context.config;
    let has_artifacts = turn
        .files
        .iter()
        .any(|file| matches!(file.content, FileContent::Artifact(_)));
    if has_artifacts {
        Session::new(platform, turn.clone(), config, source)?;
        read_artifacts(&mut turn, &run.host).await?;
    }
    turn.run_token = Some(SecretString::from(run.host.token().await));
    Session::new(platform, turn, config, source)
}

async fn read_artifacts(turn: &mut Turn, host: &Host) -> Result<(), Failure> {
    let mut left = EVENT_BYTES;
    for file in &mut turn.files {
        let FileContent::Artifact(id) = &file.content else {
            continue;
        };
        let last = FILE_BYTES as u64 - 1;
        let bytes = host.artifacts().read(id, 0, last).await;
        let bytes = bytes.map_err(|error| {
            Failure::upload(&file.name, &format!("cannot be read ({})", error.code))
        })?;
        // A longer file is cut by the call.
        if bytes.len() >= FILE_BYTES {
            let fault = format!("is larger than {FILE_BYTES} bytes");
            return Err(Failure::upload(&file.name, &fault));
        }
        left = left.checked_sub(bytes.len()).ok_or_else(|| {
            let fault = format!("is beyond the bound of {EVENT_BYTES} bytes for all files");
            Failure::upload(&file.name, &fault)
        })?;
        file.content = FileContent::Bytes(bytes.into());
    }
    Ok(())
}
