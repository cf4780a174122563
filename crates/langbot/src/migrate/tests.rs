use protocol::admin::AgentSpec;
use serde_json::{Value, json};

use super::*;
use domain::agent::check_agent;

const SECRET: &str = "sk-very-hidden";

/// A full section of every built-in runner, as LangBot 4.10 saved it.
fn section(legacy: &str) -> Value {
    match legacy {
        "local-agent" => json!({
            "model": "m-1", "max-round": 10, "prompt": "Be brief.", "knowledge-base": "kb-1",
            "rerank-model": "__none__", "tools": ["search"], "enable-all-tools": false,
            "box-session-id-template": "{launcher_id}",
        }),
        "dify-service-api" => json!({
            "base-url": "https://dify.test/v1", "api-key": SECRET, "app-type": "chat",
            "base-prompt": "Read it.", "timeout": 300,
        }),
        "coze-api" => json!({
            "api-key": SECRET, "bot-id": 7, "api-base": "https://api.coze.com", "timeout": "90",
            "auto_save_history": "false",
        }),
        "dashscope-app-api" => json!({
            "app-type": "workflow", "api-key": SECRET, "app-id": "a-1", "references-quote": "From:",
        }),
        "n8n-service-api" => json!({
            "webhook-url": "https://n8n.test/hook", "auth-type": "basic", "basic-username": "bot",
            "basic-password": SECRET, "jwt-secret": "", "timeout": 60, "output-key": "answer",
        }),
        "langflow-api" => json!({
            "base-url": "http://127.0.0.1:7860", "api-key": SECRET, "flow-id": "f-1", "input_type": "text",
            "tweaks": "{\"Model-1\": {\"openai_api_key\": \"sk-very-hidden\", \"temperature\": 0.5}}",
        }),
        "deerflow-api" => json!({
            "api-base": "http://127.0.0.1:2026", "api-key": "", "auth-header": SECRET, "plan-mode": true,
        }),
        "tbox-app-api" => json!({"api-key": SECRET, "app-id": "a-1", "colour": "red"}),
        "weknora-api" => json!({
            "base-url": "http://127.0.0.1:8080/api/v1", "api-key": SECRET, "app-type": "agent",
            "agent-id": null, "knowledge-base-ids": ["kb-1"],
        }),
        other => panic!("{other}"),
    }
}

fn pipeline(legacy: &str, section: Value) -> Value {
    let mut ai = json!({"runner": {"runner": legacy, "expire-time": 0}});
    ai[legacy] = section;
    json!({"uuid": "u-1", "name": "Bot", "config": {"ai": ai, "trigger": {}, "output": {"misc": {"remove-think": true}}}})
}

fn of(document: &Value, ids: RunnerIds) -> Migration {
    let file = MigrationDocument {
        file: "p.json",
        value: document,
    };
    migrate(&[file], ids.into()).unwrap()
}

/// Returns the only agent of a document.
fn agent(document: &Value, ids: RunnerIds) -> Value {
    let migration = of(document, ids);
    let is_agent = |table: &&MigrationTable| table.kind == TableKind::Agent;
    let found = migration.tables.iter().find(is_agent);
    let members = &found
        .unwrap_or_else(|| panic!("{:?}", migration.pipelines))
        .members;
    json!(members)
}

fn actions(migration: &Migration, pointer: &str) -> Vec<FieldAction> {
    let fields = migration.pipelines.iter().flat_map(|one| &one.fields);
    let there = fields.filter(|note| note.pointer.as_deref() == Some(pointer));
    there.map(|note| note.action).collect()
}

fn check_row(legacy: &str, newer: &str, older: &str, config: &Value) {
    let document = pipeline(legacy, section(legacy));
    let found = agent(&document, RunnerIds::Newer);
    assert_eq!(found["runner_id"], newer, "{legacy}");
    assert_eq!(&found["config"], config, "{legacy}");
    assert_eq!(
        agent(&document, RunnerIds::Older)["runner_id"],
        older,
        "{legacy}"
    );
    for ids in [RunnerIds::Newer, RunnerIds::Older] {
        let spec: AgentSpec = serde_json::from_value(agent(&document, ids)).unwrap();
        assert_eq!(check_agent(&spec), [], "{legacy}");
    }
    let migration = of(&document, RunnerIds::Newer);
    let output = format!(
        "{migration:?} {}",
        serde_json::to_string(&migration).unwrap()
    );
    assert!(!output.contains(SECRET), "{legacy}: {output}");
    // Every field of the section has exactly one note.
    for field in section(legacy).as_object().unwrap().keys() {
        let pointer = format!("/config/ai/{legacy}/{field}");
        assert_eq!(
            actions(&migration, &pointer).len(),
            1,
            "{pointer}: {:?}",
            migration.pipelines
        );
    }
}

