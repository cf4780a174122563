//! A LangBot 4.11 database with the tables and columns that a migration reads.

use std::fmt::Write as _;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};

use super::TempDirectory;
use super::database::{Database, Engine};
use super::repository::repository_file;

/// The only workspace, as in the community edition.
const WORKSPACE: &str = "7f000000-0000-4000-8000-000000000001";

/// Each table also has columns for `WORKSPACE` and the times.
const TABLES: [(&str, &str); 8] = [
    (
        "legacy_pipelines",
        "uuid VARCHAR(255) PRIMARY KEY, name VARCHAR(255), description VARCHAR(255), emoji VARCHAR(10), \
         for_version VARCHAR(255), is_default BOOLEAN, stages JSON, config JSON, extensions_preferences JSON",
    ),
    (
        "model_providers",
        "uuid VARCHAR(255) PRIMARY KEY, name VARCHAR(255), requester VARCHAR(255), base_url VARCHAR(512), api_keys JSON",
    ),
    (
        "llm_models",
        "uuid VARCHAR(255) PRIMARY KEY, name VARCHAR(255), provider_uuid VARCHAR(255), abilities JSON, \
         context_length INTEGER, reasoning_config JSON, extra_args JSON, prefered_ranking INTEGER",
    ),
    (
        "embedding_models",
        "uuid VARCHAR(255) PRIMARY KEY, name VARCHAR(255), provider_uuid VARCHAR(255), extra_args JSON",
    ),
    (
        "rerank_models",
        "uuid VARCHAR(255) PRIMARY KEY, name VARCHAR(255), provider_uuid VARCHAR(255), extra_args JSON",
    ),
    (
        "mcp_servers",
        "uuid VARCHAR(255) PRIMARY KEY, name VARCHAR(255), enable BOOLEAN, mode VARCHAR(255), extra_args JSON, readme TEXT",
    ),
    (
        "knowledge_bases",
        "uuid VARCHAR(255) PRIMARY KEY, name VARCHAR, description TEXT, knowledge_engine_plugin_id VARCHAR, \
         collection_id VARCHAR, creation_settings JSON, retrieval_settings JSON",
    ),
    (
        "knowledge_base_files",
        "uuid VARCHAR(255) PRIMARY KEY, kb_id VARCHAR(255), file_name VARCHAR, status VARCHAR",
    ),
];

/// A database with the nine pipelines of the fixture, one for each built-in runner, and the rows that they
/// reference. Every secret in it contains the word `hidden`.
pub struct LangbotDatabase {
    /// Source argument of `migrate-config`.
    pub source: String,
    /// The server database, dropped with this value.
    _database: Option<Database>,
}

impl LangbotDatabase {
    /// Returns `None` for `PostgreSQL` if the environment names no server.
    pub async fn create(engine: Engine, directory: &TempDirectory) -> Option<Self> {
        Self::create_at(engine, directory, &[]).await
    }

    /// Like `create`, with some addresses of the fixture replaced.
    pub async fn create_at(
        engine: Engine,
        directory: &TempDirectory,
        addresses: &[(&str, String)],
    ) -> Option<Self> {
        let substitute = |sql: String, (from, to): &(&str, String)| sql.replace(from, to);
        let sql = addresses.iter().fold(sql(), substitute);
        match engine {
            Engine::Sqlite => {
                let path = directory.file("langbot.db");
                let url = format!("sqlite://{}?mode=rwc", path.display());
                let mut connection = SqliteConnection::connect(&url).await.unwrap();
                let made = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection);
                made.await.unwrap();
                connection.close().await.unwrap();
                Some(Self {
                    source: path.display().to_string(),
                    _database: None,
                })
            }
            Engine::Postgres => {
                let database = Database::create(engine, directory).await?;
                let mut connection = PgConnection::connect(&database.url()).await.unwrap();
                let made = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection);
                made.await.unwrap();
                Some(Self {
                    source: database.url(),
                    _database: Some(database),
                })
            }
        }
    }
}

