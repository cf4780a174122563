//! `runs cancel` and `runs retry` of all runs that match filters, as a job.

use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::filter::MatchArguments;
use crate::facts::{elements, text};
use crate::gateway::Gateway;
use crate::output::{self, OutputFormat};

/// Time between two looks at a job.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Filters, and the number of runs that confirms the act.
#[derive(clap::Args)]
pub struct BatchArguments {
    #[command(flatten)]
    matching: MatchArguments,
    /// Act on all runs that match the filters, at most this many. Without it the command only counts them.
    #[arg(long, value_name = "N")]
    expect: Option<u64>,
}

impl BatchArguments {
    /// True if the arguments ask for an act on all matching runs.
    pub(super) fn is_given(&self) -> bool {
        self.expect.is_some() || self.matching.is_given()
    }

    /// Counts the runs that match, or acts on them. `act`: `cancel` or `retry`.
    pub(super) async fn run(
        self,
        gateway: &Gateway,
        act: &str,
        format: OutputFormat,
        list: fn(&[Value], OutputFormat),
    ) -> anyhow::Result<ExitCode> {
        let query = self.matching.query(gateway).await?;
        let path = format!("/v1/runs/{act}?{}", query.join("&"));
        let post = async |body: Value| {
            let request = gateway.request(Method::POST, path.trim_end_matches('?'))?;
            gateway.ask(request.json(&body)).await
        };
        // Without a number to expect nothing is changed, so a mistyped filter is harmless.
        let Some(expect) = self.expect else {
            let preview = post(json!({"dry_run": true})).await?;
            if format.is_json() {
                output::document(&preview);
                return Ok(ExitCode::SUCCESS);
            }
            list(elements(&preview, "first"), format);
            let count = preview["count"].as_u64().unwrap_or_default();
            let runs = output::counted(count, "run");
            output::remark(&format!(
                "{runs} would be changed; add --expect {count} to {act} them"
            ));
            return Ok(ExitCode::SUCCESS);
        };
        let job = post(json!({"expect": expect})).await?;
        let job = follow(gateway, job).await?;
        if format.is_json() {
            output::document(&job);
        } else {
            print(&job);
        }
        // A script must notice runs that the job could not change.
        let is_done = job["status"] == "completed" && job["failed"] == 0;
        Ok(if is_done {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// Waits for the end of a job. Ctrl-C leaves it: the gateway continues.
async fn follow(gateway: &Gateway, mut job: Value) -> anyhow::Result<Value> {
    let path = format!("/v1/jobs/{}", text(&job, "id"));
    output::remark(&format!(
        "job {} works without this command, too",
        text(&job, "id")
    ));
    // A job has no stream.
    while job["finished_at"].is_null() {
        tokio::time::sleep(BETWEEN_LOOKS).await;
        job = gateway.get(&path).await?;
    }
    Ok(job)
}

fn print(job: &Value) {
    let number = |key: &str| job[key].as_u64().unwrap_or_default();
    output::line(&format!(
        "{} of {}: {}",
        number("done"),
        output::counted(number("total"), "run"),
        text(job, "status")
    ));
    for error in elements(job, "errors") {
        output::line(&format!(
            "{}: {}",
            text(error, "run_id"),
            text(error, "message")
        ));
    }
}
