//! Tools that are called on behalf of the actor, with tokens of a real `OpenID` provider that exchanges them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::database::rows;
use crate::support::gateway::Agent;
use crate::support::held::HeldRun;
use crate::support::listening::ChildServer;
use crate::support::node::NodeProject;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Gate, sse, sse_around};
use crate::support::tool_server::{ToolRequest, ToolServer};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};

static OIDC: NodeProject = NodeProject::at("tests/clients/oidc");

/// A gateway with a provider, and a tool server that shows its requests.
struct BehalfStage {
    stage: OwnStage,
    provider: ChildServer,
    tools: ToolServer,
}

impl BehalfStage {
    async fn of(engine: Engine) -> Option<Self> {
        let project = OIDC.built("node").await?;
        let mut node = Command::new("node");
        node.arg(project.join("provider.mjs"));
        let provider = ChildServer::spawn(&mut node).await.unwrap();
        let tools = ToolServer::start().await;
        let credential = |audience: &str| {
            format!(
                "credential = {{ on_behalf_of = {{ issuer = \"{}\", audience = \"{audience}\", \
                 scopes = [\"read\", \"write\"], client_id = \"gateway\", client_secret = \"env:GATEWAY_SECRET\" }} }}\n",
                provider.url
            )
        };
        let http = [
            ("crm", "write", "crm"),
            ("brief", "read", "brief"),
            ("lost", "write", "unknown-service"),
        ];
        let http = http.map(|(name, effect, audience)| {
            let (url, credential) = (&tools.url, credential(audience));
            format!("[[tools]]\ntool_name = \"{name}\"\nurl = \"{url}/{name}\"\neffect = \"{effect}\"\n{credential}")
        });
        let (url, of_server) = (&tools.url, credential("crm"));
        let server = format!("[[mcp_servers]]\nname = \"desk\"\nurl = \"{url}/mcp\"\n{of_server}");
        let mut manifest = manifest(RUNNER_ID);
        manifest["permissions"] = json!({"tools": ["detail", "call"], "agents": ["call"]});
        manifest["capabilities"]["steering"] = json!(true);
        let runner = StubRunner::start_as(manifest).await;
        let stage = OwnStage::of(engine, runner, |config| {
            config.agents[0].resources = r#"tools = "*", agents = ["helper"]"#;
            config.agents[0].concurrency = "steer";
            config.agents.push(Agent {
                name: "helper",
                event_types: "test.helper",
                resources: r#"tools = "*""#,
                ..Agent::default()
            });
            config.rest = http.concat() + &server;
            let secret = "secret of the gateway".to_owned();
            config.environment.push(("GATEWAY_SECRET", secret));
        });
        let stage = stage.await?;
        let admin = stage.admin.clone();
        until("the list", async || {
            let servers = admin.get("/v1/mcp-servers").await.body;
            servers["items"][0]["tools"] == json!(["echo"])
        })
        .await;
        Some(Self {
            stage,
            provider,
            tools,
        })
    }

    /// An access token of the provider for a person.
    async fn token(&self, person: &str) -> String {
        let request = reqwest::Client::new()
            .post(format!("{}/token", self.provider.url))
            .basic_auth(person, Some("secret"))
            .header("content-type", "application/x-www-form-urlencoded")
            .body("grant_type=client_credentials&scope=api&resource=actor:api");
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        let token = answer["access_token"].as_str();
        token.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Starts a run of a person.
    async fn run_of(&self, person: &str) -> HeldRun {
        let event = event_of(person, &self.token(person).await);
        HeldRun::start(&self.stage, &event).await
    }

    /// The exchanged tokens that reached a path, without lists of tools.
    fn tokens_at(&self, path: &str) -> Vec<String> {
        let seen = self.tools.seen(path).into_iter();
        let bearer = |request: ToolRequest| {
            let header = request.header("authorization")?;
            Some(header.strip_prefix("Bearer ").unwrap().to_owned())
        };
        seen.filter_map(bearer).collect()
    }

    async fn audit(&self, run_id: &str) -> Vec<Value> {
        let path = format!("/v1/runs/{run_id}/audit");
        let page = self.stage.client.get(&path).await.expect(200).body;
        let calls = page["items"].as_array().unwrap().iter();
        let calls = calls.filter(|entry| entry["action"] == "call_tool");
        calls.cloned().collect()
    }
}

/// A message of a person, in a conversation that all share.
fn event_of(person: &str, token: &str) -> Value {
    let mut event = message(&format!("m-{person}"));
    event["actor"] = json!({
        "actor_type": "user", "actor_id": person, "credential": {"token": token, "type": "access_token"},
    });
    event["conversation"]["conversation_id"] = json!(format!("c-{person}"));
    event
}

fn claims(token: &str) -> Value {
    let body = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).unwrap()).unwrap()
}

