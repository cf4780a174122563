//! Migration of `LangBot` pipelines to agents and endpoints; the written configuration is valid and can be
//! served.

use std::collections::BTreeSet;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::client::{Client, send};
use crate::support::langbot_database::LangbotDatabase;
use crate::support::repository::repository_file;
use crate::support::runner::{RecordedRequest, SECRET, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::terminal::PseudoTerminal;
use crate::support::{
    CommandOutput, Engine, Postgres, Sqlite, Stage, TempDirectory, programs, run,
};

pub(crate) const MASTER_KEY: &str =
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// One pipeline of each built-in runner, one already migrated pipeline, and one without a runner.
fn export() -> String {
    std::fs::read_to_string(repository_file("tests/fixtures/langbot_export.json")).unwrap()
}

/// A directory with only the export.
fn directory() -> TempDirectory {
    let directory = TempDirectory::new();
    directory.write("export.json", &export());
    directory
}

pub(crate) async fn runnel(
    directory: &TempDirectory,
    arguments: &[&str],
    variables: &[(String, String)],
) -> CommandOutput {
    let mut command = Command::new(programs::runnel());
    command
        .args(arguments)
        .current_dir(directory.file(""))
        .envs(variables.iter().map(|(name, value)| (name, value)));
    run(&mut command).await
}

async fn migrate(directory: &TempDirectory, arguments: &[&str]) -> CommandOutput {
    let mut all = vec!["migrate-config"];
    all.extend(arguments);
    let printed = runnel(directory, &all, &[]).await;
    // Every secret in the fixture contains "hidden".
    for text in [&printed.stdout, &printed.stderr] {
        assert!(!text.contains("hidden"), "{printed:?}");
    }
    printed
}

fn files(directory: &TempDirectory) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory.file("")).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect()
}

/// Variables without a source, with values: endpoints share a secret, the others belong to runners.
fn variables(report: &Value) -> Vec<(String, String)> {
    let named = report["variables"].as_array().unwrap().iter();
    named
        .filter(|one| one["from"].is_null())
        .map(|one| {
            let name = one["name"].as_str().unwrap().to_owned();
            let value = if name == "RUNNEL_MASTER_KEY" {
                MASTER_KEY
            } else {
                SECRET
            };
            (name, value.to_owned())
        })
        .collect()
}

#[tokio::test]
async fn dry_run_prints_tables_and_writes_nothing() {
    let directory = directory();
    let printed = migrate(&directory, &["export.json"]).await.exited(0);
    for table in [
        "[[runner_endpoints]]\nname = \"DifyAgent\"\nbase_url = \"https://difyagent.invalid\"\n",
        "[[agents]]\nname = \"Coze\"\n",
        "filters = { pipeline_id = [\"0b8a3c10-0000-4000-8000-000000000003\"] }\n",
        "api-key = \"env:COZE_API_KEY\"\n",
    ] {
        assert!(
            printed.stdout.contains(table),
            "{table}: {}",
            printed.stdout
        );
    }
    for expected in [
        "export.json#/pipelines/2: Coze → plugin:langbot-team/CozeAgent/default",
        "kept       /pipelines/2/config/ai/coze-api/bot-id → config.bot-id",
        "renamed    /pipelines/2/config/ai/coze-api/auto_save_history → config.auto-save-history",
        "referenced /pipelines/2/config/ai/coze-api/api-key → config.api-key",
        "defaulted  config.user-id-source",
        "dropped    /pipelines/0/config/ai/local-agent/max-round",
        "COZE_API_KEY: its value is at export.json#/pipelines/2/config/ai/coze-api/api-key",
        "#/pipelines/10: Empty → nothing (nothing to migrate)",
    ] {
        assert!(
            printed.stderr.contains(expected),
            "{expected}: {}",
            printed.stderr
        );
    }
    assert_eq!(
        files(&directory),
        BTreeSet::from(["export.json".to_owned()])
    );
}

