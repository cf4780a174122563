//! Upload of a blob. The body is read in chunks, and each is committed before the next is read.

use std::time::Duration;

use axum::body::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use store::{
    AbandonUpload, AreaAccess, BeginUpload, CHUNK_BYTES, FinishUpload, PutIf, Quota, UploadStep,
    WriteChunk,
};
use uuid::Uuid;

use web::auth::{AuditedCall, RunCaller};
use web::error::artifact::{area_full, area_share_full, precondition_failed};
use web::error::body::slow_body;
use web::error::{ApiError, ApiResult};
use web::query::single_header;
use web::recheck::StreamedBody;
use web::state::ApiState;

/// Timeout for the next chunk of a body.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for a complete upload.
const UPLOAD_TIMEOUT: Duration = Duration::from_mins(5);
/// Lifetime of a quota reservation after the last chunk.
const RESERVATION_LIFETIME: Duration = Duration::from_mins(1);

/// Maximum number of keys of an owner in an area.
const MAX_KEYS: u64 = 10_000;

const MAX_TYPE_BYTES: usize = 255;
const ANY_TYPE: &str = "application/octet-stream";

/// A blob upload.
pub(super) struct Upload<'a> {
    caller: &'a RunCaller,
    state: &'a ApiState,
    access: AreaAccess,
    key: String,
    content_type: String,
    content_id: Uuid,
    condition: Option<PutIf>,
    /// The announced length.
    announced: Option<u64>,
    quota: Quota,
}

/// Read and committed data.
struct UploadProgress {
    digest: aws_lc_rs::digest::Context,
    size: u64,
    /// Number of committed chunks.
    written: u64,
    /// Data of the next chunk.
    pending: Vec<u8>,
}

impl<'a> Upload<'a> {
    pub(super) fn new(
        caller: &'a RunCaller,
        state: &'a ApiState,
        access: AreaAccess,
        key: String,
        headers: &HeaderMap,
    ) -> ApiResult<Self> {
        let content_type = single_header(headers, CONTENT_TYPE.as_str())?.unwrap_or(ANY_TYPE);
        if content_type.is_empty() || content_type.len() > MAX_TYPE_BYTES {
            let message = "`Content-Type` must have 1 to 255 characters";
            return Err(ApiError::invalid_argument(message));
        }
        let announced = single_header(headers, CONTENT_LENGTH.as_str())?;
        let limits = state.runs.limits();
        let upload = Self {
            caller,
            state,
            access,
            key,
            content_type: content_type.to_owned(),
            content_id: Uuid::now_v7(),
            condition: condition_of(headers)?,
            announced: announced.and_then(|length| length.parse().ok()),
            quota: Quota {
                bytes: limits.storage_area_bytes,
                keys: MAX_KEYS,
            },
        };
        // An early refusal: the bytes are counted anyway.
        if upload.announced.unwrap_or(0) > limits.storage_blob_bytes {
            return Err(upload.too_large());
        }
        Ok(upload)
    }

    fn too_large(&self) -> ApiError {
        let max_bytes = self.state.runs.limits().storage_blob_bytes;
        ApiError::too_large(format!("a blob has at most {max_bytes} bytes"))
    }

    /// Reads the complete body, publishes the blob under its key, and audits its size. Returns the SHA-256.
    pub(super) async fn run(
        self,
        body: &mut StreamedBody,
        call: AuditedCall<'_>,
    ) -> ApiResult<String> {
        let run = &self.caller.grant.run;
        // An upload must not last longer than its run.
        let time = UPLOAD_TIMEOUT.min(self.state.runs.aborts.time_left(&self.caller.grant));
        let outcome = tokio::time::timeout(time, self.carry_out(body, call))
            .await
            .map_err(|_| slow_body())
            .flatten();
        // Also after a timeout, so the reservation is released before it expires.
        if let Err(error) = &outcome {
            let refusal = error.message();
            let give = AbandonUpload {
                run_id: run.id,
                content_id: self.content_id,
                audit: self.caller.audit_entry(self.state, call, Some(refusal), 0),
            };
            self.state.runs.store().write_later(give).await?;
        }
        outcome
    }