async fn call(host: &Client, tool: &str) -> ApiResponse {
    let path = format!("/tools/{tool}/call");
    let request = host.request(Method::POST, &path);
    send(request.json(&json!({"parameters": {}})))
        .await
        .unwrap()
}

#[rstest]
#[tokio::test]
async fn actors_call_tools_with_their_own_tokens(#[values(Sqlite, Postgres)] engine: Engine) {
    let on = or_skip!(BehalfStage::of(engine).await);
    let (ana, bob) = (on.run_of("ana").await, on.run_of("bob").await);
    for run in [&ana, &bob, &ana] {
        let answer = call(&run.host, "crm").await.expect(200).body;
        // A tool that echoes its headers does not give the token to the runner.
        assert_eq!(answer["result"]["authorization"], "Bearer [redacted]");
        call(&run.host, "echo").await.expect(200);
    }
    let tokens = on.tokens_at("/crm");
    let owners: Vec<_> = tokens.iter().map(|token| claims(token)).collect();
    for (claims, person) in owners.iter().zip(["ana", "bob", "ana"]) {
        assert_members!(claims, {"sub": person, "aud": "crm", "scope": "read write"});
    }
    assert_eq!(tokens[0], tokens[2], "the token is cached");
    // Each call of the server has a session of its own, with the token on every request.
    let of_sessions = on.tokens_at("/mcp");
    for token in [&tokens[0], &tokens[1]] {
        assert!(of_sessions.contains(token));
    }
    let calls = on.tools.seen("/mcp").into_iter();
    let calls = calls.filter(|request| request.body["method"] == "tools/call");
    let callers: Vec<_> = calls
        .map(|request| claims(&request.header("authorization").unwrap()[7..])["sub"].clone())
        .collect();
    assert_eq!(callers, ["ana", "bob", "ana"]);

    for (run, actor) in [(&ana, "user:ana"), (&bob, "user:bob")] {
        run.release();
        on.stage.client.finished(&run.run_id).await;
        until("the outcomes", async || {
            let calls = on.audit(&run.run_id).await;
            let is_ok = |entry: &Value| entry["on_behalf_of"] == actor && entry["outcome"] == "ok";
            calls.len() >= 2 && calls.iter().all(is_ok)
        })
        .await;
    }
    let url = on.stage.gateway.database_url();
    until("the tokens to be deleted", async || {
        rows(&url, "SELECT run_id FROM actor_tokens")
            .await
            .is_empty()
    })
    .await;
}