#[tokio::test]
async fn written_configuration_passes_check_config() {
    let directory = directory();
    let arguments = ["export.json", "--write", "runnel.toml", "--json"];
    let printed = migrate(&directory, &arguments).await.exited(0);
    let report = printed.json();
    assert_eq!(report["write"]["outcome"], "created");
    let written = std::fs::read_to_string(directory.file("runnel.toml")).unwrap();
    assert!(written.ends_with(report["toml"].as_str().unwrap()));
    assert!(!written.contains("hidden"), "{written}");

    let unset = runnel(&directory, &["check-config"], &[]).await;
    assert_eq!(unset.status.code(), Some(1));
    assert_contains!(unset.stderr, "env:DIFYAGENT_RUNNER_SECRET is not set");
    let checked = runnel(&directory, &["check-config"], &variables(&report)).await;
    assert_eq!(
        checked.stdout, "the configuration is valid\n",
        "{checked:?}"
    );
}

#[tokio::test]
async fn second_migration_keeps_edited_configuration() {
    let directory = directory();
    let arguments = ["export.json", "--write", "runnel.toml"];
    let path = directory.file("runnel.toml");
    let first = migrate(&directory, &arguments).await;
    assert_starts_with!(first.stdout, "created runnel.toml\n");
    let written = std::fs::read_to_string(&path).unwrap();

    let again = migrate(&directory, &arguments).await;
    assert_eq!(again.stdout, "unchanged runnel.toml\n", "{again:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), written);

    let edited = written.replace("https://difyagent.invalid", "https://dify.runner.example");
    directory.write("runnel.toml", &edited);
    let second = migrate(&directory, &arguments).await;
    assert_starts_with!(
        second.stdout,
        "unchanged runnel.toml\n  kept runner_endpoints DifyAgent: "
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), edited);

    // Missing parts are appended; the existing bytes stay.
    let (before, _) = edited.split_once("# Dify: ").unwrap();
    directory.write("runnel.toml", before);
    let extended = migrate(&directory, &arguments).await;
    assert_starts_with!(extended.stdout, "extended runnel.toml\n  added ");
    assert_contains!(extended.stdout, "added agents Dify\n");
    let after = std::fs::read_to_string(&path).unwrap();
    assert!(after.starts_with(before.trim_end()), "{after}");
    assert_eq!(after.matches("name = \"Dify\"").count(), 1);
    assert_eq!(files(&directory).len(), 2, "{:?}", files(&directory));
}

#[tokio::test]
async fn leaves_file_unchanged_when_extension_fails() {
    let directory = directory();
    for text in ["agents = []\n", "[server\n"] {
        directory.write("runnel.toml", text);
        let printed = migrate(&directory, &["export.json", "--write", "runnel.toml"]).await;
        assert_eq!(printed.status.code(), Some(1), "{printed:?}");
        assert!(printed.stderr.contains("runnel.toml"), "{printed:?}");
        assert_eq!(
            std::fs::read_to_string(directory.file("runnel.toml")).unwrap(),
            text
        );
        assert_eq!(files(&directory).len(), 2, "{:?}", files(&directory));
    }
}