    async fn carry_out(&self, body: &mut StreamedBody, call: AuditedCall<'_>) -> ApiResult<String> {
        let mut progress = UploadProgress {
            digest: aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256),
            size: 0,
            written: 0,
            pending: Vec::new(),
        };
        loop {
            let frame = tokio::time::timeout(CHUNK_TIMEOUT, body.next())
                .await
                .map_err(|_| slow_body())?;
            let Some(frame) = frame? else { break };
            self.take(&mut progress, &frame).await?;
        }
        self.finish(progress, call).await
    }

    async fn take(&self, progress: &mut UploadProgress, frame: &Bytes) -> ApiResult<()> {
        progress.size += frame.len() as u64;
        // The announced length may be wrong or absent.
        if progress.size > self.state.runs.limits().storage_blob_bytes {
            return Err(self.too_large());
        }
        progress.digest.update(frame);
        let mut rest = frame.as_ref();
        while !rest.is_empty() {
            // Keep a full chunk until more data arrives: the last chunk is committed with the key.
            if progress.pending.len() == CHUNK_BYTES {
                self.write_chunk(progress).await?;
            }
            let free_bytes = CHUNK_BYTES - progress.pending.len();
            let (now, later) = rest.split_at(free_bytes.min(rest.len()));
            progress.pending.extend_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    async fn write_chunk(&self, progress: &mut UploadProgress) -> ApiResult<()> {
        let store = self.state.runs.store();
        // A blob of one chunk needs no reservation: `finish` writes it in one transaction.
        if progress.written == 0 {
            let limits = self.state.runs.limits();
            let begin = BeginUpload {
                run_id: self.caller.grant.run.id,
                access: self.access.clone(),
                quota: self.quota,
                content_id: self.content_id,
                reserved: self.announced.unwrap_or(limits.storage_blob_bytes),
                timeout: RESERVATION_LIFETIME,
            };
            written(store.write(begin).await?)?;
        }
        let chunk = WriteChunk {
            run_id: self.caller.grant.run.id,
            content_id: self.content_id,
            n: progress.written,
            bytes: std::mem::take(&mut progress.pending),
            timeout: RESERVATION_LIFETIME,
        };
        written(store.write(chunk).await?)?;
        progress.written += 1;
        Ok(())
    }

    async fn finish(&self, progress: UploadProgress, call: AuditedCall<'_>) -> ApiResult<String> {
        let sha256 = store::hex(progress.digest.finish().as_ref());
        let bytes = usize::try_from(progress.size).unwrap_or(usize::MAX);
        let finish = FinishUpload {
            run_id: self.caller.grant.run.id,
            access: self.access.clone(),
            quota: self.quota,
            key: self.key.clone(),
            content_id: self.content_id,
            last: progress.written,
            bytes: progress.pending,
            size: progress.size,
            sha256: sha256.clone(),
            content_type: self.content_type.clone(),
            condition: self.condition.clone(),
            audit: self.caller.audit_entry(self.state, call, None, bytes),
            at: self.state.runs.clock().now_ms(),
        };
        written(self.state.runs.store().write(finish).await?)?;
        Ok(sha256)
    }
}

/// Parses the condition: `If-None-Match: *`, or `If-Match` with one entity tag.
fn condition_of(headers: &HeaderMap) -> ApiResult<Option<PutIf>> {
    let none_match = single_header(headers, IF_NONE_MATCH.as_str())?;
    let matches = single_header(headers, IF_MATCH.as_str())?;
    match (none_match, matches) {
        (None, None) => Ok(None),
        (Some("*"), None) => Ok(Some(PutIf::Absent)),
        (None, Some(tag)) => {
            let tag = sha256_of(tag).ok_or_else(|| {
                let message = "`If-Match` must be one `ETag` as in a response, quotes included";
                ApiError::invalid_argument(message)
            })?;
            Ok(Some(PutIf::Matches(tag.to_owned())))
        }
        (Some(_), None) => Err(ApiError::invalid_argument("`If-None-Match` must be `*`")),
        (Some(_), Some(_)) => {
            let message = "`If-Match` and `If-None-Match` must not be combined";
            Err(ApiError::invalid_argument(message))
        }
    }
}

/// Extracts the digest from a strong entity tag.
fn sha256_of(tag: &str) -> Option<&str> {
    let hex = tag.strip_prefix('"')?.strip_suffix('"')?;
    let is_hex = hex
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (hex.len() == 64 && is_hex).then_some(hex)
}

fn written(outcome: UploadStep) -> ApiResult<()> {
    match outcome {
        UploadStep::Written => Ok(()),
        UploadStep::Full => Err(area_full()),
        UploadStep::ShareFull => Err(area_share_full()),
        UploadStep::RunEnded => Err(ApiError::unauthenticated()),
        UploadStep::Expired => Err(slow_body()),
        UploadStep::Unmet => Err(precondition_failed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_one_condition_and_no_weak_tag() {
        let sha256 = "0a".repeat(32);
        let strong = format!("\"{sha256}\"");
        let check = |headers: &[(&'static str, &str)]| {
            let pairs = headers
                .iter()
                .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            condition_of(&pairs.collect::<HeaderMap>())
        };
        assert_eq!(check(&[]).unwrap(), None);
        let absent = check(&[("if-none-match", "*")]).unwrap();
        assert_eq!(absent, Some(PutIf::Absent));
        let matches = check(&[("if-match", &strong)]).unwrap();
        assert_eq!(matches, Some(PutIf::Matches(sha256.clone())));
        let weak = format!("W/{strong}");
        for refused in [
            &[("if-match", "*")][..],
            &[("if-match", &weak)],
            &[("if-match", &sha256)],
            &[("if-none-match", &strong)],
            &[("if-none-match", "*"), ("if-match", &strong)],
        ] {
            assert!(check(refused).is_err(), "{refused:?}");
        }
    }
}