/// The token of the actor reaches the issuer only; the exchanged one reaches the tool only.
#[tokio::test]
async fn runners_tables_and_logs_have_no_token() {
    let on = or_skip!(BehalfStage::of(Sqlite).await);
    let token = on.token("ana").await;
    let run = HeldRun::start(&on.stage, &event_of("ana", &token)).await;
    call(&run.host, "crm").await.expect(200);
    call(&run.host, "echo").await.expect(200);
    let exchanged = on.tokens_at("/crm").remove(0);
    let signature = exchanged.rsplit('.').next().unwrap().to_owned();
    let url = on.stage.gateway.database_url();
    let sealed = rows(&url, "SELECT token FROM actor_tokens").await;
    assert_eq!(sealed.len(), 1);
    let mut texts = sealed;
    for sql in [
        "SELECT envelope FROM events",
        "SELECT answer FROM events",
        "SELECT result FROM tool_calls WHERE result IS NOT NULL",
        "SELECT author FROM transcript_items WHERE author IS NOT NULL",
    ] {
        texts.extend(rows(&url, sql).await);
    }
    let client = &on.stage.client;
    for path in [
        "/v1/events/m-ana".to_owned(),
        "/v1/events".to_owned(),
        format!("/v1/runs/{}", run.run_id),
        format!("/v1/runs/{}/audit", run.run_id),
        format!("/v1/runs/{}/authorization", run.run_id),
    ] {
        texts.push(client.get(&path).await.body.to_string());
    }
    for path in ["/events", "/run", "/history/page"] {
        texts.push(run.get(path).await.body.to_string());
    }
    texts.push(run.run_request.to_string());
    assert_eq!(run.run_request["context"]["actor"]["actor_id"], "ana");
    run.release();
    client.finished(&run.run_id).await;
    texts.push(client.ledger(&run.run_id).await.0.join("\n"));
    texts.push(on.stage.gateway.log());
    for text in texts {
        for secret in [&token, &signature] {
            assert!(!text.contains(secret.as_str()), "{text}");
        }
    }
}

#[tokio::test]
async fn calls_without_a_usable_token_are_refused() {
    let mut on = or_skip!(BehalfStage::of(Sqlite).await);
    let without = HeldRun::start(&on.stage, &message("m-1")).await;
    let invalid = HeldRun::start(&on.stage, &event_of("bob", "no-token-of-the-provider")).await;
    let ana = on.run_of("ana").await;
    for tool in ["crm", "echo"] {
        for (run, reason, advice) in [
            (&without, "actor_token_missing", "actor.credential"),
            (&invalid, "actor_token_refused", "actor.credential"),
        ] {
            let refused = call(&run.host, tool).await.expect(403);
            assert_eq!(refused.detail("reason"), reason, "{}", refused.body);
            let text = refused.body.to_string();
            assert!(text.contains(advice), "{text}");
            assert!(!text.contains("no-token-of-the-provider"), "{text}");
        }
    }
    let refused = call(&ana.host, "lost").await.expect(403);
    assert_eq!(
        refused.detail("reason"),
        "token_exchange_refused",
        "{}",
        refused.body
    );
    assert!(on.tokens_at("/").is_empty(), "nothing is sent to the tools");

    // A result that another actor could get by its key.
    let request = ana.request(Method::POST, "/tools/crm/call");
    let request = request
        .header("idempotency-key", "k")
        .header("idempotency-key-scope", "conversation");
    let shared = send(request.json(&json!({"parameters": {}})))
        .await
        .unwrap();
    shared.expect(400);

    call(&ana.host, "crm").await.expect(200);
    on.provider.kill().await;
    call(&ana.host, "crm").await.expect(200);
    let away = call(&ana.host, "brief").await.expect(502);
    assert_eq!(
        away.body["error"]["retryable"],
        json!(true),
        "{}",
        away.body
    );
    assert_eq!(away.detail("reason"), "upstream_unreachable");
    let calls = on.audit(&without.run_id).await;
    assert!(
        calls.iter().all(|entry| entry["on_behalf_of"].is_null()),
        "{calls:?}"
    );
}

#[tokio::test]
async fn ended_tokens_are_exchanged_anew() {
    let on = or_skip!(BehalfStage::of(Sqlite).await);
    let run = on.run_of("ana").await;
    until("another token", async || {
        call(&run.host, "brief").await.expect(200);
        let tokens = on.tokens_at("/brief");
        tokens.first() != tokens.last()
    })
    .await;
    for token in on.tokens_at("/brief") {
        assert_members!(claims(&token), {"sub": "ana", "aud": "brief"});
    }
}

