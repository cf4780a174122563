//! Migration map from built-in runners to plugins, field by field.

use super::FieldKind::{
    self, Bool, Choice, Integer, Names, Nowhere, Number, Object, Policy, Secret, Text, Url,
};
use super::FieldNeed::{self, Always, ByAppType, Critical, Default, Optional};
use super::{Add, Family, FamilyField};

const fn field(name: &'static [&'static str], kind: FieldKind, need: FieldNeed) -> FamilyField {
    FamilyField {
        from: name,
        to: name[0],
        kind,
        need,
    }
}

const fn add(to: &'static str, value: &'static str) -> Add {
    Add {
        to,
        value,
        why: "the runner's default",
    }
}

const NO_ASSETS: Add = Add {
    to: "langbot-assets-enabled",
    value: "false",
    why: "the built-in runner had no assets of the host",
};
const BY_SESSION: Add = Add {
    to: "user-id-source",
    value: r#""legacy-session""#,
    why: "keeps the users that the service knows",
};
/// Operations for reading message files.
const FILES: &[&str] = &["metadata", "read"];
/// Operations for reading message files and storing answer files.
const ANSWERED_FILES: &[&str] = &["metadata", "read", "create"];
const MCP: FieldKind = Nowhere("the gateway attaches no MCP resources");

