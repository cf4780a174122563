//! `runnel kb`: documents of knowledge bases, over HTTP with an admin key.

mod files;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use encoding_rs::Encoding;
use http::Method;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};

use crate::gateway::{Gateway, GatewayArguments, encoded, next_cursor};
use crate::output::{self, OutputFormat};
use files::{FoundFile, find_files};

#[derive(Subcommand)]
pub enum KbCommand {
    /// Add files to a knowledge base, or replace those with the same id. Directories are searched for text,
    /// Markdown, HTML and PDF.
    Add {
        /// The knowledge base.
        kb: String,
        /// The files. A file's id is its name, or its path within the given directory.
        #[arg(required = true, value_name = "FILE|DIRECTORY")]
        paths: Vec<PathBuf>,
        /// Metadata for filters: `name=value`. May be repeated.
        #[arg(long, value_name = "NAME=VALUE")]
        metadata: Vec<String>,
        /// The encoding of text files, such as big5. Default: by byte order mark or `<meta>`, else UTF-8 or GB18030.
        #[arg(long, value_name = "NAME")]
        charset: Option<String>,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// List the documents of a knowledge base.
    List {
        /// The knowledge base.
        kb: String,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Remove a document.
    Remove {
        /// The knowledge base.
        kb: String,
        /// The id of the document.
        document_id: String,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Search a knowledge base like a run.
    Search {
        /// The knowledge base.
        kb: String,
        /// The text to search for.
        query: String,
        /// Maximum number of passages.
        #[arg(long, default_value_t = 5)]
        top: u64,
        /// Only documents with this metadata: `name=value`; several values of a name are alternatives.
        #[arg(long, value_name = "NAME=VALUE")]
        filter: Vec<String>,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Rebuild the index of a knowledge base with its current settings.
    Reindex {
        /// The knowledge base.
        kb: String,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
}

/// Interval at which progress is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const USAGE: u8 = 2;

/// Runs a `kb` command.
pub(super) async fn kb(command: KbCommand, format: OutputFormat) -> anyhow::Result<ExitCode> {
    let (KbCommand::Add { gateway, .. }
    | KbCommand::List { gateway, .. }
    | KbCommand::Remove { gateway, .. }
    | KbCommand::Search { gateway, .. }
    | KbCommand::Reindex { gateway, .. }) = &command;
    let Some(gateway) = gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        KbCommand::Add {
            kb,
            paths,
            metadata,
            charset,
            ..
        } => {
            let Some(metadata) = pairs(&metadata) else {
                return Ok(ExitCode::from(USAGE));
            };
            let is_encoding = |name: &String| Encoding::for_label(name.as_bytes()).is_some();
            if let Some(name) = charset.as_ref().filter(|name| !is_encoding(name)) {
                output::fault(&format!(
                    "{name} is no encoding of the web, such as gbk or shift_jis"
                ));
                return Ok(ExitCode::from(USAGE));
            }
            let mut files = find_files(&paths)?;
            if let Some(name) = charset {
                for file in &mut files {
                    file.name_charset(&name);
                }
            }
            if files.is_empty() {
                output::fault("there is no text, Markdown, HTML or PDF file");
                return Ok(ExitCode::FAILURE);
            }
            add(&gateway, &kb, files, &metadata, format).await
        }
        KbCommand::List { kb, .. } => list(&gateway, &kb, format).await,
        KbCommand::Remove {
            kb, document_id, ..
        } => {
            let path = document_path(&kb, &document_id);
            let request = gateway.request(Method::DELETE, &path)?;
            gateway.ask(request).await?;
            say(format, &json!({"removed": document_id}), "removed");
            Ok(ExitCode::SUCCESS)
        }
        KbCommand::Search {
            kb,
            query,
            top,
            filter,
            ..
        } => {
            let Some(filters) = pairs(&filter) else {
                return Ok(ExitCode::from(USAGE));
            };
            let body = json!({"query_text": query, "top_k": top, "filters": filters});
            search(&gateway, &kb, &body, format).await
        }
        KbCommand::Reindex { kb, .. } => reindex(&gateway, &kb, format).await,
    }
}

fn base_path(kb: &str) -> String {
    format!("/v1/knowledge-bases/{}", encoded(kb))
}

fn document_path(kb: &str, document_id: &str) -> String {
    format!("{}/documents/{}", base_path(kb), encoded(document_id))
}

/// Parses `name=value` pairs. A repeated name gets a list. `None`, with a remark: a text is not a pair.
fn pairs(texts: &[String]) -> Option<Map<String, Value>> {
    let mut pairs: Map<String, Value> = Map::new();
    for text in texts {
        let Some((name, value)) = text.split_once('=') else {
            output::fault(&format!("{text} is not NAME=VALUE"));
            return None;
        };
        let values = pairs.entry(name).or_insert_with(|| json!([]));
        if let Value::Array(values) = values {
            values.push(json!(value));
        }
    }
    for values in pairs.values_mut() {
        // A single value is no list in the API: it is stored as given.
        if let Value::Array(several) = values
            && several.len() == 1
        {
            *values = several.remove(0);
        }
    }
    Some(pairs)
}

fn chunks(document: &Value) -> String {
    output::counted(document["chunks"].as_u64().unwrap_or_default(), "chunk")
}

fn say(format: OutputFormat, value: &Value, line: &str) {
    if format.is_json() {
        output::document(value);
    } else {
        output::line(line);
    }
}

async fn add(
    gateway: &Gateway,
    kb: &str,
    files: Vec<FoundFile>,
    metadata: &Map<String, Value>,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let mut failed = 0;
    let all = files.len();
    for (number, file) in (1..).zip(files) {
        let label = format!("[{number}/{all}] {}", file.id);
        match add_one(gateway, kb, &file, metadata, &label).await {
            Ok(document) => {
                let mut line = format!("{label}  {}", chunks(&document));
                if let Some(missing) = document["error"].as_str() {
                    line = format!("{line}, but {missing}");
                }
                say(format, &document, &line);
            }
            Err(error) => {
                failed += 1;
                let failure = json!({"document_id": file.id, "error": format!("{error:#}")});
                say(format, &failure, &format!("{label}  failed: {error:#}"));
            }
        }
    }
    if failed > 0 {
        output::remark(&format!("{failed} of {all} failed"));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Uploads a file and shows the progress until it is searchable.
async fn add_one(
    gateway: &Gateway,
    kb: &str,
    file: &FoundFile,
    metadata: &Map<String, Value>,
    label: &str,
) -> anyhow::Result<Value> {
    let path = document_path(kb, &file.id);
    let mut metadata = metadata.clone();
    metadata
        .entry("source")
        .or_insert_with(|| json!(file.path.display().to_string()));
    let query = format!(
        "?name={}&metadata={}",
        encoded(&file.id),
        encoded(&Value::Object(metadata).to_string())
    );
    let request = gateway.request(Method::PUT, &format!("{path}{query}"))?;
    let request = request
        .header(CONTENT_TYPE, &file.media_type)
        .body(file.read()?);
    let sending = gateway.ask(request);
    // Pinned, because the upload continues across the polls.
    tokio::pin!(sending);
    let mut shown = Value::Null;
    loop {
        tokio::select! {
            sent = &mut sending => return sent,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        // For display only, so errors are ignored.
        let look = async {
            let request = gateway.request(Method::GET, &path)?;
            gateway.ask(request).await
        };
        tokio::select! {
            sent = &mut sending => return sent,
            seen = look => if let Ok(seen) = seen
                && seen["progress"]["chunks_all"].as_u64() > Some(0)
                && seen["progress"] != shown
            {
                shown = seen["progress"].clone();
                let all = output::counted(shown["chunks_all"].as_u64().unwrap_or_default(), "chunk");
                output::remark(&format!("{label}  {} of {all}", shown["chunks_done"]));
            },
        }
    }
}

async fn list(gateway: &Gateway, kb: &str, format: OutputFormat) -> anyhow::Result<ExitCode> {
    let mut cursor = String::new();
    loop {
        let path = format!("{}/documents?limit=100{cursor}", base_path(kb));
        let page = gateway.ask(gateway.request(Method::GET, &path)?).await?;
        for document in page["items"].as_array().into_iter().flatten() {
            let text = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
            let line = format!(
                "{:8} {:>13} {:>10} bytes  {}",
                text("status"),
                chunks(document),
                document["size"],
                text("document_id")
            );
            say(format, document, &line);
        }
        match next_cursor(&page) {
            Some(next) => cursor = format!("&cursor={}", encoded(next)),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

async fn search(
    gateway: &Gateway,
    kb: &str,
    body: &Value,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let path = format!("{}/retrieve", base_path(kb));
    let request = gateway.request(Method::POST, &path)?.json(body);
    let found = gateway.ask(request).await?;
    if format.is_json() {
        output::document(&found);
        return Ok(ExitCode::SUCCESS);
    }
    let results = found["results"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if results.is_empty() {
        output::remark("nothing was found");
    }
    for entry in results {
        let metadata = &entry["metadata"];
        let heading = metadata["heading"]
            .as_str()
            .map(|heading| format!(" › {heading}"));
        let name = metadata["name"].as_str().or(entry["id"].as_str());
        let score = entry["score"].as_f64().unwrap_or_default();
        output::line(&format!(
            "{score:.3}  {}{}",
            name.unwrap_or_default(),
            heading.unwrap_or_default()
        ));
        for part in entry["content"].as_array().into_iter().flatten() {
            for line in part["text"].as_str().unwrap_or_default().lines() {
                output::line(&format!("    {line}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn reindex(gateway: &Gateway, kb: &str, format: OutputFormat) -> anyhow::Result<ExitCode> {
    let (mut cursor, mut failed) = (String::new(), false);
    loop {
        let path = format!("{}/reindex{cursor}", base_path(kb));
        let done = gateway.ask(gateway.request(Method::POST, &path)?).await?;
        for document in done["documents"].as_array().into_iter().flatten() {
            failed |= document["status"] == "failed";
            let line = format!(
                "{}  {}  {}",
                document["status"].as_str().unwrap_or_default(),
                chunks(document),
                document["document_id"].as_str().unwrap_or_default()
            );
            say(format, document, &line);
        }
        match next_cursor(&done) {
            Some(next) => cursor = format!("?cursor={}", encoded(next)),
            None if failed => return Ok(ExitCode::FAILURE),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}
