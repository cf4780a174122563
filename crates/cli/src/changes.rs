//! `runnel changes`: administrative changes of a workspace, over HTTP with a key of role admin, operator or viewer.

use std::fmt::Write as _;
use std::process::ExitCode;

use anstyle::Style;
use clap::Subcommand;
use serde_json::{Value, json};

use crate::facts::{elements, moment, principal, text};
use crate::gateway::{Gateway, GatewayArguments, encoded, next_cursor};
use crate::ids::tail;
use crate::output::{self, OutputFormat};
use crate::table::{TableRow, print_table};

const PATH: &str = "/v1/changes";
/// Changes of a page of an export.
const PAGE: usize = 100;
/// Pointers of a patch in a row of the table.
const SHOWN_POINTERS: usize = 4;
const USAGE: u8 = 2;

/// Which changes a command reads.
#[derive(clap::Args)]
pub struct ChangeSelection {
    /// Only objects of this kind, such as `agent` or `api_key`.
    #[arg(long)]
    kind: Option<String>,
    /// Only the object with this id.
    #[arg(long = "object", value_name = "ID")]
    object_id: Option<String>,
    /// Only changes by this API key (its id), by the configuration file (`config`) or by commands (`cli`).
    #[arg(long, value_name = "ID|config|cli")]
    actor: Option<String>,
    /// Only changes from this time on, in epoch seconds.
    #[arg(long, value_name = "SECONDS")]
    since: Option<u32>,
}

impl ChangeSelection {
    /// The query of the list.
    fn query(&self, order: &str) -> String {
        let filters = [
            ("kind", self.kind.clone()),
            ("object_id", self.object_id.clone()),
            ("actor", self.actor.clone()),
            ("since", self.since.map(|since| since.to_string())),
        ];
        // Values come from the command line and may have any character.
        let mut query = format!("order={order}");
        for (name, value) in filters {
            if let Some(value) = value {
                let _ = write!(query, "&{name}={}", encoded(&value));
            }
        }
        query
    }
}

#[derive(Subcommand)]
pub enum ChangesCommand {
    /// List the newest changes: the object, who changed it, and which values.
    List {
        #[command(flatten)]
        selection: ChangeSelection,
        /// Maximum number of changes.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Write all changes as NDJSON to the standard output, oldest first.
    Export {
        #[command(flatten)]
        selection: ChangeSelection,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
}

/// Runs a `changes` command.
pub(super) async fn changes(
    command: ChangesCommand,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let (ChangesCommand::List { gateway, .. } | ChangesCommand::Export { gateway, .. }) = &command;
    let Some(gateway) = gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        ChangesCommand::List {
            selection, limit, ..
        } => {
            let path = format!("{PATH}?{}", selection.query("newest"));
            let found = gateway.list(&path, "cursor", usize::from(limit)).await?;
            print_list(&found, format);
        }
        ChangesCommand::Export { selection, .. } => export(&gateway, &selection).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn export(gateway: &Gateway, selection: &ChangeSelection) -> anyhow::Result<()> {
    let first = format!("{PATH}?{}&limit={PAGE}", selection.query("oldest"));
    let mut path = first.clone();
    loop {
        let page = gateway.get(&path).await?;
        for change in elements(&page, "items") {
            output::line(&change.to_string());
        }
        match next_cursor(&page) {
            // One page at a time in memory: an installation may have changes of years.
            Some(cursor) => path = format!("{first}&cursor={}", encoded(cursor)),
            None => return Ok(()),
        }
    }
}

fn print_list(changes: &[Value], format: OutputFormat) {
    if format.is_json() {
        output::document(&json!({ "items": changes }));
        return;
    }
    if changes.is_empty() {
        output::remark("no changes");
        return;
    }
    let row = |change: &Value| TableRow {
        style: Style::new(),
        cells: vec![
            tail(text(change, "id")).to_owned(),
            moment(change, "at").unwrap_or_default(),
            text(change, "action").to_owned(),
            text(change, "kind").to_owned(),
            text(change, "object_name").to_owned(),
            principal(change, "changed_by").unwrap_or_default(),
            pointers(change),
        ],
    };
    print_table(
        &["id", "time", "action", "kind", "object", "by", "changed"],
        changes.iter().map(row).collect(),
    );
}

/// The changed values by their pointers. Empty for a created or deleted object.
fn pointers(change: &Value) -> String {
    // A `test` repeats the old value of the operation after it.
    let operations = elements(change, "patch").iter();
    let changing = operations.filter(|operation| operation["op"] != "test");
    let pointers: Vec<_> = changing
        .map(|operation| text(operation, "path"))
        .filter(|pointer| !pointer.is_empty())
        .collect();
    let mut shown = pointers[..pointers.len().min(SHOWN_POINTERS)].join(" ");
    if let Some(more) = pointers.len().checked_sub(SHOWN_POINTERS + 1) {
        let _ = write!(shown, " and {} more", more + 1);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_pointers_of_changed_values() {
        let operation = |path: &str| {
            [
                json!({"op": "test", "path": path, "value": 1}),
                json!({"op": "replace", "path": path, "value": 2}),
            ]
        };
        let patch: Vec<_> = ["/a", "/b", "/c", "/d", "/e", "/f"]
            .into_iter()
            .flat_map(operation)
            .collect();
        let change = |patch: &[Value]| json!({ "patch": patch });
        assert_eq!(pointers(&change(&patch[..4])), "/a /b");
        assert_eq!(pointers(&change(&patch[..8])), "/a /b /c /d");
        assert_eq!(pointers(&change(&patch)), "/a /b /c /d and 2 more");
        let created = [json!({"op": "add", "path": "", "value": {}})];
        assert_eq!(pointers(&change(&created)), "");
    }

    #[test]
    fn query_has_encoded_filters() {
        let selection = ChangeSelection {
            kind: Some("document".to_owned()),
            object_id: Some("handbook/a b.md".to_owned()),
            actor: None,
            since: Some(7),
        };
        assert_eq!(
            selection.query("oldest"),
            "order=oldest&kind=document&object_id=handbook%2Fa%20b%2Emd&since=7"
        );
    }
}
