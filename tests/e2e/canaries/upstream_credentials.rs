//! Credentials for upstream calls of runs: each occurs only in requests to its own upstream, for any response of
//! it.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Canary, Haystack, call_all_operations, canary, dump};
use crate::support::client::{Client, message};
use crate::support::collector::{Collector, telemetry_section};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::tool_server::{ToolServer, listed};
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until, within};

/// A credential, its environment variable, and the only store or peer that may receive it.
struct Credential {
    what: &'static str,
    variable: &'static str,
    value: &'static str,
    allowed_in: &'static [&'static str],
}

const fn credential(
    what: &'static str,
    variable: &'static str,
    value: &'static str,
    allowed_in: &'static [&'static str],
) -> Credential {
    Credential {
        what,
        variable,
        value,
        allowed_in,
    }
}

const OPENAI: &[&str] = &["requests to the first provider"];
const ANTHROPIC: &[&str] = &["requests to the second provider"];
const BASE: &[&str] = &["requests to the base"];
const TOOL: &[&str] = &["requests to the tool"];
const SERVER: &[&str] = &["requests to the MCP server"];
const COLLECTOR: &[&str] = &["requests to the collector"];

const CREDENTIALS: [Credential; 7] = [
    credential(
        "the key of a provider",
        "CANARY_OPENAI",
        "canary-openai-Hd5",
        OPENAI,
    ),
    credential(
        "a header of a provider",
        "CANARY_TEAM",
        "canary-team-Rt7",
        OPENAI,
    ),
    credential(
        "the key of another provider",
        "CANARY_ANTHROPIC",
        "canary-anthropic-Vb1",
        ANTHROPIC,
    ),
    credential("the key of a base", "CANARY_BASE", "canary-base-Ns4", BASE),
    credential("a header of a tool", "CANARY_TOOL", "canary-tool-Gf9", TOOL),
    credential(
        "a header of an MCP server",
        "CANARY_SERVER",
        "canary-server-Yp6",
        SERVER,
    ),
    credential(
        "a header for the collector",
        "CANARY_COLLECTOR",
        "canary-collector-Lm3",
        COLLECTOR,
    ),
];

/// All upstreams of the gateway.
struct Upstreams {
    openai: Upstream,
    anthropic: Upstream,
    base: Upstream,
    tool: ToolServer,
    server: ToolServer,
    collector: Collector,
}

impl Upstreams {
    async fn start() -> Self {
        Self {
            openai: Upstream::start().await,
            anthropic: Upstream::start().await,
            base: Upstream::start().await,
            tool: ToolServer::start().await,
            server: ToolServer::start().await,
            collector: Collector::start().await,
        }
    }

    fn catalog(&self) -> String {
        let headers = "headers = { authorization = \"env:CANARY_COLLECTOR\" }";
        let collector = telemetry_section(&self.collector.url, headers);
        let tool = |name: &str| {
            format!(
                "[[tools]]\ntool_name = \"{name}\"\nurl = \"{}/{name}\"\n\
                 headers = {{ authorization = \"env:CANARY_TOOL\" }}\n",
                self.tool.url
            )
        };
        format!(
            "{collector}[[model_providers]]\nname = \"openai\"\nkind = \"openai\"\nbase_url = \"{openai}/v1\"\n\
             api_keys = [\"env:CANARY_OPENAI\"]\nheaders = {{ x-team = \"env:CANARY_TEAM\" }}\n\
             [[model_providers]]\nname = \"anthropic\"\nkind = \"anthropic\"\nbase_url = \"{anthropic}\"\n\
             api_keys = [\"env:CANARY_ANTHROPIC\"]\n\
             [[models]]\nmodel_id = \"gpt\"\nprovider = \"openai\"\n\
             operations = [\"invoke\", \"stream\", \"rerank\"]\n\
             [[models]]\nmodel_id = \"claude\"\nprovider = \"anthropic\"\n\
             [[knowledge_bases]]\nkb_id = \"wiki\"\nkb_type = \"dify\"\nbase_url = \"{base}\"\n\
             api_key = \"env:CANARY_BASE\"\nknowledge_id = \"k\"\n\
             [[mcp_servers]]\nname = \"far\"\nprefix = \"m_\"\nurl = \"{server}/mcp\"\n\
             headers = {{ authorization = \"env:CANARY_SERVER\" }}\n{}{}",
            tool("echo"),
            tool("fail"),
            openai = self.openai.url,
            anthropic = self.anthropic.url,
            base = self.base.url,
            server = self.server.url,
        )
    }

