//! `runnel runs retry`, and the runs of a chain of retries.

use anyhow::Context as _;
use http::Method;
use serde_json::{Value, json};

use crate::gateway::{Gateway, encoded};
use crate::output;

/// Retries a run, with `from` after the result with this sequence. Returns the id of the new run.
pub(super) async fn retry(
    gateway: &Gateway,
    run: &str,
    from: Option<u64>,
) -> anyhow::Result<String> {
    let path = format!("/v1/runs/{}/retry", encoded(run));
    let request = gateway.request(Method::POST, &path)?;
    let (request, begins) = match from {
        Some(sequence) => (
            request.json(&json!({ "from": sequence })),
            format!(" after result {sequence}"),
        ),
        None => (request, String::new()),
    };
    let next = gateway.ask(request).await?;
    let next = next["run_id"].as_str().context("the answer names no run")?;
    output::remark(&format!("run {next} runs the event again{begins}"));
    Ok(next.to_owned())
}

/// The run that this one repeats, and the result after which it begins.
pub(super) fn retry_of(run: &Value) -> Option<String> {
    let earlier = run["retry_of"].as_str()?;
    Some(match run["retry_from"].as_u64() {
        Some(sequence) => format!("{earlier} after result {sequence}"),
        None => earlier.to_owned(),
    })
}