#[test]
fn local_agent_becomes_its_plugin() {
    check_row(
        "local-agent",
        "plugin:langbot-team/LocalAgent/default",
        "plugin:langbot/local-agent/default",
        &json!({
            "model": {"primary": "m-1", "fallbacks": [], "reasoning": {}},
            "prompt": [{"role": "system", "content": "Be brief."}],
            "knowledge-bases": ["kb-1"], "rerank-model": "__none__", "rerank-top-k": 5, "retrieval-top-k": 5,
            "tool-execution-mode": "serial", "max-tool-iterations": 100, "max-tool-result-chars": 20000,
            "context-history-fetch-limit": 50, "context-window-tokens": 200_000,
            "context-reserve-tokens": 16384, "context-keep-recent-tokens": 20000,
            "context-summary-tokens": 8000, "timeout": 300, "date-grounding": true, "remove-think": true,
        }),
    );
    let found = agent(
        &pipeline("local-agent", section("local-agent")),
        RunnerIds::Newer,
    );
    assert_eq!(
        found["resource_policy"],
        json!({"models": ["m-1"], "tools": ["search"], "knowledge_bases": ["kb-1"], "skills": "*", "history": ["page"],
            "artifacts": ["metadata", "read"]})
    );
    assert_eq!(found["concurrency"], "steer");
}

#[test]
fn dify_becomes_its_plugin() {
    check_row(
        "dify-service-api",
        "plugin:langbot-team/DifyAgent/default",
        "plugin:langbot/dify-agent/default",
        &json!({
            "base-url": "https://dify.test/v1", "api-key": "env:BOT_API_KEY", "app-type": "chat",
            "base-prompt": "Read it.", "timeout": 30, "user-id-source": "legacy-session",
            "langbot-assets-enabled": false, "remove-think": true,
        }),
    );
}

#[test]
fn coze_becomes_its_plugin() {
    check_row(
        "coze-api",
        "plugin:langbot-team/CozeAgent/default",
        "plugin:langbot/coze-agent/default",
        &json!({
            "api-key": "env:BOT_API_KEY", "bot-id": "7", "api-base": "https://api.coze.com", "timeout": 90,
            "auto-save-history": false, "user-id-source": "legacy-session",
            "langbot-assets-enabled": false, "remove-think": true,
        }),
    );
}

#[test]
fn dashscope_becomes_its_plugin() {
    check_row(
        "dashscope-app-api",
        "plugin:langbot-team/DashScopeAgent/default",
        "plugin:langbot/dashscope-agent/default",
        &json!({
            "app-type": "workflow", "api-key": "env:BOT_API_KEY", "app-id": "a-1", "references_quote": "From:",
            "timeout": 120, "langbot-assets-enabled": false, "remove-think": true,
        }),
    );
}

#[test]
fn n8n_becomes_its_plugin() {
    check_row(
        "n8n-service-api",
        "plugin:langbot-team/N8nAgent/default",
        "plugin:langbot/n8n-agent/default",
        &json!({
            "webhook-url": "https://n8n.test/hook", "auth-type": "basic", "basic-username": "bot",
            "basic-password": "env:BOT_BASIC_PASSWORD", "jwt-algorithm": "HS256", "timeout": 60,
            "output-key": "answer", "response-handling": "reply", "basic-encoding": "latin1",
            "user-id-source": "legacy-session", "langbot-assets-enabled": false,
        }),
    );
}

#[test]
fn langflow_becomes_its_plugin() {
    check_row(
        "langflow-api",
        "plugin:langbot-team/LangflowAgent/default",
        "plugin:langbot/langflow-agent/default",
        &json!({
            "base-url": "http://127.0.0.1:7860", "api-key": "env:BOT_API_KEY", "flow-id": "f-1",
            "input-type": "text", "output-type": "chat", "langbot-assets-enabled": false,
            "tweaks": {"Model-1": {"openai_api_key": "env:BOT_TWEAKS_MODEL_1_OPENAI_API_KEY", "temperature": 0.5}},
        }),
    );
}

#[test]
fn deerflow_becomes_its_plugin() {
    check_row(
        "deerflow-api",
        "plugin:langbot-team/DeerFlowAgent/default",
        "plugin:langbot/deerflow-agent/default",
        &json!({
            "api-base": "http://127.0.0.1:2026", "auth-header": "env:BOT_AUTH_HEADER",
            "assistant-id": "lead_agent", "model-name": "", "thinking-enabled": false, "plan-mode": true,
            "subagent-enabled": false, "max-concurrent-subagents": 3, "timeout": 300, "recursion-limit": 1000,
        }),
    );
}

