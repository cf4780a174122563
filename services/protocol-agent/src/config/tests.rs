use serde_json::{Value, json};

use super::*;

fn resources() -> AgentResources {
    serde_json::from_value(json!({
        "models": [
            {"model_id": "a", "operations": ["invoke", "stream"]},
            {"model_id": "b", "operations": ["invoke"]},
            {"model_id": "counts-only", "operations": ["count_tokens"]},
        ],
        "knowledge_bases": [{"kb_id": "docs", "operations": ["retrieve"]}, {"kb_id": "listed", "operations": ["list"]}],
    }))
    .unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "for json! in place")]
fn read(config: Value) -> Result<Config, InvalidConfig> {
    Config::read(config.as_object().unwrap(), &resources())
}

/// JSON pointers of all faults of an invalid configuration.
fn pointers(config: Value) -> Vec<String> {
    let faults = read(config).unwrap_err().0;
    faults.into_iter().map(|fault| fault.pointer).collect()
}

#[test]
fn reports_every_fault_with_its_pointer() {
    let config = json!({
        "carrier": "xml", "max-declarations": 25, "max-parallel": 0, "approve": ["send", "fly"],
        "protocol-enabled": "yes", "knowledge-bases": "docs", "interaction-seconds": 10,
        "effects": {"mail/er": {"effects": ["sends"]}}, "remotes": [{"name": "x", "type": "robot", "tool": "t"}],
        "prompt": [{"role": "system"}],
    });
    let mut found = pointers(config);
    found.sort();
    let expected = [
        "/approve/1",
        "/carrier",
        "/effects/mail~1er/effects/0",
        "/interaction-seconds",
        "/knowledge-bases",
        "/max-declarations",
        "/max-parallel",
        "/prompt/0",
        "/protocol-enabled",
        "/remotes/0/type",
    ];
    assert_eq!(found, expected);
}

#[test]
fn reads_rules_budgets_and_tables() {
    let config = read(json!({
        "model": {"primary": "a", "fallbacks": ["x", "b", "counts-only"]}, "protocol-enabled": true,
        "carrier": "fenced", "plain-text": "repair", "feature-repeat": false, "max-declarations": 3, "max-tokens": 500,
        "approve": [], "forbid": ["purchase"], "delegation": "off", "timeout": 0, "context-window-tokens": 8000,
        "effects": {"mail": {"effects": ["send"], "idempotency": "keyed", "visibility": "user"}},
        "remotes": "[{\"name\": \"ci\", \"type\": \"pipeline\", \"tool\": \"run_ci\", \"effects\": [\"write\"]}]",
        "summarizer-model": "b", "knowledge-bases": ["docs", "listed", "__none__", "docs"],
    }))
    .unwrap();
    let ids: Vec<_> = config
        .models
        .iter()
        .map(|model| model.id.as_str())
        .collect();
    assert_eq!(ids, ["a", "b"]);
    assert!(config.rules.enabled && !config.rules.features.repeat && config.rules.features.bind);
    assert_eq!(config.rules.carrier, CarrierMode::Fenced);
    assert_eq!(config.rules.limits.declarations, 3);
    assert_eq!(config.budgets.tokens, Some(500));
    assert_eq!(config.budgets.request(), 6_000);
    assert_eq!(config.timeout, None);
    assert_eq!(config.delegation, Delegation::Off);
    assert!(config.rules.approve.is_empty() && config.rules.forbid.contains(&Effect::Purchase));
    assert_eq!(config.effects["mail"].effects, Some([Effect::Send].into()));
    assert_eq!(config.remotes[0].kind, RemoteKind::Pipeline);
    assert_eq!(config.summarizer.as_deref(), Some("b"));
    assert_eq!(config.knowledge_bases, ["docs"]);
}

#[test]
fn remotes_need_distinct_names() {
    let remote = json!({"name": "ci", "type": "service", "tool": "t"});
    let found = pointers(
        json!({"remotes": [remote, remote, {"name": " ", "type": "service", "tool": "", "schema": 3}]}),
    );
    assert_eq!(
        found,
        [
            "/remotes/1/name",
            "/remotes/2/name",
            "/remotes/2/tool",
            "/remotes/2/schema"
        ]
    );
}

#[test]
fn plan_alone_leaves_effects_at_their_default() {
    let read = |approve: serde_json::Value| {
        let config = json!({"approve": approve});
        let config = Config::read(config.as_object().unwrap(), &AgentResources::default()).unwrap();
        (config.approves_plans, config.rules.approve)
    };
    let defaults = AgentRules::default().approve;
    assert_eq!(read(json!("plan")), (true, defaults.clone()));
    assert_eq!(read(json!(["plan"])), (true, defaults));
    let some = std::collections::BTreeSet::from([Effect::Write]);
    assert_eq!(read(json!(["plan", "write"])), (true, some));
    assert_eq!(read(json!([])), (false, std::collections::BTreeSet::new()));
}