#[tokio::test]
async fn names_unreadable_input_without_quoting_it() {
    let directory = TempDirectory::new();
    for (name, text, expected) in [
        (
            "a.json",
            "{\"api-key\": \"hidden\"",
            "a.json is no valid JSON at line 1, column 20",
        ),
        (
            "b.json",
            "{\"api-key\": \"hidden\"}",
            "b.json# is no pipeline",
        ),
        (
            "c.json",
            "[{\"config\": \"hidden\"}]",
            "c.json#/0/config is a text that holds no JSON object",
        ),
        (
            "provider.json",
            "\u{feff}{\"keys\": {\"openai\": [\"hidden\"]}, \"requester\": {}, \"model\": \"gpt\"}",
            "provider.json# is a `provider.json` of LangBot 3.x",
        ),
        ("d.toml", "api-key = \"hidden", "d.toml:1:"),
        (
            "e.yaml",
            "api-key: hidden",
            "e.yaml is YAML; convert it to JSON first",
        ),
        ("f.json", "", "f.json is no valid JSON"),
    ] {
        directory.write(name, text);
        for json in [&[][..], &["--json"][..]] {
            let mut arguments = vec![name, "--write", "runnel.toml"];
            arguments.extend(json);
            let printed = migrate(&directory, &arguments).await.exited(1);
            let output = printed.stdout + &printed.stderr;
            assert!(output.contains(expected), "{expected}: {output}");
        }
    }
    assert!(!directory.file("runnel.toml").exists());
    migrate(&directory, &["nowhere.json"]).await.exited(1);
    migrate(&directory, &[]).await.exited(2);
}

#[tokio::test]
async fn incomplete_pipeline_does_not_block_others() {
    let directory = TempDirectory::new();
    let mut export: Value = serde_json::from_str(&export()).unwrap();
    let dify = &mut export["pipelines"][1]["config"]["ai"]["dify-service-api"];
    dify.as_object_mut().unwrap().remove("api-key");
    directory.write("export.json", &export.to_string());
    let printed = migrate(
        &directory,
        &["export.json", "--write", "runnel.toml", "--json"],
    )
    .await
    .exited(1);
    let report = printed.json();
    assert_eq!(report["pipelines"][1]["outcome"], "blocked");
    let missing = json!({"action": "missing", "pointer": "/pipelines/1/config/ai/dify-service-api/api-key", "why": "is not set"});
    let fields = report["pipelines"][1]["fields"].as_array().unwrap();
    assert!(fields.contains(&missing), "{report}");
    let added = report["write"]["added"].as_array().unwrap();
    assert!(!added.contains(&json!("agents Dify")) && added.contains(&json!("agents Coze")));
}

#[tokio::test]
async fn reads_toml_and_writes_legacy_ids() {
    let directory = TempDirectory::new();
    let text = "name = \"Box\"\n[config.ai.runner]\nrunner = \"tbox-app-api\"\n\
        [config.ai.tbox-app-api]\napi-key = \"hidden-tbox\"\napp-id = \"a-1\"\n";
    directory.write("pipeline.toml", text);
    let printed = migrate(&directory, &["pipeline.toml", "--ids", "older"]).await;
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    let id = "runner_id = \"plugin:langbot/tbox-agent/default\"";
    assert!(printed.stdout.contains(id), "{printed:?}");
    assert!(
        !printed.stdout.contains("filters"),
        "the only pipeline gets every message"
    );
}