#[test]
fn tbox_becomes_its_plugin() {
    check_row(
        "tbox-app-api",
        "plugin:langbot-team/TboxAgent/default",
        "plugin:langbot/tbox-agent/default",
        &json!({
            "api-key": "env:BOT_API_KEY", "app-id": "a-1", "timeout": 120,
            "user-id-source": "legacy-bot", "remove-think": true,
        }),
    );
}

#[test]
fn weknora_becomes_its_plugin() {
    check_row(
        "weknora-api",
        "plugin:langbot-team/WeKnoraAgent/default",
        "plugin:langbot/weknora-agent/default",
        &json!({
            "base-url": "http://127.0.0.1:8080/api/v1", "api-key": "env:BOT_API_KEY", "app-type": "agent",
            "agent-id": "builtin-smart-reasoning", "knowledge-base-ids": ["kb-1"],
            "web-search-enabled": false, "timeout": 120, "base-prompt": "请回答用户的问题。",
        }),
    );
}

#[test]
fn fills_minimal_sections_with_defaults() {
    for (legacy, smallest, field, expected) in [
        (
            "local-agent",
            json!({}),
            "model",
            json!({"primary": "", "fallbacks": [], "reasoning": {}}),
        ),
        (
            "dify-service-api",
            json!({"base-url": "http://x", "api-key": "k"}),
            "app-type",
            json!("chat"),
        ),
        (
            "coze-api",
            json!({"api-key": "k", "bot-id": "b"}),
            "api-base",
            json!("https://api.coze.cn"),
        ),
        (
            "dashscope-app-api",
            json!({"api-key": "k", "app-id": "a"}),
            "references_quote",
            json!("参考资料来自:"),
        ),
        (
            "n8n-service-api",
            json!({"webhook-url": "http://x"}),
            "auth-type",
            json!("none"),
        ),
        (
            "langflow-api",
            json!({"base-url": "http://x", "api-key": "k", "flow-id": "f"}),
            "tweaks",
            json!({}),
        ),
        (
            "deerflow-api",
            json!({"api-base": "http://x"}),
            "timeout",
            json!(300),
        ),
        (
            "tbox-app-api",
            json!({"api-key": "k", "app-id": "a"}),
            "timeout",
            json!(120),
        ),
        (
            "weknora-api",
            json!({"base-url": "http://x", "api-key": "k"}),
            "agent-id",
            json!("builtin-quick-answer"),
        ),
    ] {
        let found = agent(&pipeline(legacy, smallest), RunnerIds::Newer);
        assert_eq!(found["config"][field], expected, "{legacy}");
    }
}

#[test]
fn missing_required_value_blocks_only_its_pipeline() {
    let check = |document: Value, pointer: &str| {
        let migration = of(&document, RunnerIds::Newer);
        let report = &migration.pipelines[0];
        assert_eq!(report.outcome, MigrationOutcome::Blocked, "{document}");
        assert!(migration.tables.is_empty(), "{document}");
        let message = report.message.clone().unwrap_or_default();
        let missing = actions(&migration, pointer).contains(&FieldAction::Missing);
        assert!(
            missing || message.starts_with(pointer),
            "{pointer}: {report:?}"
        );
    };
    let without = |legacy: &str, field: &str| {
        let mut section = section(legacy);
        section.as_object_mut().unwrap().remove(field);
        (
            pipeline(legacy, section),
            format!("/config/ai/{legacy}/{field}"),
        )
    };
    for (legacy, field) in [
        ("dify-service-api", "base-url"),
        ("dify-service-api", "api-key"),
        ("coze-api", "bot-id"),
        ("dashscope-app-api", "app-id"),
        ("n8n-service-api", "webhook-url"),
        ("n8n-service-api", "basic-password"),
        ("langflow-api", "flow-id"),
        ("deerflow-api", "api-base"),
        ("tbox-app-api", "api-key"),
        ("weknora-api", "base-url"),
    ] {
        let (document, pointer) = without(legacy, field);
        check(document, &pointer);
    }
    check(
        json!({"ai": {"runner": {"runner": "my-own"}}}),
        "/ai/runner",
    );
    check(
        json!({"ai": {"runner": {"runner": "coze-api"}}}),
        "/ai/coze-api",
    );
    check(json!({"ai": 7}), "/ai");
    check(
        pipeline("deerflow-api", json!({"api-base": "x.test"})),
        "/config/ai/deerflow-api/api-base",
    );
    let nothing = of(&json!({"ai": {"runner": {"id": ""}}}), RunnerIds::Newer);
    assert_eq!(nothing.pipelines[0].outcome, MigrationOutcome::Nothing);
}