    /// Adds the requests of all upstreams, by place.
    fn tell(&self, all: &mut Haystack) {
        for (allowed_in, upstream) in [
            (OPENAI, &self.openai),
            (ANTHROPIC, &self.anthropic),
            (BASE, &self.base),
        ] {
            for request in upstream.requests() {
                all.add(allowed_in[0], request.path.clone(), format!("{request:?}"));
            }
        }
        for (allowed_in, server) in [(TOOL, &self.tool), (SERVER, &self.server)] {
            for seen in server.seen("/") {
                all.add(allowed_in[0], seen.path.clone(), format!("{seen:?}"));
            }
        }
        for (headers, spans) in self.collector.requests() {
            let mut bytes = format!("{headers:?}\n").into_bytes();
            bytes.extend_from_slice(&spans);
            all.add(COLLECTOR[0], "/v1/traces", bytes);
        }
    }
}

/// A gateway with maximum output, and a client for its metrics.
async fn stage(engine: Engine, far: &Upstreams) -> Option<(OwnStage, Client)> {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"] = json!({"models": ["invoke", "stream", "rerank"],
        "tools": ["detail", "call"], "knowledge_bases": ["list", "retrieve"]});
    let runner = StubRunner::start_as(manifest).await;
    let [a, b, ..] = *Uuid::new_v4().as_bytes();
    let metrics = format!("127.{a}.{b}.3:9464");
    let stage = OwnStage::of(engine, runner, |config: &mut Config| {
        config.agents[0].resources = r#"models = "*", tools = "*", knowledge_bases = "*""#;
        config.environment.push(("RUNNEL_LOG", "trace".to_owned()));
        for one in &CREDENTIALS {
            config
                .environment
                .push((one.variable, one.value.to_owned()));
        }
        config.rest = format!("[metrics]\nlisten = \"{metrics}\"\n{}", far.catalog());
    });
    Some((stage.await?, Client::new(&format!("http://{metrics}"), "")))
}

/// A call of a run, and the scripted response of its upstream, if any.
struct UpstreamCall<'a> {
    path: &'static str,
    body: Value,
    reply: Option<(&'a Upstream, UpstreamReply)>,
    status: u16,
}

/// An upstream response that echoes every credential it received.
fn repeating(allowed_in: &[&str]) -> Value {
    let shown = CREDENTIALS
        .iter()
        .filter(|one| one.allowed_in == allowed_in);
    let shown: Vec<_> = shown.map(|one| one.value).collect();
    let text = format!("you have shown me {}", shown.join(" and "));
    json!({"error": {"message": text}, "error_msg": text})
}