#[tokio::test]
async fn child_runs_act_for_the_actor_and_retries_do_not() {
    let on = or_skip!(BehalfStage::of(Sqlite).await);
    let gate = Gate::new();
    let hold = gate.clone();
    on.stage
        .runner
        .answer_all(move |run| sse_around(&hold, "", run.talk(1).concat()));
    let parent = on.run_of("ana").await;
    let request = json!({"agent_id": "helper", "input": {"text": "do it"}, "idempotency_key": "k"});
    let child = parent.host.create("/child-runs", &request).await.run_id();
    let host = on.stage.host_of(&child).await;
    call(&host, "crm").await.expect(200);
    assert_eq!(claims(&on.tokens_at("/crm")[0])["sub"], "ana");
    gate.cancel();
    on.stage.client.finished(&child).await;
    until("the outcome", async || {
        let calls = on.audit(&child).await;
        let of_ana = |entry: &Value| entry["on_behalf_of"] == "user:ana";
        calls.first().is_some_and(of_ana)
    })
    .await;

    // The same event again is a replay, also with a later token.
    let later = event_of("ana", "a-later-token");
    let again = on.stage.client.post(&later).await;
    assert_eq!(
        (again.run_id(), again.is_replay()),
        (parent.run_id.clone(), true)
    );

    let runner = &on.stage.runner;
    runner.answer("m-bob", |run| sse(run.failed(1)));
    let event = event_of("bob", &on.token("bob").await);
    let failed = on.stage.client.post(&event).await.run_id();
    on.stage.client.finished(&failed).await;
    let (gate, path) = (Gate::new(), format!("/v1/runs/{failed}/retry"));
    let hold = gate.clone();
    on.stage.runner.answer("m-bob", move |run| {
        sse_around(&hold, "", run.talk(1).concat())
    });
    let request = on.stage.client.request(Method::POST, &path);
    let retry = send(request).await.unwrap().expect(202).run_id();
    let host = on.stage.host_of(&retry).await;
    let refused = call(&host, "crm").await.expect(403);
    assert_eq!(refused.detail("reason"), "actor_token_missing");
    gate.cancel();
}

/// A message of another actor could otherwise make a run act for the first one.
#[rstest]
#[tokio::test]
async fn messages_of_another_actor_take_the_token(#[values(Sqlite, Postgres)] engine: Engine) {
    let on = or_skip!(BehalfStage::of(engine).await);
    let run = on.run_of("ana").await;
    let steering = |id: &str, actor: &str| {
        let mut event = event_of("ana", "unused-token");
        event["event_id"] = json!(id);
        event["actor"]["actor_id"] = json!(actor);
        event
    };
    let own = on.stage.client.post(&steering("m-2", "ana")).await;
    assert_eq!(own.body["steered"], json!(true), "{}", own.body);
    call(&run.host, "crm").await.expect(200);
    let foreign = on.stage.client.post(&steering("m-3", "bob")).await;
    assert_eq!(foreign.body["steered"], json!(true), "{}", foreign.body);
    let refused = call(&run.host, "crm").await.expect(403);
    assert_eq!(refused.detail("reason"), "actor_token_missing");
    for token in on.tokens_at("/crm") {
        assert_eq!(claims(&token)["sub"], "ana");
    }
}

#[tokio::test]
async fn refuses_credentials_by_pointer() {
    let on = or_skip!(BehalfStage::of(Sqlite).await);
    let client = &on.stage.client;
    let mut event = event_of("ana", "Bearer canary-token");
    let refused = client.post(&event).await.expect(400);
    assert_eq!(refused.detail("pointer"), "/actor/credential/token");
    assert!(!refused.body.to_string().contains("canary-token"));
    event["actor"] = json!({"actor_type": "user", "credential": {"token": "t"}});
    let refused = client.post(&event).await.expect(400);
    assert_eq!(refused.detail("pointer"), "/actor/actor_id");
    let schedule = json!({
        "name": "daily", "agent": "main", "every": "1h",
        "event": {"actor": {"actor_type": "user", "actor_id": "ana", "credential": {"token": "t"}}},
    });
    let admin = &on.stage.admin;
    let request = admin.request(Method::POST, "/v1/schedules").json(&schedule);
    let refused = send(request).await.unwrap();
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.body);
    assert!(
        refused.body.to_string().contains("/event/actor/credential"),
        "{}",
        refused.body
    );
}