#[test]
fn keeps_current_settings_and_converts_runner_id() {
    let current = |id: &str| {
        json!({"ai": {"runner": {"id": id, "runner": "coze-api", "expire-time": 60}, "runner_config": {
            id: {"base-url": "https://dify.test/v1", "api-key": SECRET, "timeout": 45, "none": null},
            "plugin:other/one/default": {"api-key": SECRET},
        }}})
    };
    for (id, ids, expected) in [
        (
            "plugin:langbot/dify-agent/default",
            RunnerIds::Newer,
            "plugin:langbot-team/DifyAgent/default",
        ),
        (
            "plugin:langbot-team/DifyAgent/default",
            RunnerIds::Newer,
            "plugin:langbot-team/DifyAgent/default",
        ),
        (
            "plugin:langbot-team/DifyAgent/default",
            RunnerIds::Older,
            "plugin:langbot/dify-agent/default",
        ),
        (
            "plugin:acme/bot/main",
            RunnerIds::Older,
            "plugin:acme/bot/main",
        ),
    ] {
        let document = current(id);
        let found = agent(&document, ids);
        assert_eq!(found["runner_id"], expected);
        assert_eq!(
            found["config"],
            json!({"base-url": "https://dify.test/v1", "api-key": "env:PIPELINE_1_API_KEY", "timeout": 45})
        );
        let migration = of(&document, ids);
        assert_eq!(
            actions(&migration, "/ai/runner/expire-time"),
            [FieldAction::Renamed]
        );
        assert_eq!(found["conversation_idle_seconds"], 60);
        assert!(!format!("{migration:?}").contains(SECRET));
    }
    let found = agent(&current("plugin:acme/bot/main"), RunnerIds::Newer);
    assert_eq!(
        found["resource_policy"],
        json!({"tools": "*", "skills": "*", "history": ["page", "search"], "events": ["get", "page"], "storage": ["plugin"],
            "artifacts": ["metadata", "read"]})
    );
}

#[test]
fn converts_expiry_of_conversations() {
    let id = "plugin:acme/bot/main";
    for (expiry, expected, noted) in [
        (json!(0), Value::Null, None),
        (Value::Null, Value::Null, None),
        (json!("1800"), json!(1800), Some(FieldAction::Renamed)),
        (json!(0.5), json!(1), Some(FieldAction::Renamed)),
        (json!(1e12), json!(31_536_000), Some(FieldAction::Renamed)),
        (json!("soon"), Value::Null, Some(FieldAction::Dropped)),
    ] {
        let document = json!({"ai": {"runner": {"id": id, "expire-time": expiry}}});
        let found = agent(&document, RunnerIds::Newer);
        assert_eq!(found["conversation_idle_seconds"], expected, "{document}");
        let migration = of(&document, RunnerIds::Newer);
        let noted: Vec<_> = noted.into_iter().collect();
        assert_eq!(actions(&migration, "/ai/runner/expire-time"), noted);
    }
}

#[test]
fn converts_single_knowledge_base_to_list() {
    let id = "plugin:langbot/local-agent/default";
    let document = json!({"ai": {"runner": {"id": id}, "runner_config": {id: {
        "model": {"primary": "m", "fallbacks": ["n"]}, "knowledge-base": "kb",
    }}}});
    let found = agent(&document, RunnerIds::Newer);
    assert_eq!(found["config"]["knowledge-bases"], json!(["kb"]));
    assert_eq!(found["resource_policy"]["knowledge_bases"], json!(["kb"]));
    assert_eq!(found["resource_policy"]["models"], json!(["m", "n"]));
    assert_eq!(found["resource_policy"]["tools"], json!("*"));
}

#[test]
fn untranslatable_restrictions_grant_nothing() {
    let mut document = pipeline("local-agent", json!({"model": "m", "prompt": "p"}));
    assert_eq!(
        agent(&document, RunnerIds::Newer)["resource_policy"]["tools"],
        "*"
    );
    document["extensions_preferences"] = json!({"enable_all_plugins": false, "plugins": [], "enable_all_skills": false, "skills": ["sum"]});
    let policy = agent(&document, RunnerIds::Newer)["resource_policy"].clone();
    assert_eq!(
        policy,
        json!({"models": ["m"], "skills": ["sum"], "history": ["page"], "artifacts": ["metadata", "read"]})
    );
    let migration = of(&document, RunnerIds::Newer);
    let pointer = "/extensions_preferences/enable_all_plugins";
    assert_eq!(actions(&migration, pointer), [FieldAction::Dropped]);
    let unclear = pipeline(
        "local-agent",
        json!({"model": "m", "enable-all-tools": "perhaps"}),
    );
    let policy = agent(&unclear, RunnerIds::Newer)["resource_policy"].clone();
    assert_eq!(policy.get("tools"), None);
}

