//! `runnel sources`: systems that post events, over HTTP with an admin key.

use std::path::PathBuf;
use std::process::ExitCode;

use anstyle::Style;
use anyhow::Context as _;
use clap::Subcommand;
use http::Method;
use serde_json::{Map, Value, json};

use crate::facts::{elements, text};
use crate::gateway::{GatewayArguments, encoded};
use crate::ids::{NamedList, find_id, tail};
use crate::output::{self, OutputFormat};
use crate::table::{TableRow, print_table};

const USAGE: u8 = 2;
/// Maximum bytes of a file: those of a request to a source.
const MAX_BYTES: u64 = 1024 * 1024;

/// Sources, which have unique names.
const SOURCES: NamedList<'_> = NamedList {
    noun: "source",
    path: "/v1/sources",
    cursor: "cursor",
    id: "id",
    name: Some("name"),
    command: "runnel sources list",
    about: "name",
};

#[derive(Subcommand)]
pub enum SourcesCommand {
    /// List the sources with their paths.
    List {
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Show the event that a source makes of a body. Posts nothing. Exit code 1: the event has faults.
    Try {
        /// The source: its name, its id, or any unique part of the id.
        #[arg(value_name = "NAME|ID")]
        source: String,
        /// The body as the sender makes it; of an encrypting scheme, in plain text.
        file: PathBuf,
        /// A header of the request. May be repeated.
        #[arg(long, value_name = "NAME: VALUE", value_parser = parse_header)]
        header: Vec<(String, String)>,
        /// The query of the URL.
        #[arg(long)]
        query: Option<String>,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
}

impl SourcesCommand {
    fn gateway(&self) -> &GatewayArguments {
        let (Self::List { gateway } | Self::Try { gateway, .. }) = self;
        gateway
    }
}

fn parse_header(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once(':').ok_or("write NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Runs a `sources` command.
pub(super) async fn sources(
    command: SourcesCommand,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let Some(gateway) = command.gateway().find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        SourcesCommand::List { .. } => {
            list(&gateway.get(SOURCES.path).await?, format);
            Ok(ExitCode::SUCCESS)
        }
        SourcesCommand::Try {
            source,
            file,
            header,
            query,
            ..
        } => {
            // First, so that an unreadable file needs no gateway.
            let body = read_body(&file).await?;
            let headers: Map<_, _> = header
                .into_iter()
                .map(|(name, value)| (name, json!(value)))
                .collect();
            let id = find_id(&gateway, &SOURCES, &source).await?;
            let path = format!("{}/{}/try", SOURCES.path, encoded(&id));
            let request = json!({"body": body, "headers": headers, "query": query});
            let request = gateway.request(Method::POST, &path)?.json(&request);
            Ok(print_tried(&gateway.ask(request).await?, format))
        }
    }
}

async fn read_body(file: &PathBuf) -> anyhow::Result<String> {
    let shown = file.display();
    let metadata = tokio::fs::metadata(file).await;
    let metadata = metadata.with_context(|| format!("cannot read {shown}"))?;
    anyhow::ensure!(
        metadata.len() <= MAX_BYTES,
        "{shown} is larger than 1 MiB, which no source takes"
    );
    let body = tokio::fs::read_to_string(file).await;
    body.with_context(|| format!("cannot read {shown} as UTF-8"))
}

fn list(sources: &Value, format: OutputFormat) {
    if format.is_json() {
        output::document(sources);
        return;
    }
    let sources = elements(sources, "items");
    if sources.is_empty() {
        output::remark("no sources");
        return;
    }
    let row = |source: &Value| {
        let is_enabled = source["enabled"] == true;
        TableRow {
            style: if is_enabled {
                Style::new()
            } else {
                output::YELLOW
            },
            cells: vec![
                tail(text(source, "id")).to_owned(),
                text(source, "name").to_owned(),
                text(source, "scheme").to_owned(),
                if is_enabled { "enabled" } else { "disabled" }.to_owned(),
                text(source, "path").to_owned(),
            ],
        }
    };
    let rows = sources.iter().map(row).collect();
    print_table(&["id", "name", "scheme", "state", "path"], rows);
}

fn print_tried(tried: &Value, format: OutputFormat) -> ExitCode {
    let faults = elements(tried, "faults");
    if format.is_json() {
        output::document(tried);
    } else if !faults.is_empty() {
        for fault in faults {
            let pointer = match text(fault, "pointer") {
                "" => "the event",
                pointer => pointer,
            };
            let message = text(fault, "message");
            output::styled_line(output::RED, &format!("{pointer} {message}"));
        }
    } else if tried["event"].is_null() {
        output::line("no event: the source ignores this request");
    } else {
        output::document(&tried["event"]);
    }
    // A script tests its filters by the exit code.
    if faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_name_and_value() {
        let header = parse_header("X-GitHub-Event: push");
        assert_eq!(header, Ok(("X-GitHub-Event".to_owned(), "push".to_owned())));
        assert!(parse_header("X-GitHub-Event").is_err());
    }
}
