//! Tables of LangBot's database, for all versions since 4.0.

use std::collections::BTreeSet;

use anyhow::{bail, ensure};
use protocol::JsonObject;
use serde_json::Value;
use store::foreign::{ForeignLimits, ForeignRows, ForeignTable};

pub(super) const LIMITS: ForeignLimits = ForeignLimits {
    rows: 5000,
    bytes: 32 * 1024 * 1024,
};
/// Workspace column of a row, since 4.10.
const WORKSPACE: &str = "workspace_uuid";
/// The table of pipelines, and its name in exports.
const PIPELINES: (&str, &str) = ("legacy_pipelines", "pipelines");

const fn table(name: &'static str, columns: &'static [&'static str]) -> ForeignTable {
    ForeignTable { name, columns }
}

/// Tables that a migration reads. Bots, users, plugins and messages are excluded.
pub(super) const TABLES: &[ForeignTable] = &[
    table(
        PIPELINES.0,
        &[
            "uuid",
            WORKSPACE,
            "name",
            "is_default",
            "config",
            "extensions_preferences",
        ],
    ),
    table("agents", &["uuid", WORKSPACE, "name", "config"]),
    table(
        "model_providers",
        &[
            "uuid",
            WORKSPACE,
            "name",
            "requester",
            "base_url",
            "api_keys",
        ],
    ),
    table(
        "llm_models",
        &[
            "uuid",
            WORKSPACE,
            "name",
            "provider_uuid",
            "abilities",
            "context_length",
            "reasoning_config",
            "extra_args",
            "requester",
            "requester_config",
            "api_keys",
        ],
    ),
    table(
        "embedding_models",
        &[
            "uuid",
            WORKSPACE,
            "name",
            "provider_uuid",
            "extra_args",
            "requester",
            "requester_config",
            "api_keys",
        ],
    ),
    table(
        "rerank_models",
        &["uuid", WORKSPACE, "name", "provider_uuid", "extra_args"],
    ),
    table(
        "mcp_servers",
        &["uuid", WORKSPACE, "name", "enable", "mode", "extra_args"],
    ),
    table(
        "knowledge_bases",
        &[
            "uuid",
            WORKSPACE,
            "name",
            "knowledge_engine_plugin_id",
            "rag_engine_plugin_id",
            "creation_settings",
            "retrieval_settings",
            "embedding_model_uuid",
            "top_k",
        ],
    ),
    table(
        "external_knowledge_bases",
        &["uuid", "name", "plugin_author", "plugin_name"],
    ),
    table("knowledge_base_files", &["uuid", WORKSPACE, "kb_id"]),
];

/// The tables as one document. `workspace`: read only rows of this workspace.
pub(super) fn document(tables: Vec<ForeignRows>, workspace: Option<&str>) -> anyhow::Result<Value> {
    ensure!(
        tables.iter().any(|table| table.table == PIPELINES.0),
        "is no database of LangBot 4: it has no table {}",
        PIPELINES.0
    );
    let found: BTreeSet<String> = tables
        .iter()
        .flat_map(|table| &table.rows)
        .filter_map(|row| workspace_of(row).map(str::to_owned))
        .collect();
    match workspace {
        None if found.len() > 1 => {
            let names: Vec<_> = found.into_iter().collect();
            bail!(
                "holds {} workspaces, which do not share their settings; choose one by --workspace: {}",
                names.len(),
                names.join(", ")
            );
        }
        Some(name) if !found.contains(name) => bail!("has no rows of the workspace {name}"),
        _ => {}
    }
    let is_taken = |row: &JsonObject| match (workspace, workspace_of(row)) {
        // Rows of versions before 4.10 have no workspace, and belong to all.
        (Some(wanted), Some(of)) => wanted == of,
        _ => true,
    };
    let mut document = JsonObject::new();
    for table in tables {
        let name = if table.table == PIPELINES.0 {
            PIPELINES.1
        } else {
            table.table
        };
        let rows = table.rows.into_iter().filter(is_taken);
        document.insert(name.to_owned(), rows.map(Value::Object).collect());
    }
    Ok(Value::Object(document))
}

fn workspace_of(row: &JsonObject) -> Option<&str> {
    row.get(WORKSPACE)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows(table: &'static str, rows: &Value) -> ForeignRows {
        ForeignRows {
            table,
            rows: serde_json::from_value(rows.clone()).unwrap(),
        }
    }

    #[test]
    fn reads_one_workspace_at_a_time() {
        let tables = || {
            vec![
                rows(
                    PIPELINES.0,
                    &json!([{"uuid": "a", WORKSPACE: "w"}, {"uuid": "b", WORKSPACE: "v"}]),
                ),
                rows("external_knowledge_bases", &json!([{"uuid": "k"}])),
            ]
        };
        let error = document(tables(), None).unwrap_err().to_string();
        assert!(error.contains("--workspace: v, w"), "{error}");
        document(tables(), Some("x")).unwrap_err();
        let read = document(tables(), Some("w")).unwrap();
        assert_eq!(
            read,
            json!({"pipelines": [{"uuid": "a", WORKSPACE: "w"}], "external_knowledge_bases": [{"uuid": "k"}]})
        );
        document(vec![rows("agents", &json!([]))], None).unwrap_err();
    }
}