pub(super) const FAMILIES: [Family; 9] = [
    Family {
        legacy: "local-agent",
        plugin: "LocalAgent",
        older: "local-agent",
        fields: &[
            field(
                &["model"],
                FieldKind::Model,
                Default(r#"{"primary":"","fallbacks":[],"reasoning":{}}"#),
            ),
            field(
                &["prompt"],
                FieldKind::Prompt,
                Default(r#"[{"role":"system","content":"You are a helpful assistant."}]"#),
            ),
            field(&["knowledge-bases", "knowledge-base"], Names, Default("[]")),
            field(&["rerank-model"], Text, Default(r#""""#)),
            field(&["rerank-top-k"], Integer, Default("5")),
            field(&["enable-all-tools"], Policy, Optional),
            field(&["tools"], Policy, Optional),
            field(
                &["max-round"],
                Nowhere("the runner fetches and condenses history itself"),
                Optional,
            ),
            field(
                &["box-session-id-template"],
                Nowhere("the gateway keeps no sandboxes"),
                Optional,
            ),
            field(&["mcp-resources"], MCP, Optional),
            field(&["mcp-resource-agent-read-enabled"], MCP, Optional),
        ],
        adds: &[
            Add {
                to: "tool-execution-mode",
                value: r#""serial""#,
                why: "the built-in runner called one tool after the other",
            },
            add("max-tool-iterations", "100"),
            add("max-tool-result-chars", "20000"),
            add("context-history-fetch-limit", "50"),
            add("context-window-tokens", "200000"),
            add("context-reserve-tokens", "16384"),
            add("context-keep-recent-tokens", "20000"),
            add("context-summary-tokens", "8000"),
            add("retrieval-top-k", "5"),
            add("timeout", "300"),
            add("date-grounding", "true"),
        ],
        needs: &[],
        removes_think: true,
        newer: &["date-grounding"],
        newer_values: &[],
        uses_host: true,
        snapshots: true,
        files: FILES,
    },
    Family {
        legacy: "dify-service-api",
        plugin: "DifyAgent",
        older: "dify-agent",
        fields: &[
            field(&["base-url"], Url, Critical),
            field(&["api-key"], Secret, Critical),
            field(
                &["app-type"],
                Choice(&["chat", "agent", "workflow", "chatflow"]),
                Default(r#""chat""#),
            ),
            field(
                &["base-prompt"],
                Text,
                Default(
                    r#""When the file content is readable, please read the content of this file. When the file is an image, describe the content of this image.""#,
                ),
            ),
            field(
                &["timeout"],
                Number,
                Always("30", "the built-in runner always waited 30 seconds"),
            ),
            FamilyField {
                from: &["thinking-convert"],
                to: "remove-think",
                kind: FieldKind::RemoveReasoning,
                need: Optional,
            },
        ],
        adds: &[BY_SESSION, NO_ASSETS],
        needs: &[],
        removes_think: true,
        newer: &["remove-think", "user-id-source"],
        newer_values: &[("app-type", "chatflow", "chat")],
        uses_host: false,
        snapshots: false,
        files: ANSWERED_FILES,
    },
    Family {
        legacy: "coze-api",
        plugin: "CozeAgent",
        older: "coze-agent",
        fields: &[
            field(&["api-key"], Secret, Critical),
            field(&["bot-id"], Text, Critical),
            field(&["api-base"], Url, Default(r#""https://api.coze.cn""#)),
            field(&["timeout"], Number, Default("120")),
            field(
                &["auto-save-history", "auto_save_history"],
                Bool,
                Default("true"),
            ),
        ],
        adds: &[BY_SESSION, NO_ASSETS],
        needs: &[],
        removes_think: true,
        newer: &["remove-think", "user-id-source"],
        newer_values: &[],
        uses_host: false,
        snapshots: false,
        files: FILES,
    },
    Family {
        legacy: "dashscope-app-api",
        plugin: "DashScopeAgent",
        older: "dashscope-agent",
        fields: &[
            field(
                &["app-type"],
                Choice(&["agent", "workflow"]),
                Default(r#""agent""#),
            ),
            field(&["api-key"], Secret, Critical),
            field(&["app-id"], Text, Critical),
            FamilyField {
                from: &["references-quote", "references_quote"],
                to: "references_quote",
                kind: Text,
                need: Default(r#""参考资料来自:""#),
            },
            field(&["timeout"], Number, Default("120")),
        ],
        adds: &[NO_ASSETS],
        needs: &[],
        removes_think: true,
        newer: &["remove-think"],
        newer_values: &[],
        uses_host: false,
        snapshots: true,
        files: &[],
    },
    Family {
        legacy: "n8n-service-api",
        plugin: "N8nAgent",
        older: "n8n-agent",
        fields: &[
            field(&["webhook-url"], Url, Critical),
            field(
                &["auth-type"],
                Choice(&["none", "basic", "jwt", "header"]),
                Default(r#""none""#),
            ),
            field(&["basic-username"], Text, Optional),
            field(&["basic-password"], Secret, Optional),
            field(&["jwt-secret"], Secret, Optional),
            field(&["jwt-algorithm"], Text, Default(r#""HS256""#)),
            field(&["header-name"], Text, Optional),
            field(&["header-value"], Secret, Optional),
            field(&["timeout"], Integer, Default("120")),
            field(&["output-key"], Text, Default(r#""response""#)),
            field(
                &["response-handling"],
                Choice(&["reply", "ignore"]),
                Default(r#""reply""#),
            ),
        ],
        adds: &[
            Add {
                to: "basic-encoding",
                value: r#""latin1""#,
                why: "how the built-in runner wrote user and password",
            },
            BY_SESSION,
            NO_ASSETS,
        ],
        needs: &[
            ("auth-type", "basic", &["basic-username", "basic-password"]),
            ("auth-type", "jwt", &["jwt-secret"]),
            ("auth-type", "header", &["header-name", "header-value"]),
        ],
        removes_think: false,
        newer: &["response-handling", "basic-encoding", "user-id-source"],
        newer_values: &[],
        uses_host: false,
        snapshots: true,
        files: &[],
    },
    Family {
        legacy: "langflow-api",
        plugin: "LangflowAgent",
        older: "langflow-agent",
        fields: &[
            field(&["base-url"], Url, Critical),
            field(&["api-key"], Secret, Critical),
            field(&["flow-id"], Text, Critical),
            field(&["input-type", "input_type"], Text, Default(r#""chat""#)),
            field(&["output-type", "output_type"], Text, Default(r#""chat""#)),
            field(&["tweaks"], Object, Default("{}")),
        ],
        adds: &[NO_ASSETS],
        needs: &[],
        removes_think: false,
        newer: &[],
        newer_values: &[],
        uses_host: false,
        snapshots: true,
        files: &[],
    },
    Family {
        legacy: "deerflow-api",
        plugin: "DeerFlowAgent",
        older: "deerflow-agent",
        fields: &[
            field(&["api-base"], Url, Critical),
            field(&["api-key"], Secret, Optional),
            field(&["auth-header"], Secret, Optional),
            field(&["assistant-id"], Text, Default(r#""lead_agent""#)),
            field(&["model-name"], Text, Default(r#""""#)),
            field(&["thinking-enabled"], Bool, Default("false")),
            field(&["plan-mode"], Bool, Default("false")),
            field(&["subagent-enabled"], Bool, Default("false")),
            field(&["max-concurrent-subagents"], Integer, Default("3")),
            field(&["timeout"], Integer, Default("300")),
            field(&["recursion-limit"], Integer, Default("1000")),
        ],
        adds: &[],
        needs: &[],
        removes_think: false,
        newer: &[],
        newer_values: &[],
        uses_host: false,
        snapshots: true,
        files: FILES,
    },
    Family {
        legacy: "tbox-app-api",
        plugin: "TboxAgent",
        older: "tbox-agent",
        fields: &[
            field(&["api-key"], Secret, Critical),
            field(&["app-id"], Text, Critical),
            field(&["timeout"], Number, Default("120")),
        ],
        adds: &[Add {
            to: "user-id-source",
            value: r#""legacy-bot""#,
            why: "keeps the users that the service knows",
        }],
        needs: &[],
        removes_think: true,
        newer: &["remove-think", "user-id-source"],
        newer_values: &[],
        uses_host: false,
        snapshots: true,
        files: FILES,
    },
    Family {
        legacy: "weknora-api",
        plugin: "WeKnoraAgent",
        older: "weknora-agent",
        fields: &[
            field(&["base-url"], Url, Critical),
            field(&["api-key"], Secret, Critical),
            field(
                &["app-type"],
                Choice(&["chat", "agent"]),
                Default(r#""chat""#),
            ),
            field(
                &["agent-id"],
                Text,
                ByAppType(&[
                    ("chat", r#""builtin-quick-answer""#),
                    ("agent", r#""builtin-smart-reasoning""#),
                ]),
            ),
            field(&["knowledge-base-ids"], Names, Default("[]")),
            field(&["web-search-enabled"], Bool, Default("false")),
            field(&["timeout"], Number, Default("120")),
            field(&["base-prompt"], Text, Default(r#""请回答用户的问题。""#)),
        ],
        adds: &[],
        needs: &[],
        removes_think: false,
        newer: &[],
        newer_values: &[],
        uses_host: false,
        snapshots: true,
        files: &[],
    },
];