/// One successful and several failing calls per upstream. Failures echo the received credentials.
fn calls(far: &Upstreams) -> Vec<UpstreamCall<'_>> {
    let says = || json!({"messages": [{"role": "user", "content": "hi"}]});
    let nothing = || json!({"parameters": {}});
    let called = |path, status| UpstreamCall {
        path,
        body: nothing(),
        reply: None,
        status,
    };
    let completion = json!({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]});
    let written = json!({"id": "m", "type": "message", "role": "assistant", "model": "c",
        "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1}});
    let found = json!({"records": [{"content": "a", "score": 0.9, "title": "t"}]});
    let mut calls = vec![
        called("/tools/echo/call", 200),
        called("/tools/fail/call", 502),
        called("/tools/m_echo/call", 200),
        called("/tools/m_fail/call", 502),
    ];
    let query = json!({"query_text": "q"});
    for (path, allowed_in, upstream, good, body) in [
        (
            "/models/gpt/invoke",
            OPENAI,
            &far.openai,
            completion,
            says(),
        ),
        (
            "/models/claude/invoke",
            ANTHROPIC,
            &far.anthropic,
            written,
            says(),
        ),
        (
            "/knowledge-bases/wiki/retrieve",
            BASE,
            &far.base,
            found,
            query,
        ),
    ] {
        let failed = repeating(allowed_in);
        // 401 comes last, because the gateway suspends a key after it.
        for (upstream_status, status) in [(200, 200), (400, 400), (500, 502), (401, 502)] {
            let reply = if upstream_status == 200 {
                &good
            } else {
                &failed
            };
            calls.push(UpstreamCall {
                path,
                body: body.clone(),
                reply: Some((
                    upstream,
                    UpstreamReply::Json(upstream_status, reply.clone()),
                )),
                status,
            });
        }
    }
    calls
}

/// Waits until the tools of the MCP server are listed.
async fn listing(admin: &Client, far: &Upstreams) {
    let tools = ["echo", "fail"].map(|name| listed(name, &json!({})));
    far.server.list(json!(tools)).await;
    until("the tools of the MCP server", async || {
        let servers = admin.get("/v1/mcp-servers").await.body;
        servers["items"][0]["tools"] == json!(["m_echo", "m_fail"])
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn upstream_credentials_reach_only_their_own_upstream(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let far = Upstreams::start().await;
    let (stage, metrics) = or_skip!(stage(engine, &far).await);
    let admin = stage.admin.clone();
    listing(&admin, &far).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let mut all = Haystack::default();
    for call in calls(&far) {
        if let Some((upstream, reply)) = call.reply {
            upstream.reply(reply);
        }
        let answer = run.call(call.path, &call.body).await;
        assert_eq!(answer.status, call.status, "{}: {}", call.path, answer.body);
        all.add("answers", call.path, format!("{answer:?}"));
    }
    call_all_operations(&stage.client, &admin, &run, &mut all).await;
    let outcome = run.end(&stage).await;
    all.add("answers", "the ledger", outcome.ledger.0.join("\n"));
    let audit = format!("/v1/runs/{}/audit?limit=100", run.run_id);
    all.call("audit", admin.request(Method::GET, &audit)).await;
    let checked = stage.gateway.command(&["check-config", "--json"]).await;
    assert!(checked.status.success(), "{checked:?}");
    all.add("commands", "check-config", checked.stdout + &checked.stderr);
    let scraped = within(
        "the metrics",
        metrics.anonymous(Method::GET, "/metrics").send(),
    );
    let scraped = scraped.await.unwrap().text().await.unwrap();
    assert!(scraped.contains("gpt"), "{scraped}");
    all.add("metrics", "/metrics", scraped);
    far.collector.wait_for_exports(1).await;

    let log = stage.gateway.log();
    assert!(
        log.contains("\"level\":\"TRACE\""),
        "it logs all that it can"
    );
    all.add("log", "stderr", log);
    dump(&stage.gateway.database_url(), &mut all).await;
    for request in stage.runner.requests() {
        let body = String::from_utf8_lossy(&request.body);
        all.add(
            "requests to the runner",
            request.path.clone(),
            format!("{request:?}\n{body}"),
        );
    }
    far.tell(&mut all);

    let canaries: Vec<Canary> = CREDENTIALS
        .iter()
        .map(|one| canary(one.what, one.value, one.allowed_in))
        .collect();
    let hits = all.hits(&canaries);
    assert!(hits.is_empty(), "{} hits:\n{}", hits.len(), hits.join("\n"));
    // Self-test: the search finds marks that are present.
    for one in &CREDENTIALS {
        let hits = all.hits(&[canary("it", one.value, &[])]);
        assert!(
            hits.iter().any(|hit| hit.contains(one.allowed_in[0])),
            "{}",
            one.what
        );
    }
}
