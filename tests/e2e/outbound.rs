//! Outbound requests for a run: model providers, remote knowledge bases, tools. They carry no run credential and
//! follow no redirects, and their URLs are validated before the gateway serves.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::support::OwnStage;
use crate::support::client::{message, send};
use crate::support::gateway::STUB_API_KEY;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::tools::check_config;

const ALL: &str = r#"models = "*", tools = "*", knowledge_bases = "*""#;

/// A run with models of each provider kind, a knowledge base and a tool, all on this server.
async fn held(far: &Upstream) -> (OwnStage, HeldRun) {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"] = json!({"models": ["invoke", "stream", "rerank"],
        "tools": ["call"], "knowledge_bases": ["retrieve"]});
    let runner = StubRunner::start_as(manifest).await;
    let stage = OwnStage::of(crate::support::Sqlite, runner, |config| {
        config.agents[0].resources = ALL;
        config.rest = format!(
            "[[model_providers]]\nname = \"openai\"\nkind = \"openai\"\nbase_url = \"{url}/v1\"\n\
             [[model_providers]]\nname = \"anthropic\"\nkind = \"anthropic\"\nbase_url = \"{url}\"\n\
             api_keys = [\"env:{key}\"]\n\
             [[model_providers]]\nname = \"google\"\nkind = \"gemini\"\nbase_url = \"{url}/v1beta\"\n\
             api_keys = [\"env:{key}\"]\n\
             [[models]]\nmodel_id = \"gem\"\nprovider = \"google\"\n\
             [[models]]\nmodel_id = \"gpt\"\nprovider = \"openai\"\n\
             operations = [\"invoke\", \"stream\", \"rerank\"]\n\
             [[models]]\nmodel_id = \"claude\"\nprovider = \"anthropic\"\n\
             [[knowledge_bases]]\nkb_id = \"wiki\"\nkb_type = \"dify\"\nbase_url = \"{url}\"\n\
             api_key = \"env:{key}\"\nknowledge_id = \"k\"\n\
             [[tools]]\ntool_name = \"find\"\nurl = \"{url}/find\"\n",
            url = far.url,
            key = STUB_API_KEY.0,
        );
    })
    .await
    .expect("SQLite is always at hand");
    let run = HeldRun::start(&stage, &message("m-1")).await;
    (stage, run)
}

/// One call of each kind that leads to an outbound request.
fn calls(run: &HeldRun) -> Vec<(&'static str, RequestBuilder)> {
    let says = json!({"messages": [{"role": "user", "content": "hi"}]});
    let chat = json!({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]});
    let calls: [(&str, Value); 10] = [
        ("/models/gpt/invoke", says.clone()),
        ("/models/gpt/stream", says.clone()),
        ("/models/claude/invoke", says),
        (
            "/gemini/v1beta/models/gem:generateContent",
            json!({"contents": [{"parts": [{"text": "hi"}]}]}),
        ),
        ("/models/gpt/embed", json!({"texts": ["t"]})),
        (
            "/models/gpt/rerank",
            json!({"query": "q", "documents": ["d"]}),
        ),
        ("/openai/v1/chat/completions", chat),
        (
            "/openai/v1/embeddings",
            json!({"model": "gpt", "input": "t"}),
        ),
        ("/knowledge-bases/wiki/retrieve", json!({"query_text": "q"})),
        ("/tools/find/call", json!({"parameters": {"a": 1}})),
    ];
    calls
        .into_iter()
        .map(|(path, body)| (path, run.request(Method::POST, path).json(&body)))
        .collect()
}

#[tokio::test]
async fn outbound_requests_hide_credentials_and_follow_no_redirects() {
    let (far, away) = (Upstream::start().await, Upstream::start().await);
    let (stage, run) = held(&far).await;
    for (count, (path, call)) in (1..).zip(calls(&run)) {
        let location = format!("{}/elsewhere", away.url);
        far.reply(UpstreamReply::Headed(
            302,
            vec![("location", location)],
            String::new(),
        ));
        // Request headers of a runner are not forwarded.
        let call = call
            .header("cookie", "canary=1")
            .header("x-canary", "canary")
            .header("traceparent", "00-canary");
        let answer = send(call).await.unwrap();
        assert_eq!(answer.status, 502, "{path}: {}", answer.body);
        assert_eq!(*answer.code(), "runtime_error", "{path}: {}", answer.body);
        let text = answer.body.to_string();
        assert!(!text.contains(&away.url), "{path}: {text}");
        assert_eq!(far.requests().len(), count, "{path}");
    }
    assert!(away.requests().is_empty(), "no redirect is followed");
    for request in far.requests() {
        let seen = format!("{request:?}");
        let signature = run.token.rsplit_once('.').unwrap().1;
        for secret in [signature, &run.run_id, &stage.client.key, "canary"] {
            assert!(!seen.contains(secret), "{seen}");
        }
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn rejects_configured_internal_urls_at_start() {
    let key = format!("env:{}", STUB_API_KEY.0);
    let settings = [
        (
            "model_providers[0].base_url",
            "[[model_providers]]\nname = \"p\"\nkind = \"openai\"\nbase_url = \"{}\"\n".to_owned(),
        ),
        (
            "model_providers[0].base_url",
            "[[model_providers]]\nname = \"p\"\nkind = \"anthropic\"\nbase_url = \"{}\"\n"
                .to_owned(),
        ),
        (
            "model_providers[0].base_url",
            "[[model_providers]]\nname = \"p\"\nkind = \"gemini\"\nbase_url = \"{}\"\n".to_owned(),
        ),
        (
            "knowledge_bases[0].base_url",
            format!(
                "[[knowledge_bases]]\nkb_id = \"w\"\nkb_type = \"dify\"\nknowledge_id = \"k\"\n\
                 api_key = \"{key}\"\nbase_url = \"{{}}\"\n"
            ),
        ),
        (
            "artifacts.endpoint",
            format!(
                "[artifacts]\nurl = \"s3://bucket/p\"\naccess_key_id = \"{key}\"\n\
                 secret_access_key = \"{key}\"\nendpoint = \"{{}}\"\n"
            ),
        ),
        (
            "tools[0].url",
            "[[tools]]\ntool_name = \"t\"\nurl = \"{}\"\n".to_owned(),
        ),
        (
            "mcp_servers[0].url",
            "[[mcp_servers]]\nname = \"m\"\nurl = \"{}\"\n".to_owned(),
        ),
    ];
    for (setting, table) in settings {
        for (url, is_good) in [
            ("https://public.example", true),
            ("http://public.example", false),
            ("https://public.example:8443", false),
            ("http://169.254.169.254", false),
            ("https://127.0.0.1", false),
            ("https://10.0.0.1", false),
            ("https://[::1]", false),
            ("https://[::ffff:169.254.169.254]", false),
            ("https://2130706433", false),
            ("https://u:p@public.example", false),
            ("ftp://public.example", false),
            ("file:///etc/passwd", false),
        ] {
            let printed = check_config(&table.replace("{}", url)).await;
            let output = format!("{}{}", printed.stdout, printed.stderr);
            assert_eq!(
                printed.status.success(),
                is_good,
                "{setting} {url}: {output}"
            );
            assert!(
                is_good || output.contains(setting),
                "{setting} {url}: {output}"
            );
        }
    }
}
