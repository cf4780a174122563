use serde_json::{Value, json};

use crate::migrate::migration_table::TableKind;
use crate::migrate::{
    FieldAction, Migration, MigrationDocument, MigrationOutcome, MigrationTarget, migrate,
};

const SECRET: &str = "sk-very-hidden";

/// Rows of a LangBot 4.11 database.
fn database() -> Value {
    json!({
        "pipelines": [],
        "model_providers": [
            {"uuid": "p-1", "name": "OpenAI", "requester": "openai-chat-completions",
                "base_url": "https://api.openai.com/v1/", "api_keys": json!([SECRET, SECRET]).to_string()},
            {"uuid": "p-2", "name": "Claude", "requester": "anthropic-messages",
                "base_url": "https://api.anthropic.com/v1", "api_keys": [SECRET]},
            {"uuid": "p-3", "name": "本地", "requester": "ollama-chat",
                "base_url": "http://127.0.0.1:11434", "api_keys": []},
            {"uuid": "p-4", "name": "Codex", "requester": "openai-codex", "base_url": "https://chatgpt.com"},
        ],
        "llm_models": [
            {"uuid": "m-1", "name": "gpt-4o", "provider_uuid": "p-1", "abilities": "[\"vision\"]",
                "context_length": 128_000, "extra_args": {"temperature": 1}},
            {"uuid": "m-2", "name": "codex", "provider_uuid": "p-4"},
        ],
        "embedding_models": [{"uuid": "e-1", "name": "bge", "provider_uuid": "p-3", "extra_args": "{}"}],
        "rerank_models": [{"uuid": "r-1", "name": "ranker", "provider_uuid": "p-1"}],
        "mcp_servers": [
            {"uuid": "s-1", "name": "Web search", "enable": 1, "mode": "remote", "extra_args": json!({
                "url": "https://mcp.test/mcp", "headers": {"Authorization": SECRET}, "timeout": 10,
                "tool_call_timeout_sec": 90}).to_string()},
            {"uuid": "s-2", "name": "files", "enable": true, "mode": "stdio", "extra_args": {
                "command": "npx", "args": ["-y", "server"], "env": {"TOKEN": SECRET}}},
            {"uuid": "s-3", "name": "off", "enable": 0, "mode": "remote", "extra_args": {"url": "https://x.test"}},
            {"uuid": "s-4", "name": "keyed", "enable": 1, "mode": "remote",
                "extra_args": {"url": "https://x.test/mcp?api_key=sk-very-hidden"}},
        ],
        "knowledge_bases": [
            {"uuid": "k-1", "name": "Handbook", "knowledge_engine_plugin_id": "langbot-team/LangRAG",
                "creation_settings": json!({"embedding_model_uuid": "e-1", "chunk_size": 500, "overlap": 50}).to_string()},
            {"uuid": "k-2", "name": "Old", "embedding_model_uuid": "gone", "top_k": 5},
            {"uuid": "k-3", "name": "Elsewhere", "knowledge_engine_plugin_id": "acme/engine"},
        ],
        "knowledge_base_files": [{"uuid": "f-1", "kb_id": "k-1"}, {"uuid": "f-2", "kb_id": "k-1"}],
    })
}

fn of(value: &Value) -> Migration {
    let file = MigrationDocument {
        file: "lb.db",
        value,
    };
    migrate(&[file], MigrationTarget::default()).unwrap()
}

fn table(migration: &Migration, kind: TableKind, name: &str) -> Value {
    let mut tables = migration.tables.iter();
    let found = tables.find(|table| table.kind == kind && table.name == name);
    let found = found.unwrap_or_else(|| panic!("no {name}: {:?}", migration.resources));
    json!(found.members)
}

fn report<'m>(migration: &'m Migration, name: &str) -> &'m crate::migrate::ResourceReport {
    let found = migration.resources.iter().find(|one| one.name == name);
    found.unwrap_or_else(|| panic!("no {name}: {:?}", migration.resources))
}

#[test]
fn maps_providers_by_their_api() {
    let migration = of(&database());
    let provider = |name: &str| table(&migration, TableKind::ModelProvider, name);
    assert_eq!(
        provider("OpenAI"),
        json!({"name": "OpenAI", "kind": "openai", "base_url": "https://api.openai.com/v1",
            "api_keys": ["env:OPENAI_API_KEY", "env:OPENAI_API_KEY_2"]})
    );
    assert_eq!(
        provider("Claude"),
        json!({"name": "Claude", "kind": "anthropic", "base_url": "https://api.anthropic.com",
            "api_keys": ["env:CLAUDE_API_KEY"]})
    );
    assert_eq!(
        provider("本地"),
        json!({"name": "本地", "kind": "openai", "base_url": "http://127.0.0.1:11434/v1"})
    );
    assert_eq!(
        report(&migration, "Codex").outcome,
        MigrationOutcome::Blocked
    );
    assert_eq!(
        migration.variables[0].from.as_deref(),
        Some("lb.db#/model_providers/0/api_keys/0")
    );
}