#[test]
fn default_pipeline_stays_unfiltered_among_several() {
    let one = |name: &str, uuid: Value, is_default: bool| {
        let mut pipeline = pipeline("tbox-app-api", section("tbox-app-api"));
        pipeline["name"] = json!(name);
        pipeline["uuid"] = uuid;
        pipeline["is_default"] = json!(is_default);
        pipeline
    };
    let document = json!({"pipelines": [
        one("Bot", json!("u-1"), false), one("Bot", json!("u-2"), true),
        one("机器人", json!("u-3"), false), one("lost", Value::Null, false),
    ]});
    let migration = of(&document, RunnerIds::Newer);
    let names: Vec<_> = migration
        .tables
        .iter()
        .map(|table| table.name.as_str())
        .collect();
    assert_eq!(names, ["TboxAgent", "Bot", "Bot 2", "机器人"]);
    let filter = |at: usize| migration.tables[at].members.get("filters").cloned();
    assert_eq!(filter(1), Some(json!({"pipeline_id": ["u-1"]})));
    assert_eq!(filter(2), None);
    assert_eq!(filter(3), Some(json!({"pipeline_id": ["u-3"]})));
    assert_eq!(migration.pipelines[3].outcome, MigrationOutcome::Blocked);
    let variables: Vec<_> = migration
        .variables
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    assert_eq!(
        variables,
        [
            "TBOXAGENT_RUNNER_SECRET",
            "BOT_API_KEY",
            "BOT_2_API_KEY",
            "PIPELINE_3_API_KEY"
        ]
    );
    assert_eq!(
        migration.variables[1].from.as_deref(),
        Some("p.json#/pipelines/0/config/ai/tbox-app-api/api-key")
    );
}

#[test]
fn compares_tables_as_missing_same_or_different() {
    let migration = of(&pipeline("coze-api", section("coze-api")), RunnerIds::Newer);
    let [endpoint, agent] = migration.tables.as_slice() else {
        panic!("{:?}", migration.tables)
    };
    let mut settings = json!({"agents": [agent.members], "server": {}});
    assert_eq!(compare_table(&settings, endpoint), TableComparison::Missing);
    assert_eq!(compare_table(&settings, agent), TableComparison::Same);
    settings["agents"][0]["enabled"] = json!(false);
    assert_eq!(compare_table(&settings, agent), TableComparison::Differs);
    assert_eq!(
        endpoint.text,
        "# Serves plugin:langbot-team/CozeAgent/default. Fill in its address: .invalid leads nowhere.\n\
         [[runner_endpoints]]\nname = \"CozeAgent\"\nbase_url = \"https://cozeagent.invalid\"\n\
         secret = \"env:COZEAGENT_RUNNER_SECRET\"\n"
    );
}

/// Returns the agent's policy for a local agent pipeline with these preferences.
fn policy(section: Value, preferences: Value) -> Value {
    let mut document = pipeline("local-agent", section);
    document["extensions_preferences"] = preferences;
    agent(&document, RunnerIds::Newer)["resource_policy"].clone()
}

#[test]
fn unreadable_restrictions_grant_nothing() {
    let limited = json!({"models": ["m"], "history": ["page"], "artifacts": ["metadata", "read"]});
    let section = json!({"model": "m", "tools": ["search"]});
    for preferences in [json!("{"), json!(""), json!([]), json!(0), json!("[1]")] {
        let mut document = pipeline("local-agent", section.clone());
        document["extensions_preferences"] = preferences.clone();
        let found = agent(&document, RunnerIds::Newer);
        assert_eq!(found["resource_policy"], limited, "{preferences}");
        let migration = of(&document, RunnerIds::Newer);
        let noted = actions(&migration, "/extensions_preferences");
        assert_eq!(noted, [FieldAction::Dropped], "{preferences}");
    }
    for unreadable in [json!("{"), json!([]), json!(true)] {
        let id = "plugin:langbot/local-agent/default";
        for ai in [
            json!({"runner": {"id": id}, "runner_config": {id: unreadable}}),
            json!({"runner": {"id": id}, "runner_config": unreadable}),
            json!({"runner": {"runner": "local-agent"}, "local-agent": unreadable}),
        ] {
            let migration = of(&json!({"ai": ai}), RunnerIds::Newer);
            assert_eq!(
                migration.pipelines[0].outcome,
                MigrationOutcome::Blocked,
                "{ai}"
            );
        }
    }
}

