//! Chat, embedding and rerank models.

use std::collections::BTreeSet;

use serde_json::json;

use super::entry::{TableEntry, blocked, left_out, nothing};
use super::providers::Providers;
use super::row::{CatalogRow, RowKind};
use crate::migrate::migration_table::TableKind;
use crate::migrate::report::Migration;

const CONTEXT: std::ops::RangeInclusive<u64> = 1..=1_000_000_000;

/// Plans the row of a model. `model_ids`: ids of the models so far.
pub(super) fn plan(
    row: &CatalogRow<'_>,
    rankers: &BTreeSet<String>,
    providers: &mut Providers,
    model_ids: &mut BTreeSet<String>,
    out: &mut Migration,
    variables: &mut BTreeSet<String>,
) {
    let name = row.text("name").unwrap_or_default();
    let leave = |shown: &str, why, out: &mut Migration| {
        left_out(row, TableKind::Model, shown, why, out);
    };
    let Some(id) = row.text("uuid").filter(|id| is_id(id)) else {
        return leave(
            name,
            blocked("it has no uuid, which agents would name it by"),
            out,
        );
    };
    if name.is_empty() {
        return leave(id, blocked("it has no name at its provider"), out);
    }
    // The same model may be in a table and in an answer of the API.
    if model_ids.contains(id) {
        return leave(id, nothing("a model with this id exists already"), out);
    }
    let Some(provider) = providers.of_model(row, out, variables) else {
        return leave(id, blocked("its provider is not migrated"), out);
    };
    model_ids.insert(id.to_owned());
    let kind = kind_of(row, id, rankers);
    let mut entry = TableEntry::new(row, TableKind::Model, id, "MODEL", variables);
    entry.set("uuid", "model_id", json!(id));
    if kind != RowKind::Llm {
        let (model_type, operations) = match kind {
            RowKind::Rerank => ("rerank", json!(["rerank"])),
            _ => ("embedding", json!(["invoke", "count_tokens"])),
        };
        entry.add("model_type", json!(model_type), "its source table");
        entry.add("operations", operations, "the only operations of its kind");
        if row.kind == RowKind::SomeModel {
            let why = format!("the answer has no kind: assumed {model_type}, by its use");
            entry.warn("uuid", why);
        }
    }
    entry.set("provider_uuid", "provider", json!(provider));
    entry.set("name", "upstream_model", json!(name));
    let context = row.value("context_length").as_u64();
    if let Some(tokens) = context.filter(|tokens| CONTEXT.contains(tokens)) {
        entry.set("context_length", "context_window_tokens", json!(tokens));
    }
    entry.drop(
        "abilities",
        "the gateway passes on pictures and tools to every model",
    );
    entry.drop(
        "extra_args",
        "the configuration has no request parameters: runs send them as extra_args",
    );
    // The provider's default is also the gateway's.
    if row.value("reasoning_config")["level"] != json!("provider_default") {
        entry.drop(
            "reasoning_config",
            "set reasoning on the agent: config.model.reasoning",
        );
    }
    entry.migrated(&format!("Model {}", plain(name)), out);
}

/// Classifies a row of an API answer. Its columns mark a chat model; a pipeline that ranks with it marks a
/// rerank model.
fn kind_of(row: &CatalogRow<'_>, id: &str, rankers: &BTreeSet<String>) -> RowKind {
    if row.kind != RowKind::SomeModel {
        return row.kind;
    }
    let chats = [
        "abilities",
        "context_length",
        "reasoning_config",
        "reasoning_capabilities",
    ];
    if chats.iter().any(|column| !row.value(column).is_null()) {
        RowKind::Llm
    } else if rankers.contains(id) {
        RowKind::Rerank
    } else {
        RowKind::Embedding
    }
}

/// Returns true for an id that the configuration accepts.
pub(super) fn is_id(id: &str) -> bool {
    id.len() <= 255 && !id.contains(char::is_control)
}

fn plain(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_control()).collect()
}