/// Serves every migrated agent with the real gateway. The written endpoint leads to a runner with the agent's
/// runner id, whose form has the agent's fields.
#[tokio::test]
async fn serves_every_migrated_built_in_runner() {
    let directory = directory();
    let printed = migrate(&directory, &["export.json", "--json"]).await;
    let report = printed.json();
    let mut toml = report["toml"].as_str().unwrap().to_owned();
    let secret = directory.write("endpoint.secret", SECRET);

    let mut runners: Vec<(String, StubRunner)> = Vec::new();
    for pipeline in migrated(&report) {
        let id = pipeline["runner_id"].as_str().unwrap();
        if runners.iter().any(|(served, _)| served == id) {
            continue;
        }
        let mut manifest = manifest(id);
        let fields = fields_of(&report, id);
        manifest["config_schema"] = fields
            .iter()
            .map(|name| json!({"type": "json", "name": name}))
            .collect();
        let runner = StubRunner::start_as(manifest).await;
        runner.answer_all(|run| sse(run.talk(1).concat()));
        let plugin = id.split('/').nth(1).unwrap();
        let stub = format!("https://{}.invalid", plugin.to_lowercase());
        let variable = format!("env:{}_RUNNER_SECRET", plugin.to_uppercase());
        assert!(
            toml.contains(&stub) && toml.contains(&variable),
            "{plugin}: {toml}"
        );
        toml = toml.replace(&stub, &runner.url);
        toml = toml.replace(&variable, &format!("file:{}", secret.display()));
        runners.push((id.to_owned(), runner));
    }
    assert_eq!(runners.len(), 9);

    let stage = Stage::with(|config| {
        config.agents.clear();
        config.rest = toml;
    })
    .await;
    let admin = stage.admin.clone();
    for pipeline in migrated(&report) {
        let at = pipeline["pointer"].as_str().unwrap();
        let export: Value = serde_json::from_str(&export()).unwrap();
        let uuid = export.pointer(at).unwrap()["uuid"]
            .as_str()
            .unwrap()
            .to_owned();
        let query = json!({
            "query_id": uuid, "launcher_type": "person", "launcher_id": uuid, "pipeline_uuid": uuid,
            "message_chain": [{"type": "Plain", "text": "hello"}],
        });
        let posted = stage
            .client
            .request(Method::POST, "/v1/adapters/pipeline/queries");
        let posted = send(posted.json(&query)).await.unwrap();
        assert_eq!(posted.status, 202, "{pipeline}: {}", posted.body);
        let run = stage.client.finished(&posted.run_id()).await;
        assert_eq!(run["status"], "completed", "{run}");

        let id = pipeline["runner_id"].as_str().unwrap();
        assert_eq!(run["runner_id"], id);
        let (_, runner) = runners.iter().find(|(served, _)| served == id).unwrap();
        let of_query = |request: &RecordedRequest| {
            request.is_run() && request.json()["context"]["event"]["event_id"] == uuid.as_str()
        };
        let run_request = runner.wait_for_request("the run", of_query).await.json();
        let config = &run_request["context"]["config"];
        assert_eq!(
            &config_of(&admin, pipeline["agent"].as_str().unwrap()).await,
            config
        );
        assert!(!config.to_string().contains("hidden"), "{config}");
        for (name, expected) in expected(pipeline["agent"].as_str().unwrap()) {
            assert_eq!(config[name], expected, "{name}: {config}");
        }
    }
}

fn migrated(report: &Value) -> Vec<&Value> {
    let all = report["pipelines"].as_array().unwrap().iter();
    all.filter(|one| one["outcome"] == "migrated").collect()
}

fn fields_of(report: &Value, id: &str) -> BTreeSet<String> {
    let of_id = migrated(report)
        .into_iter()
        .filter(|one| one["runner_id"] == id);
    let notes = of_id.flat_map(|one| one["fields"].as_array().unwrap());
    let targets = notes.filter_map(|note| note["target"].as_str());
    let names = targets.filter_map(|target| target.strip_prefix("config."));
    names.map(str::to_owned).collect()
}

async fn config_of(admin: &Client, name: &str) -> Value {
    let agents = admin.get("/v1/agents?limit=100").await.body;
    let items = agents["items"].as_array().unwrap().clone();
    let found = items.into_iter().find(|agent| agent["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {agents}"))["config"].clone()
}

