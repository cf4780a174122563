//! `runnel pause`, `resume` and `pauses`: hold, freeze or stop the runs of a gateway, over HTTP.

use std::process::ExitCode;

use anstyle::Style;
use anyhow::bail;
use clap::ValueEnum;
use http::Method;
use serde_json::{Value, json};

use crate::agents::AGENTS;
use crate::facts::{age, elements, principal, text};
use crate::gateway::{Gateway, GatewayArguments, encoded};
use crate::ids::{find_id, tail};
use crate::output::{self, OutputFormat};
use crate::table::{TableRow, print_table};

const USAGE: u8 = 2;

/// Runs that a pause concerns.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct ScopeArguments {
    /// The agent: its name, its id, or any unique part of the id.
    #[arg(long, value_name = "NAME|ID")]
    agent: Option<String>,
    /// The workspace: the key's own, or with a key of role owner any.
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// All workspaces; needs a key of role owner.
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum PauseChoice {
    /// Accept events and dispatch no run. Live runs continue.
    Hold,
    /// Also let the host calls of live runs wait.
    Freeze,
    /// Also cancel live runs.
    Stop,
}

#[derive(clap::Args)]
pub struct PauseArguments {
    #[command(flatten)]
    scope: ScopeArguments,
    /// Effect on new events and live runs.
    #[arg(long, value_enum, default_value_t = PauseChoice::Hold)]
    mode: PauseChoice,
    /// Shown with the pause, and as the reason of cancelled runs.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    gateway: GatewayArguments,
}

#[derive(clap::Args)]
pub struct ResumeArguments {
    #[command(flatten)]
    scope: ScopeArguments,
    /// Held runs to dispatch in a second, 1 to 1000. Default: 100.
    #[arg(long, value_name = "RUNS")]
    rate: Option<u32>,
    #[command(flatten)]
    gateway: GatewayArguments,
}

#[derive(clap::Args)]
pub struct PausesArguments {
    #[command(flatten)]
    gateway: GatewayArguments,
}

/// Pauses the scope.
pub(super) async fn pause(
    arguments: PauseArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let mode = match arguments.mode {
        PauseChoice::Hold => "hold",
        PauseChoice::Freeze => "freeze",
        PauseChoice::Stop => "stop",
    };
    let mut body = json!({"mode": mode});
    if let Some(reason) = arguments.reason {
        body["reason"] = json!(reason);
    }
    let request = ScopeRequest {
        act: "pause",
        body,
        done: &format!("paused ({mode}); `runnel resume` ends it"),
    };
    request
        .send(&arguments.gateway, arguments.scope, format)
        .await
}

/// Ends the pause of the scope.
pub(super) async fn resume(
    arguments: ResumeArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    // The gateway has the default rate.
    let body = match arguments.rate {
        Some(rate) => json!({"runs_per_second": rate}),
        None => json!({}),
    };
    let request = ScopeRequest {
        act: "resume",
        body,
        done: "resuming; `runnel pauses` shows the runs that wait",
    };
    request
        .send(&arguments.gateway, arguments.scope, format)
        .await
}

struct ScopeRequest<'a> {
    act: &'a str,
    body: Value,
    /// Text after success.
    done: &'a str,
}

impl ScopeRequest<'_> {
    async fn send(
        self,
        gateway: &GatewayArguments,
        scope: ScopeArguments,
        format: OutputFormat,
    ) -> anyhow::Result<ExitCode> {
        let Some(gateway) = gateway.find()? else {
            return Ok(ExitCode::from(USAGE));
        };
        let prefix = scope.path(&gateway).await?;
        let request = gateway.request(Method::POST, &format!("{prefix}/{}", self.act))?;
        let pause = gateway.ask(request.json(&self.body)).await?;
        // Scripts read the pause; a person knows it from the command.
        if format.is_json() {
            output::document(&pause);
        } else {
            output::line(self.done);
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ScopeArguments {
    /// Path of the scope's routes.
    async fn path(self, gateway: &Gateway) -> anyhow::Result<String> {
        Ok(match (self.agent, self.workspace) {
            (Some(agent), _) => {
                let id = find_id(gateway, &AGENTS, &agent).await?;
                format!("{}/{}", AGENTS.path, encoded(&id))
            }
            (None, Some(workspace)) => format!("/v1/workspaces/{}", encoded(&workspace)),
            // The routes for all workspaces have no id.
            (None, None) if self.all => "/v1".to_owned(),
            (None, None) => bail!("name an --agent, a --workspace, or --all"),
        })
    }
}

/// Prints the pauses.
pub(super) async fn pauses(
    arguments: PausesArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let Some(gateway) = arguments.gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    let pauses = gateway.get("/v1/pauses").await?;
    if format.is_json() {
        output::document(&pauses);
        return Ok(ExitCode::SUCCESS);
    }
    let pauses = elements(&pauses, "items");
    if pauses.is_empty() {
        output::remark("no pauses");
        return Ok(ExitCode::SUCCESS);
    }
    print_table(
        &["scope", "mode", "age", "waiting", "by", "reason"],
        pauses.iter().map(row).collect(),
    );
    Ok(ExitCode::SUCCESS)
}

fn row(pause: &Value) -> TableRow {
    let scope = match text(pause, "target") {
        "agent" => format!("agent {}", tail(text(pause, "agent_id"))),
        "workspace" => format!("workspace {}", text(pause, "workspace_id")),
        all => all.to_owned(),
    };
    let mode = match pause["runs_per_second"].as_u64() {
        Some(rate) => format!("{} ({rate}/s)", text(pause, "mode")),
        None => text(pause, "mode").to_owned(),
    };
    TableRow {
        style: if text(pause, "mode") == "resuming" {
            Style::new()
        } else {
            output::YELLOW
        },
        cells: vec![
            scope,
            mode,
            age(pause, "paused_at"),
            pause["held_runs"]
                .as_u64()
                .map_or_else(|| "-".to_owned(), |held| held.to_string()),
            principal(pause, "paused_by").unwrap_or_default(),
            text(pause, "reason").to_owned(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_scope_and_rate() {
        let check = |pause: Value, scope: &str, mode: &str, held: &str| {
            let cells = row(&pause).cells;
            assert_eq!([&*cells[0], &*cells[1], &*cells[3]], [scope, mode, held]);
        };
        check(
            json!({"target": "agent", "agent_id": "01a2-c8cdcc8b", "mode": "hold", "held_runs": 3}),
            "agent c8cdcc8b",
            "hold",
            "3",
        );
        check(
            json!({"target": "all", "mode": "resuming", "runs_per_second": 5}),
            "all",
            "resuming (5/s)",
            "-",
        );
    }
}
