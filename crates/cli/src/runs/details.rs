//! Details of a run on request: its events, its rights and its calls.

use anstyle::Style;
use serde_json::{Value, json};

use crate::facts::{elements, milliseconds, text};
use crate::gateway::Gateway;
use crate::output;
use crate::table::{TableRow, print_table};

/// Maximum number of printed events, and of printed calls.
const MAX_ITEMS: usize = 2000;

#[derive(clap::Args)]
pub struct DetailArguments {
    /// Also list the events of the run.
    #[arg(long)]
    events: bool,
    /// Also list the rights of the run: what was granted, and why the rest was not.
    #[arg(long)]
    grants: bool,
    /// Also list the host API calls of the run: what was allowed or denied, and how it ended.
    #[arg(long)]
    audit: bool,
}

/// The requested lists, by name.
pub(super) struct RunDetails(Vec<(&'static str, Vec<Value>)>);

impl DetailArguments {
    /// Reads the requested lists of the run at this path.
    pub(super) async fn read(&self, gateway: &Gateway, path: &str) -> anyhow::Result<RunDetails> {
        let mut found = Vec::new();
        if self.events {
            let events = format!("{path}/events");
            found.push(("events", gateway.list(&events, "after", MAX_ITEMS).await?));
        }
        if self.grants {
            let decided = gateway.get(&format!("{path}/authorization")).await?;
            found.push(("grants", elements(&decided, "decisions").to_vec()));
        }
        if self.audit {
            let calls = format!("{path}/audit");
            found.push(("audit", gateway.list(&calls, "cursor", MAX_ITEMS).await?));
        }
        Ok(RunDetails(found))
    }
}

impl RunDetails {
    /// Adds the lists to the JSON of the run.
    pub(super) fn add_to(self, run: &mut Value) {
        for (name, items) in self.0 {
            run[name] = json!(items);
        }
    }

    /// Prints a table for each list.
    pub(super) fn print(&self) {
        for (name, items) in &self.0 {
            output::line("");
            if items.is_empty() {
                output::remark(&format!("no {name}"));
                continue;
            }
            let (head, row): (&[&str], fn(&Value) -> TableRow) = match *name {
                "events" => (&["event", "source", "type", "data"], event),
                "grants" => (&["right", "granted", "reason"], grant),
                _ => (&["at", "call", "decision", "outcome", "rule"], call),
            };
            print_table(head, items.iter().map(row).collect());
        }
    }
}

fn event(event: &Value) -> TableRow {
    TableRow {
        style: Style::new(),
        cells: vec![
            event["sequence"].to_string(),
            text(event, "source").to_owned(),
            text(event, "type").to_owned(),
            event["data"].to_string(),
        ],
    }
}

fn grant(decision: &Value) -> TableRow {
    let is_granted = decision["granted"] == true;
    TableRow {
        style: if is_granted {
            Style::new()
        } else {
            output::DIM
        },
        cells: vec![
            crate::explain::what(decision),
            if is_granted { "yes" } else { "no" }.to_owned(),
            text(decision, "rule").to_owned(),
        ],
    }
}

fn call(entry: &Value) -> TableRow {
    let took = entry["duration_ms"].as_u64().map(milliseconds);
    let outcome = [Some(text(entry, "outcome")), took.as_deref()];
    let outcome: Vec<_> = outcome.into_iter().flatten().collect();
    TableRow {
        style: if entry["decision"] == "deny" {
            output::RED
        } else {
            Style::new()
        },
        cells: vec![
            milliseconds(entry["offset_ms"].as_u64().unwrap_or_default()),
            format!("{} {}", text(entry, "action"), text(entry, "resource")),
            text(entry, "decision").to_owned(),
            outcome.join(" in ").trim().to_owned(),
            text(entry, "rule").to_owned(),
        ],
    }
}