/// The rows of each table.
fn rows(table: &str) -> Vec<Value> {
    match table {
        "legacy_pipelines" => pipelines(),
        "model_providers" => vec![
            json!({"uuid": "p-1", "name": "OpenAI", "requester": "openai-chat-completions",
                "base_url": "https://api.openai.example/v1", "api_keys": ["hidden-1", "hidden-2"]}),
            json!({"uuid": "p-2", "name": "Ollama", "requester": "ollama-chat",
                "base_url": "http://127.0.0.1:11434", "api_keys": []}),
        ],
        "llm_models" => ["gpt-large", "gpt-small"]
            .map(|id| {
                json!({"uuid": id, "name": format!("{id}-upstream"), "provider_uuid": "p-1", "abilities": ["vision"],
                    "context_length": 128_000, "reasoning_config": {"level": "provider_default"},
                    "extra_args": {"temperature": 0.2}})
            })
            .to_vec(),
        "embedding_models" => {
            vec![json!({"uuid": "e-1", "name": "bge-m3", "provider_uuid": "p-2", "extra_args": {}})]
        }
        "rerank_models" => {
            vec![json!({"uuid": "r-1", "name": "ranker", "provider_uuid": "p-1", "extra_args": {}})]
        }
        "mcp_servers" => vec![
            json!({"uuid": "s-1", "name": "Web search", "enable": true, "mode": "remote", "readme": "",
                "extra_args": {"url": "https://mcp.example/mcp", "headers": {"Authorization": "hidden"}}}),
            json!({"uuid": "s-2", "name": "off", "enable": false, "mode": "stdio", "readme": "",
                "extra_args": {"command": "npx", "args": [], "env": {}}}),
        ],
        "knowledge_bases" => vec![
            json!({"uuid": "handbook", "name": "Handbook", "knowledge_engine_plugin_id": "langbot-team/LangRAG",
                "creation_settings": {"embedding_model_uuid": "e-1"}, "retrieval_settings": {"top_k": 5}}),
        ],
        "knowledge_base_files" => {
            vec![json!({"uuid": "f-1", "kb_id": "handbook", "file_name": "a.pdf", "status": "completed"})]
        }
        other => panic!("{other}"),
    }
}

/// The pipelines of the export that use a built-in runner.
pub fn pipelines() -> Vec<Value> {
    let export = std::fs::read_to_string(repository_file("tests/fixtures/langbot_export.json"));
    let export: Value = serde_json::from_str(&export.unwrap()).unwrap();
    let all = export["pipelines"].as_array().unwrap().iter();
    let built_in = all.filter(|pipeline| {
        let runner = &pipeline["config"]["ai"]["runner"]["runner"];
        runner.as_str().is_some_and(|name| !name.is_empty())
    });
    let pipelines: Vec<_> = built_in.cloned().collect();
    assert_eq!(pipelines.len(), 9);
    pipelines
}

/// Tables and rows in SQL that both engines accept.
fn sql() -> String {
    let mut sql = String::new();
    for (table, columns) in TABLES {
        let _ = writeln!(
            sql,
            "CREATE TABLE {table} ({columns}, workspace_uuid VARCHAR(36), created_at TIMESTAMP, updated_at TIMESTAMP);"
        );
        for (number, row) in rows(table).into_iter().enumerate() {
            let mut row = row.as_object().unwrap().clone();
            row.insert("workspace_uuid".to_owned(), json!(WORKSPACE));
            row.insert(
                "created_at".to_owned(),
                json!(format!("2026-01-01 00:00:{number:02}")),
            );
            let names: Vec<_> = row.keys().map(String::as_str).collect();
            let values: Vec<_> = row.values().map(literal).collect();
            let (names, values) = (names.join(", "), values.join(", "));
            let _ = writeln!(sql, "INSERT INTO {table} ({names}) VALUES ({values});");
        }
    }
    sql
}

fn literal(value: &Value) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(_) | Value::Object(_) => quoted(&value.to_string()),
    }
}
