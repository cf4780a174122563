//! Settings of knowledge bases. Documents are not migrated, because the vectors of another store are unreadable.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::entry::{TableEntry, blocked, left_out};
use super::models::is_id;
use super::row::CatalogRow;
use crate::migrate::convert::short_name;
use crate::migrate::migration_table::TableKind;
use crate::migrate::report::Migration;

/// LangBot's own knowledge engine, under its names of all versions.
const OWN_ENGINES: [&str; 3] = [
    "langbot-team/LangRAG",
    "langbot-team/langrag",
    "langbot/langrag",
];
/// Names of a setting, older ones last.
const CHUNK: [&str; 2] = ["chunk_size", "chunk-size"];
const OVERLAP: [&str; 3] = ["chunk_overlap", "overlap", "chunk-overlap"];

/// Plans the row of a knowledge base. `models`: ids of the migrated models; `files`: rows of documents.
pub(super) fn plan(
    row: &CatalogRow<'_>,
    models: &BTreeSet<String>,
    files: &[&CatalogRow<'_>],
    out: &mut Migration,
    variables: &mut BTreeSet<String>,
) {
    let shown = row.text("name").unwrap_or_default();
    let Some(id) = row.text("uuid").filter(|id| is_id(id)) else {
        let why = blocked("it has no uuid, which agents would name it by");
        return left_out(row, TableKind::KnowledgeBase, shown, why, out);
    };
    // Documents in another engine are unreadable here.
    if let Some(engine) = other_engine(row) {
        let why = blocked(format!(
            "its documents are in {engine}: add them to a base of the gateway, or set a service by kb_type"
        ));
        return left_out(row, TableKind::KnowledgeBase, id, why, out);
    }
    let mut entry = TableEntry::new(row, TableKind::KnowledgeBase, id, "KB", variables);
    entry.set("uuid", "kb_id", json!(id));
    if let Some(name) = short_name(shown) {
        entry.set("name", "kb_name", json!(name));
    }
    embedding(&mut entry, row, models);
    chunks(&mut entry, row);
    entry.drop(
        "top_k",
        "set the number of passages on the agent: config.retrieval-top-k",
    );
    entry.drop(
        "retrieval_settings",
        "set the number of passages on the agent: config.retrieval-top-k",
    );
    let documents = files
        .iter()
        .filter(|file| file.text("kb_id") == Some(id))
        .count();
    if documents > 0 {
        let documents = match documents {
            1 => "its document is".to_owned(),
            several => format!("its {several} documents are"),
        };
        let advice = format!("add the files again by runnel kb add {id} FILE");
        entry.warn("uuid", format!("{documents} not migrated: {advice}"));
    }
    entry.migrated(
        &format!("Knowledge base {}", short_name(shown).unwrap_or_default()),
        out,
    );
}

/// Returns the engine of a knowledge base with external documents.
fn other_engine(row: &CatalogRow<'_>) -> Option<String> {
    let engine = ["knowledge_engine_plugin_id", "rag_engine_plugin_id"];
    let engine = engine.iter().find_map(|column| row.text(column));
    let author = row.text("plugin_author");
    let plugin = row.text("plugin_name");
    let external = author
        .zip(plugin)
        .map(|(author, name)| format!("{author}/{name}"));
    let engine = engine.map(str::to_owned).or(external)?;
    let is_own = |own: &str| own.eq_ignore_ascii_case(&engine);
    let shown: String = engine
        .chars()
        .filter(|c| !c.is_control())
        .take(100)
        .collect();
    (!OWN_ENGINES.iter().any(|own| is_own(own))).then_some(shown)
}

fn embedding(entry: &mut TableEntry<'_, '_>, row: &CatalogRow<'_>, models: &BTreeSet<String>) {
    let of_settings = row.value("creation_settings")["embedding_model_uuid"].as_str();
    let (column, id) = match of_settings {
        Some(id) => ("creation_settings/embedding_model_uuid", id),
        None => (
            "embedding_model_uuid",
            row.text("embedding_model_uuid").unwrap_or_default(),
        ),
    };
    // LangBot writes an empty id for a base without embeddings.
    if id.trim().is_empty() {
        return;
    }
    if models.contains(id) {
        entry.push("embedding_model", json!(id));
        entry.renamed(column, "embedding_model");
    } else {
        let why = "its embedding model is not migrated: passages are found only by their words";
        entry.dropped(&column.split('/').collect::<Vec<_>>(), why);
    }
}

/// Migrates chunk sizes within the gateway's limits.
fn chunks(entry: &mut TableEntry<'_, '_>, row: &CatalogRow<'_>) {
    let settings = row.value("creation_settings");
    let read = |names: &[&'static str]| {
        let named = |name: &&'static str| Some((*name, settings.get(*name)?.as_u64()?));
        names.iter().find_map(named)
    };
    let is_size = |(_, size): &(&str, u64)| (100..=8000).contains(size);
    // Numbers only: other values are left to the gateway's defaults.
    let Some((name, size)) = read(&CHUNK).filter(is_size) else {
        return;
    };
    entry.push("chunk_chars", json!(size));
    entry.renamed(&format!("creation_settings/{name}"), "chunk_chars");
    if let Some((name, overlap)) = read(&OVERLAP).filter(|(_, overlap)| *overlap <= size / 2) {
        entry.push("chunk_overlap", Value::from(overlap));
        entry.renamed(&format!("creation_settings/{name}"), "chunk_overlap");
    }
}