#[test]
fn keeps_ids_of_models_and_bases() {
    let migration = of(&database());
    assert_eq!(
        table(&migration, TableKind::Model, "m-1"),
        json!({"model_id": "m-1", "provider": "OpenAI", "upstream_model": "gpt-4o", "context_window_tokens": 128_000})
    );
    assert_eq!(report(&migration, "m-2").outcome, MigrationOutcome::Blocked);
    let fields = &report(&migration, "m-1").fields;
    let dropped: Vec<_> = fields
        .iter()
        .filter(|note| note.action == FieldAction::Dropped)
        .filter_map(|note| note.pointer.as_deref())
        .collect();
    assert_eq!(
        dropped,
        ["/llm_models/0/abilities", "/llm_models/0/extra_args"]
    );
    assert_eq!(
        table(&migration, TableKind::Model, "e-1"),
        json!({"model_id": "e-1", "model_type": "embedding", "operations": ["invoke", "count_tokens"],
            "provider": "本地", "upstream_model": "bge"})
    );
    assert_eq!(
        table(&migration, TableKind::Model, "r-1")["model_type"],
        "rerank"
    );
    assert_eq!(
        table(&migration, TableKind::KnowledgeBase, "k-1"),
        json!({"kb_id": "k-1", "kb_name": "Handbook", "embedding_model": "e-1", "chunk_chars": 500, "chunk_overlap": 50})
    );
    assert_eq!(
        table(&migration, TableKind::KnowledgeBase, "k-2"),
        json!({"kb_id": "k-2", "kb_name": "Old"})
    );
    assert_eq!(report(&migration, "k-3").outcome, MigrationOutcome::Blocked);
    let warned = format!("{:?}", report(&migration, "k-1").fields);
    assert!(warned.contains("2 documents are not migrated"), "{warned}");
}

#[test]
fn maps_servers_without_their_secrets() {
    let migration = of(&database());
    assert_eq!(
        table(&migration, TableKind::McpServer, "Web-search"),
        json!({"name": "Web-search", "url": "https://mcp.test/mcp", "timeout_seconds": 90.0,
            "headers": {"authorization": "env:MCP_WEB_SEARCH_AUTHORIZATION"}})
    );
    assert_eq!(
        table(&migration, TableKind::McpServer, "files"),
        json!({"name": "files", "command": ["npx", "-y", "server"], "env": {"TOKEN": "env:MCP_FILES_TOKEN"}})
    );
    assert_eq!(report(&migration, "off").outcome, MigrationOutcome::Nothing);
    assert_eq!(
        report(&migration, "keyed").outcome,
        MigrationOutcome::Blocked
    );
    let output = format!("{migration:?}");
    assert!(!output.contains(SECRET), "{output}");
}

#[test]
fn reads_api_answers() {
    let provider = json!({"uuid": "p", "name": "P", "requester": "openai-chat-completions",
        "base_url": "https://p.test/v1", "api_keys": ["***"]});
    let models = json!({"code": 0, "data": {"models": [
        {"uuid": "m", "name": "chat", "provider_uuid": "p", "abilities": [], "provider": provider},
        {"uuid": "e", "name": "embed", "provider_uuid": "p", "provider": provider},
    ]}});
    let migration = of(&models);
    assert_eq!(table(&migration, TableKind::Model, "m")["provider"], "P");
    assert_eq!(
        table(&migration, TableKind::Model, "e")["model_type"],
        "embedding"
    );
    let providers = migration.tables.iter();
    let providers = providers.filter(|table| table.kind == TableKind::ModelProvider);
    assert_eq!(providers.count(), 1);
    assert_eq!(migration.tables[0].kind, TableKind::ModelProvider);
    let bases = of(&json!({"data": {"bases": [{"uuid": "k", "name": "K"}]}}));
    assert_eq!(table(&bases, TableKind::KnowledgeBase, "k")["kb_name"], "K");
}

#[test]
fn creates_providers_for_older_models() {
    let model = |uuid: &str, key: &str| {
        json!({"uuid": uuid, "name": uuid, "requester": "openai-chat-completions",
            "requester_config": json!({"base_url": "https://a.test/v1"}).to_string(),
            "api_keys": json!([key]).to_string(), "abilities": "[]"})
    };
    let migration =
        of(&json!({"llm_models": [model("a", "sk-1"), model("b", "sk-1"), model("c", "sk-2")]}));
    let name = |id: &str| table(&migration, TableKind::Model, id)["provider"].clone();
    assert_eq!(name("a"), name("b"));
    assert_eq!(name("c"), "openai-chat-completions 2");
    let output = format!("{migration:?}");
    assert!(!output.contains("sk-1"), "{output}");
}