#[test]
fn only_true_enables_all_tools_and_skills() {
    let section = json!({"model": "m"});
    let all = json!({"models": ["m"], "tools": "*", "skills": "*", "history": ["page"],
        "artifacts": ["metadata", "read"]});
    for open in [
        json!(null),
        json!({}),
        json!({"enable_all_plugins": true, "enable_all_skills": true}),
        json!(r#"{"enable_all_skills": true, "skills": ["s"]}"#),
    ] {
        assert_eq!(policy(section.clone(), open.clone()), all, "{open}");
    }
    let limited = json!({"models": ["m"], "skills": ["s"], "history": ["page"], "artifacts": ["metadata", "read"]});
    for flag in [
        json!(false),
        json!(1),
        json!("true"),
        json!(null),
        json!({}),
    ] {
        let preferences = json!({
            "enable_all_plugins": flag, "enable_all_skills": flag, "skills": ["s"],
        });
        assert_eq!(policy(section.clone(), preferences), limited, "{flag}");
    }
    // A list without its flag.
    let preferences = json!({"skills": r#"["s"]"#, "mcp_servers": ["a"]});
    assert_eq!(policy(section.clone(), preferences), limited);
    for flag in [json!(1), json!("true"), json!(null)] {
        let section = json!({"model": "m", "enable-all-tools": flag, "tools": ["search"]});
        assert_eq!(
            policy(section, json!({}))["tools"],
            json!(["search"]),
            "{flag}"
        );
    }
    let bound_to_none =
        json!({"enable_all_plugins": false, "enable_all_mcp_servers": false, "plugins": []});
    let section = json!({"model": "m", "enable-all-tools": false, "tools": ["search"]});
    assert_eq!(policy(section, bound_to_none).get("tools"), None);
}

#[test]
fn writes_only_settings_supported_by_older_plugins() {
    let older = |legacy: &str, field: &str, value: Value| {
        let mut section = section(legacy);
        section[field] = value;
        agent(&pipeline(legacy, section), RunnerIds::Older)["config"].clone()
    };
    let n8n = older("n8n-service-api", "response-handling", json!("ignore"));
    assert_eq!(n8n.get("response-handling"), None, "{n8n}");
    assert_eq!(n8n.get("basic-encoding"), None, "{n8n}");
    for legacy in [
        "dify-service-api",
        "coze-api",
        "dashscope-app-api",
        "tbox-app-api",
    ] {
        let config = older(legacy, "timeout", json!(30));
        assert_eq!(config.get("remove-think"), None, "{legacy}: {config}");
    }
    let local = older("local-agent", "model", json!("m"));
    assert_eq!(local["remove-think"], true);
    let chatflow = older("dify-service-api", "app-type", json!("chatflow"));
    assert_eq!(chatflow["app-type"], "chat");

    // The current format of a newer plugin, for its earlier version.
    let id = "plugin:langbot-team/N8nAgent/default";
    let document = json!({"ai": {"runner": {"id": id}, "runner_config": {id: {
        "webhook-url": "http://n8n.test", "response-handling": "ignore",
    }}}});
    let found = agent(&document, RunnerIds::Older);
    assert_eq!(found["config"], json!({"webhook-url": "http://n8n.test"}));
    let pointer = "/ai/runner_config/plugin:langbot-team~1N8nAgent~1default/response-handling";
    let migration = of(&document, RunnerIds::Older);
    assert_eq!(actions(&migration, pointer), [FieldAction::Dropped]);
}

#[test]
fn maps_removal_of_reasoning() {
    let of_dify = |word: &str, ids: RunnerIds| {
        let mut section = section("dify-service-api");
        section["thinking-convert"] = json!(word);
        let mut document = pipeline("dify-service-api", section);
        document["config"]["output"] = json!({});
        let config = agent(&document, ids)["config"].clone();
        let pointer = "/config/ai/dify-service-api/thinking-convert";
        (
            config.get("remove-think").cloned(),
            actions(&of(&document, ids), pointer),
        )
    };
    let removed = (Some(json!(true)), vec![FieldAction::Renamed]);
    assert_eq!(of_dify("remove", RunnerIds::Newer), removed);
    for (word, ids) in [
        ("remove", RunnerIds::Older),
        ("plain", RunnerIds::Newer),
        ("strip", RunnerIds::Newer),
    ] {
        assert_eq!(
            of_dify(word, ids),
            (None, vec![FieldAction::Dropped]),
            "{word}"
        );
    }
    let document = pipeline("n8n-service-api", section("n8n-service-api"));
    let migration = of(&document, RunnerIds::Newer);
    let pointer = "/config/output/misc/remove-think";
    assert_eq!(actions(&migration, pointer), [FieldAction::Dropped]);
}

#[test]
fn warns_of_missing_models_and_placeholders() {
    let warned = |document: &Value, pointer: &str| {
        let migration = of(document, RunnerIds::Newer);
        assert_eq!(migration.pipelines[0].outcome, MigrationOutcome::Migrated);
        actions(&migration, pointer).contains(&FieldAction::Warning)
    };
    let local = |model: Value| pipeline("local-agent", json!({"model": model}));
    let pointer = "/config/ai/local-agent/model";
    for model in [
        json!(""),
        json!(null),
        json!({"primary": "", "fallbacks": []}),
        json!("{}"),
    ] {
        assert!(warned(&local(model.clone()), pointer), "{model}");
    }
    assert!(!warned(&local(json!("m")), pointer));
    let id = "plugin:langbot/local-agent/default";
    let current = json!({"ai": {"runner": {"id": id}, "runner_config": {id: {"prompt": []}}}});
    assert!(warned(
        &current,
        "/ai/runner_config/plugin:langbot~1local-agent~1default/model"
    ));
    let n8n = pipeline(
        "n8n-service-api",
        json!({"webhook-url": "http://your-n8n-webhook-url"}),
    );
    assert!(warned(&n8n, "/config/ai/n8n-service-api/webhook-url"));
    let dify = json!({"base-url": "https://api.dify.ai/v1", "api-key": "your-api-key"});
    let dify = pipeline("dify-service-api", dify);
    assert!(warned(&dify, "/config/ai/dify-service-api/api-key"));
}

#[test]
fn binds_local_agents_to_runnel() {
    let document = pipeline("local-agent", json!({"model": "m"}));
    let file = MigrationDocument {
        file: "p.json",
        value: &document,
    };
    let to = MigrationTarget {
        ids: RunnerIds::Older,
        local_agent: LocalAgentTarget::Runnel,
        ..MigrationTarget::default()
    };
    let migration = migrate(&[file], to).unwrap();
    let [endpoint, agent] = migration.tables.as_slice() else {
        panic!("{:?}", migration.tables)
    };
    assert_eq!(endpoint.name, "local-agent");
    assert_eq!(endpoint.members.get("delta_mode"), None);
    assert_eq!(
        agent.members["runner_id"],
        "plugin:runnel/local-agent/default"
    );
    assert_eq!(agent.members["config"]["date-grounding"], true);
    let coze = pipeline("coze-api", section("coze-api"));
    let file = MigrationDocument {
        file: "p.json",
        value: &coze,
    };
    let migration = migrate(&[file], to).unwrap();
    assert_eq!(
        migration.tables[1].members["runner_id"],
        "plugin:langbot/coze-agent/default"
    );
}

/// Migrates these documents to existing servers.
fn served(document: &Value) -> Migration {
    let file = MigrationDocument {
        file: "p.json",
        value: document,
    };
    let to = MigrationTarget {
        local_agent: LocalAgentTarget::Runnel,
        connectors: Some("http://127.0.0.1:9120"),
        bridge: Some("http://127.0.0.1:9200"),
        ..MigrationTarget::default()
    };
    migrate(&[file], to).unwrap()
}

fn member_of(migration: &Migration, kind: TableKind, member: &str) -> Value {
    let found = migration.tables.iter().find(|table| table.kind == kind);
    let found = found.unwrap_or_else(|| panic!("{:?}", migration.pipelines));
    found.members.get(member).cloned().unwrap_or_default()
}

#[test]
fn lists_hosts_of_connector_variables() {
    for (legacy, url, name, expected) in [
        ("dify-service-api", "", "BOT_API_KEY", Some("dify.test")),
        (
            "dify-service-api",
            "http://dify.internal/v1",
            "BOT_API_KEY",
            Some("dify.internal:80"),
        ),
        (
            "dify-service-api",
            "https://dify.internal:5001/v1",
            "BOT_API_KEY",
            Some("dify.internal:5001"),
        ),
        (
            "n8n-service-api",
            "",
            "BOT_BASIC_PASSWORD",
            Some("n8n.test"),
        ),
        (
            "dashscope-app-api",
            "",
            "BOT_API_KEY",
            Some("dashscope.aliyuncs.com"),
        ),
        ("tbox-app-api", "", "BOT_API_KEY", Some("api.tbox.cn")),
        // The address itself is a secret.
        (
            "dify-service-api",
            "https://user:pass@dify.test/v1",
            "BOT_API_KEY",
            None,
        ),
    ] {
        let mut section = section(legacy);
        if !url.is_empty() {
            section["base-url"] = json!(url);
        }
        let migration = served(&pipeline(legacy, section));
        let name = format!("CONNECTOR_{name}_HOSTS");
        let found = migration.variables.iter().find(|one| one.name == name);
        let found = found.unwrap_or_else(|| panic!("{legacy}: {:?}", migration.variables));
        assert_eq!(found.value.as_deref(), expected, "{legacy} {url}");
        assert_eq!(found.from, None);
    }
    let migration = of(
        &pipeline("dify-service-api", section("dify-service-api")),
        RunnerIds::Newer,
    );
    let mut names = migration.variables.iter().map(|one| &one.name);
    assert!(names.all(|name| !name.ends_with("_HOSTS")), "no connectors");
}

#[test]
fn configured_servers_get_real_addresses() {
    for (legacy, name, url) in [
        ("local-agent", "local-agent", "http://127.0.0.1:9101"),
        ("dify-service-api", "connectors", "http://127.0.0.1:9120"),
        ("coze-api", "connectors", "http://127.0.0.1:9120"),
        ("dashscope-app-api", "connectors", "http://127.0.0.1:9120"),
        ("n8n-service-api", "connectors", "http://127.0.0.1:9120"),
        ("langflow-api", "connectors", "http://127.0.0.1:9120"),
        ("deerflow-api", "connectors", "http://127.0.0.1:9120"),
        ("tbox-app-api", "connectors", "http://127.0.0.1:9120"),
        ("weknora-api", "connectors", "http://127.0.0.1:9120"),
    ] {
        let migration = served(&pipeline(legacy, section(legacy)));
        let endpoint = |member: &str| member_of(&migration, TableKind::RunnerEndpoint, member);
        assert_eq!(endpoint("name"), name, "{legacy}");
        assert_eq!(endpoint("base_url"), url, "{legacy}");
        assert_eq!(endpoint("delta_mode"), json!(null), "{legacy}");
    }
    let id = "plugin:acme/bot/main";
    let other = json!({"ai": {"runner": {"id": id}, "runner_config": {id: {"api-key": SECRET}}}});
    let migration = served(&other);
    let endpoint = |member: &str| member_of(&migration, TableKind::RunnerEndpoint, member);
    assert_eq!(endpoint("base_url"), "http://127.0.0.1:9200");
    assert_eq!(endpoint("secret"), "env:LANGBOT_BRIDGE_RUNNER_SECRET");
    let config = member_of(&migration, TableKind::Agent, "config");
    assert_eq!(config["api-key"], "env:BRIDGE_PIPELINE_1_API_KEY");
}

#[test]
fn connectors_get_supported_settings() {
    let config_of = |legacy: &str| {
        let migration = served(&pipeline(legacy, section(legacy)));
        member_of(&migration, TableKind::Agent, "config")
    };
    assert_eq!(
        config_of("dify-service-api"),
        json!({"base-url": "https://dify.test/v1", "api-key": "env:CONNECTOR_BOT_API_KEY", "app-type": "chat",
            "base-prompt": "Read it."})
    );
    assert_eq!(
        config_of("n8n-service-api"),
        json!({"webhook-url": "https://n8n.test/hook", "auth-type": "basic", "basic-username": "bot",
            "basic-password": "env:CONNECTOR_BOT_BASIC_PASSWORD", "jwt-algorithm": "HS256", "output-key": "answer",
            "response-handling": "reply", "basic-encoding": "latin1"})
    );
    let deerflow = config_of("deerflow-api");
    assert_eq!(deerflow["idle-timeout"], 300);
    assert_eq!(deerflow["auth-header"], "env:CONNECTOR_BOT_AUTH_HEADER");
    let mut chatflow = section("dify-service-api");
    chatflow["app-type"] = json!("chatflow");
    let migration = served(&pipeline("dify-service-api", chatflow));
    let config = member_of(&migration, TableKind::Agent, "config");
    assert_eq!(config["app-type"], "chat");
}

#[test]
fn connectors_get_required_grants() {
    let policy_of = |config: Value| {
        let id = "plugin:langbot/dify-agent/default";
        let document = json!({"ai": {"runner": {"id": id}, "runner_config": {id: config}}});
        let migration = served(&document);
        (
            member_of(&migration, TableKind::Agent, "resource_policy"),
            member_of(&migration, TableKind::Agent, "config"),
        )
    };
    let files = json!(["metadata", "read", "create"]);
    assert_eq!(policy_of(json!({})).0, json!({"artifacts": files}));
    assert_eq!(
        policy_of(json!({"resend-history": 10})).0,
        json!({"artifacts": files, "history": ["page"]})
    );
    let assets = json!({"langbot-assets-enabled": true, "langbot-assets-input-name": "token",
        "langbot-assets-token-ttl": 3600});
    let (policy, config) = policy_of(assets);
    assert_eq!(config, json!({"host-tools": "token"}));
    assert_eq!(policy["tools"], "*");
    assert_eq!(policy["events"], json!(["get"]));
    assert_eq!(policy["artifacts"], files);
}

#[test]
fn egress_is_same_if_all_lines_allowed() {
    let table = MigrationTable::egress(&["a:1".to_owned(), "b:2".to_owned()]);
    assert!(
        table
            .text
            .ends_with("[egress]\nallow = [\"a:1\", \"b:2\"]\n"),
        "{}",
        table.text
    );
    for (settings, expected) in [
        (json!({}), TableComparison::Missing),
        (
            json!({"egress": {"allow": ["a:1"]}}),
            TableComparison::Differs,
        ),
        (
            json!({"egress": {"allow": ["b:2", "c:3", "a:1"]}}),
            TableComparison::Same,
        ),
    ] {
        assert_eq!(compare_table(&settings, &table), expected, "{settings}");
    }
}
