//! Files of a message: uploaded first, then named by the event.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use http::Method;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use serde_json::{Map, Value, json};
use tokio::fs::File;

use crate::gateway::{Gateway, encoded};
use egress::Body;
use knowledge::extract::media_type_of;

/// Uploads files and adds them to the attachments of an event.
pub(super) async fn attach(
    gateway: &Gateway,
    files: &[PathBuf],
    event: &mut Map<String, Value>,
) -> anyhow::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let mut added = Vec::new();
    // Uploaded before the event: the gateway refuses an event with an unknown artifact.
    for file in files {
        let id = upload(gateway, file).await;
        let id = id.with_context(|| format!("cannot attach {}", file.display()))?;
        added.push(json!({ "artifact_id": id }));
    }
    let input = event.entry("input").or_insert_with(|| json!({}));
    let input = input
        .as_object_mut()
        .context("the event's input is no object")?;
    let attachments = input.entry("attachments").or_insert_with(|| json!([]));
    let attachments = attachments.as_array_mut();
    let attachments = attachments.context("the event's attachments are no list")?;
    // Attachments of the event's file come first.
    attachments.append(&mut added);
    Ok(())
}

/// Id of the new artifact.
async fn upload(gateway: &Gateway, path: &Path) -> anyhow::Result<String> {
    let name = path.file_name().context("it is no file")?.to_string_lossy();
    let file = File::open(path).await?;
    let facts = file.metadata().await?;
    // A directory can be opened, but its upload would fail later.
    if !facts.is_file() {
        bail!("it is no file");
    }
    let media_type = media_type_of(&name).unwrap_or("application/octet-stream");
    let path = format!("/v1/artifacts?name={}", encoded(&name));
    let request = gateway.request(Method::POST, &path)?;
    let request = request
        .header(CONTENT_TYPE, media_type)
        // A stream has no length of its own; with one, the gateway can refuse the upload early.
        .header(CONTENT_LENGTH, facts.len())
        .body(Body::from(file));
    let stored = gateway.ask(request).await?;
    let id = stored["artifact_id"].as_str();
    Ok(id.context("the answer names no artifact")?.to_owned())
}