/// The migrated settings that each runner receives.
fn expected(agent: &str) -> Vec<(&'static str, Value)> {
    match agent {
        "Local" => vec![
            (
                "model",
                json!({"primary": "gpt-large", "fallbacks": ["gpt-small"], "reasoning": {}}),
            ),
            (
                "prompt",
                json!([{"role": "system", "content": "You help.\nAlways in \"plain\" words — 请."}]),
            ),
            ("knowledge-bases", json!(["handbook"])),
            ("rerank-top-k", json!(3)),
            ("tool-execution-mode", json!("serial")),
            ("remove-think", json!(true)),
        ],
        "Dify" => vec![
            ("app-type", json!("agent")),
            ("api-key", json!("env:DIFY_API_KEY")),
            ("timeout", json!(30)),
            ("remove-think", json!(true)),
        ],
        "Coze" => vec![
            ("auto-save-history", json!(false)),
            ("api-key", json!("env:COZE_API_KEY")),
            ("user-id-source", json!("legacy-session")),
        ],
        "DashScope" => vec![
            ("references_quote", json!("Sources:")),
            ("api-key", json!("env:DASHSCOPE_API_KEY")),
        ],
        "n8n" => vec![
            ("webhook-url", json!("https://n8n.example/webhook/5")),
            ("header-value", json!("env:N8N_HEADER_VALUE")),
            ("jwt-secret", json!("env:N8N_JWT_SECRET")),
            ("timeout", json!(45)),
        ],
        "Langflow" => vec![(
            "tweaks",
            json!({"OpenAI-aB3": {"openai_api_key": "env:LANGFLOW_TWEAKS_OPENAI_AB3_OPENAI_API_KEY", "temperature": 0.25}}),
        )],
        "DeerFlow" => vec![
            ("api-key", json!("env:DEERFLOW_API_KEY")),
            ("max-concurrent-subagents", json!(5)),
            ("timeout", json!(400)),
        ],
        "Tbox" => vec![
            ("app-id", json!("app-8")),
            ("user-id-source", json!("legacy-bot")),
        ],
        "WeKnora" => vec![
            ("agent-id", json!("builtin-quick-answer")),
            ("knowledge-base-ids", json!(["kb-9"])),
            ("web-search-enabled", json!(true)),
        ],
        "Already moved" => vec![
            ("app-type", json!("chat")),
            ("api-key", json!("env:ALREADY_MOVED_API_KEY")),
        ],
        other => panic!("{other}"),
    }
}

/// Two rows of LangBot's pipeline table, as a database returns them.
fn rows() -> Value {
    let config = |model: &str| {
        json!({"ai": {"runner": {"runner": "local-agent"}, "local-agent": {"model": model}}})
            .to_string()
    };
    let limited = json!({"enable_all_plugins": false, "enable_all_mcp_servers": false,
        "enable_all_skills": false, "skills": ["s"]});
    json!([
        {"uuid": "u", "name": "A", "is_default": 1, "config": config("m"),
            "extensions_preferences": limited.to_string()},
        {"uuid": "v", "name": "B", "is_default": 0, "config": config("m"),
            "extensions_preferences": "{\"enable_all_plugins\": tr"},
        {"uuid": "w", "name": "C", "is_default": 0, "config": "{\"ai\": ", "extensions_preferences": null},
    ])
}

#[tokio::test]
async fn keeps_restrictions_of_database_rows() {
    let directory = TempDirectory::new();
    directory.write("rows.json", &format!("\u{feff}{}", rows()));
    let printed = migrate(
        &directory,
        &["rows.json", "--json", "--local-agent", "runnel"],
    )
    .await;
    // Only the unreadable row is skipped.
    assert_eq!(printed.status.code(), Some(1), "{printed:?}");
    assert!(printed.stderr.contains("byte order mark"), "{printed:?}");
    let report = printed.json();
    let outcomes = report["pipelines"].as_array().unwrap().iter();
    let outcomes: Vec<_> = outcomes
        .map(|one| one["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["migrated", "migrated", "blocked"]);
    let toml = report["toml"].as_str().unwrap();
    assert_lacks!(toml, "tools =", "\"*\"");
    assert_eq!(toml.matches("skills =").count(), 1, "{toml}");
    assert!(toml.contains("skills = [\"s\"]"), "{toml}");
    // Only the default pipeline matches every message.
    assert_eq!(toml.matches("filters = ").count(), 1, "{toml}");
    let runner = "runner_id = \"plugin:runnel/local-agent/default\"";
    assert_eq!(toml.matches(runner).count(), 2, "{toml}");
    let dropped = report["pipelines"][1]["fields"].as_array().unwrap().iter();
    let mut dropped = dropped.filter(|note| note["action"] == "dropped");
    assert!(
        dropped.any(|note| note["pointer"] == "/1/extensions_preferences"),
        "{report}"
    );
}

#[tokio::test]
async fn reports_unsupported_encodings() {
    let directory = TempDirectory::new();
    let wide: Vec<u8> = "[]".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (name, bytes, expected) in [
        ("a.json", [&[0xff, 0xfe][..], &wide].concat(), "is UTF-16"),
        ("b.json", wide, "is UTF-16"),
        ("c.json", vec![0xff, 0xfe, 0, 0, b'[', 0, 0, 0], "is UTF-32"),
        (
            "d.json",
            b"SQLite format 3\0".to_vec(),
            "cannot be read as an SQLite database",
        ),
        ("e.json", vec![b'"', 0xe9, b'"'], "is not in UTF-8"),
    ] {
        std::fs::write(directory.file(name), bytes).unwrap();
        let printed = migrate(&directory, &[name]).await.exited(1);
        assert!(printed.stderr.contains(expected), "{expected}: {printed:?}");
    }
}

#[tokio::test]
async fn escapes_control_characters_of_exported_names() {
    let directory = TempDirectory::new();
    let mut ai = json!({"runner": {"runner": "tbox-app-api"}, "tbox-app-api": {"api-key": "k", "app-id": "a"}});
    ai["tbox-app-api"]["x\u{1b}]0;title\u{7}\u{9b}2J\u{8}y"] = json!(1);
    directory.write("p.json", &json!({"ai": ai}).to_string());
    let mut command = Command::new(programs::runnel());
    command
        .args(["migrate-config", "p.json"])
        .current_dir(directory.file(""));
    let mut terminal = PseudoTerminal::start(&mut command, 200);
    terminal.say("", "[agents.config]", 1).await;
    let screen = terminal.screen();
    assert!(screen.contains("x]0;title2Jy"), "{screen:?}");
    assert_lacks!(screen, ['\u{1b}', '\u{7}', '\u{9b}', '\u{8}']);
}

/// Variables of the gateway, each with a valid value.
fn gateway_variables(report: &Value) -> Vec<(String, String)> {
    let named = report["variables"].as_array().unwrap().iter();
    let of_gateway = named.filter(|one| one["read_by"].as_str().unwrap().contains("the gateway"));
    of_gateway
        .map(|one| {
            let name = one["name"].as_str().unwrap().to_owned();
            let value = match name.as_str() {
                "RUNNEL_MASTER_KEY" => MASTER_KEY,
                name if name.ends_with("_RUNNER_SECRET") => SECRET,
                _ => "a-key",
            };
            (name, value.to_owned())
        })
        .collect()
}

#[rstest]
#[tokio::test]
async fn migrates_databases_to_valid_configurations(#[values(Sqlite, Postgres)] engine: Engine) {
    let directory = TempDirectory::new();
    let database = or_skip!(LangbotDatabase::create(engine, &directory).await);
    let before = std::fs::read(directory.file("langbot.db")).ok();
    let source = database.source.as_str();
    let arguments = [
        source,
        "--connectors",
        "http://127.0.0.1:9120",
        "--local-agent",
        "runnel",
        "--write",
        "runnel.toml",
        "--json",
    ];
    let printed = migrate(&directory, &arguments).await.exited(0);
    assert_eq!(std::fs::read(directory.file("langbot.db")).ok(), before);
    let report = printed.json();
    assert_eq!(migrated(&report).len(), 9, "{report}");

    let written = std::fs::read_to_string(directory.file("runnel.toml")).unwrap();
    assert_lacks!(written, "hidden", ".invalid");
    for table in [
        "[egress]\nallow = [\"127.0.0.1:11434\", \"127.0.0.1:9101\", \"127.0.0.1:9120\"]\n",
        "[[models]]\nmodel_id = \"gpt-large\"\nprovider = \"OpenAI\"\nupstream_model = \"gpt-large-upstream\"\n",
        "[[mcp_servers]]\nname = \"Web-search\"\nurl = \"https://mcp.example/mcp\"\n",
        "[[knowledge_bases]]\nkb_id = \"handbook\"\nkb_name = \"Handbook\"\nembedding_model = \"e-1\"\n",
        "[[runner_endpoints]]\nname = \"connectors\"\nbase_url = \"http://127.0.0.1:9120\"\n",
        "api-key = \"env:CONNECTOR_DIFY_API_KEY\"\n",
    ] {
        assert!(written.contains(table), "{table}: {written}");
    }
    // Only secrets are set; nothing else is edited.
    let checked = runnel(&directory, &["check-config"], &gateway_variables(&report)).await;
    assert_eq!(
        checked.stdout, "the configuration is valid\n",
        "{checked:?}"
    );
    assert_eq!(checked.stderr, "", "{checked:?}");

    let named = report["variables"].as_array().unwrap().iter();
    let hosts = named.filter(|one| one["name"] == "CONNECTOR_DIFY_API_KEY_HOSTS");
    let hosts: Vec<_> = hosts.map(|one| &one["value"]).collect();
    assert_eq!(hosts, [&json!("dify.example")]);

    let again = migrate(&directory, &arguments).await;
    let again = again.json();
    assert_eq!(again["write"]["outcome"], "unchanged", "{again}");
}

#[tokio::test]
async fn merges_several_api_responses() {
    let directory = TempDirectory::new();
    let provider = json!({"uuid": "p", "name": "P", "requester": "anthropic-messages",
        "base_url": "https://api.anthropic.example", "api_keys": ["hidden"]});
    let answer = |data: Value| json!({"code": 0, "msg": "ok", "data": data}).to_string();
    directory.write("providers.json", &answer(json!({"providers": [provider]})));
    directory.write(
        "models.json",
        &answer(json!({"models": [{"uuid": "m", "name": "claude", "provider_uuid": "p", "abilities": []}]})),
    );
    let id = "plugin:acme/bot/main";
    let config = json!({"ai": {"runner": {"id": id}, "runner_config": {id: {"token": "hidden"}}}});
    directory.write(
        "pipelines.json",
        &answer(json!({"pipelines": [{"uuid": "u", "name": "Bot", "config": config}]})),
    );
    let arguments = [
        "pipelines.json",
        "providers.json",
        "models.json",
        "--bridge",
        "https://bridge.example",
    ];
    let printed = migrate(&directory, &arguments).await.exited(0);
    for table in [
        "[[model_providers]]\nname = \"P\"\nkind = \"anthropic\"\n",
        "[[models]]\nmodel_id = \"m\"\nprovider = \"P\"\n",
        "[[runner_endpoints]]\nname = \"langbot-bridge\"\nbase_url = \"https://bridge.example\"\n",
        "token = \"env:BRIDGE_BOT_TOKEN\"\n",
    ] {
        assert!(
            printed.stdout.contains(table),
            "{table}: {}",
            printed.stdout
        );
    }
}

#[tokio::test]
async fn reports_missing_egress_rules() {
    let directory = directory();
    directory.write("runnel.toml", "[egress]\nallow = [\"127.0.0.1:1\"]\n");
    let connectors = "http://127.0.0.1:9120";
    let arguments = [
        "export.json",
        "--connectors",
        connectors,
        "--write",
        "runnel.toml",
    ];
    let printed = migrate(&directory, &arguments).await.exited(0);
    let warning = "kept egress [\"127.0.0.1:9120\"]";
    assert!(printed.stdout.contains(warning), "{printed:?}");
    let start = "runnel-connectors serve --ids langbot";
    assert!(printed.stderr.contains(start), "{printed:?}");
}
