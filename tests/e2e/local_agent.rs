//! The Local Agent as a runner of the gateway: a complete agent that uses only the public host API.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::support::client::{Client, send};
use crate::support::gateway::{Config, GatewayProcess};
use crate::support::listening::{ChildServer, local_agent_under};
use crate::support::runner::SECRET;
use crate::support::talker::{AnswerPiece, ScriptedProvider};
use crate::support::{Engine, Postgres, Sqlite, serve, within};
use crate::tool_servers::{EVERYTHING, PEERS};

/// The agent as a separate service, and a gateway with an endpoint for it.
struct LocalAgentStage {
    client: Client,
    gateway: GatewayProcess,
    _agent: ChildServer,
}

const RUNNER_ID: &str = "plugin:runnel/local-agent/default";
const PROMPT: &str = "You are the receptionist.";

/// Parts of the configuration that a test sets.
#[derive(Default)]
struct AgentSetting<'a> {
    /// Members of the agent's `config` in addition to model and prompt, as TOML.
    config: &'a str,
    /// Members of its `resource_policy` in addition to models and history.
    resources: &'a str,
    /// Tables of the catalog.
    catalog: String,
    /// Members of the first model.
    model: &'a str,
    concurrency: &'a str,
}

impl LocalAgentStage {
    /// Returns `None` if the engine is not available. The first model is the talker.
    async fn open(
        engine: Engine,
        talker: &ScriptedProvider,
        setting: AgentSetting<'_>,
    ) -> Option<Self> {
        let agent = local_agent_under(SECRET).await;
        let mut config = Config::for_runner_at(&agent.url);
        config.agents.clear();
        let concurrency = match setting.concurrency {
            "" => "concurrent",
            other => other,
        };
        config.rest = format!(
            "[[agents]]\nname = \"main\"\nevent_types = [\"message.received\"]\nscope = {{ kind = \"global\" }}\n\
             runner_id = \"{RUNNER_ID}\"\nconcurrency = \"{concurrency}\"\n\
             state_policy = {{ enabled = true, scopes = [\"conversation\"] }}\n\
             [agents.resource_policy]\nmodels = [\"talker\", \"spare\"]\nhistory = [\"page\"]\n{resources}\n\
             [agents.config]\nmodel = {{ primary = \"talker\", fallbacks = [\"spare\"] }}\n\
             prompt = [{{ role = \"system\", content = \"{PROMPT}\" }}]\n{more}\n\
             [[model_providers]]\nname = \"talker\"\nkind = \"openai\"\nbase_url = \"{talker}/v1\"\n\
             [[models]]\nmodel_id = \"talker\"\nprovider = \"talker\"\n{model}\n\
             [[model_providers]]\nname = \"script\"\nkind = \"scripted\"\n\
             [[models]]\nmodel_id = \"spare\"\nprovider = \"script\"\n{catalog}",
            resources = setting.resources,
            more = setting.config,
            talker = talker.url,
            model = setting.model,
            catalog = setting.catalog,
        );
        let gateway = GatewayProcess::start(engine, config).await?;
        Some(Self {
            client: gateway.client(),
            gateway,
            _agent: agent,
        })
    }

    /// Posts a message to the conversation and waits for the end of its run.
    async fn ask(&self, text: &str) -> AgentTurn {
        self.post(&user_message(text)).await
    }

    async fn post(&self, event: &Value) -> AgentTurn {
        let stream = self.client.post_streaming(event).await;
        let run_id = stream.run_id();
        let frames = stream.rest().await;
        let events = frames
            .iter()
            .map(|frame| serde_json::from_str(&frame.data).unwrap());
        AgentTurn {
            events: events.collect(),
            run_id,
        }
    }

    async fn audit(&self, run_id: &str) -> Vec<String> {
        let path = format!("/v1/runs/{run_id}/audit?limit=100");
        let page = self.client.get(&path).await.body;
        let rows = page["items"].as_array().unwrap().iter();
        rows.map(|row| row["action"].as_str().unwrap().to_owned())
            .collect()
    }
}

fn user_message(text: &str) -> Value {
    json!({
        "event_type": "message.received", "input": {"text": text},
        "conversation": {"conversation_id": "c-1"},
        "actor": {"actor_type": "user", "actor_id": "u-1"},
    })
}

/// One run, read by its client.
struct AgentTurn {
    run_id: String,
    events: Vec<Value>,
}

impl AgentTurn {
    /// The types of the events; consecutive deltas count as one.
    fn types(&self) -> Vec<&str> {
        let types = self
            .events
            .iter()
            .map(|event| event["type"].as_str().unwrap());
        let mut types: Vec<_> = types.collect();
        types.dedup_by(|one, other| one == other && *one == "message.delta");
        types
    }

    fn answer(&self) -> &str {
        let completed = self
            .events
            .iter()
            .rfind(|event| event["type"] == "message.completed");
        let completed = completed.unwrap_or_else(|| panic!("no answer: {:?}", self.events));
        completed["data"]["message"]["content"].as_str().unwrap()
    }

    fn ending(&self) -> &Value {
        self.events.last().unwrap()
    }
}

#[rstest]
#[tokio::test]
async fn uses_tool_knowledge_and_memory_in_two_turns(#[values(Sqlite, Postgres)] engine: Engine) {
    let peers = or_skip!(PEERS.built("mcp").await);
    let talker = ScriptedProvider::start().await;
    let catalog = format!(
        "[[mcp_servers]]\nname = \"everything\"\ncommand = [\"node\", \"{}\", \"stdio\"]\n\
         [[knowledge_bases]]\nkb_id = \"handbook\"\n",
        peers.join(EVERYTHING).display()
    );
    let setting = AgentSetting {
        config: "knowledge-bases = [\"handbook\"]",
        resources: "tools = [\"get-sum\"]\nknowledge_bases = [\"handbook\"]",
        catalog,
        ..AgentSetting::default()
    };
    let agency = or_skip!(LocalAgentStage::open(engine, &talker, setting).await);
    let admin = agency.gateway.admin();
    crate::tool_servers::ready(&admin).await;
    let guide = "# Rooms\n\nThe breakfast room is behind the red door.";
    let path = "/v1/knowledge-bases/handbook/documents/guide";
    let put = admin
        .request(Method::PUT, path)
        .header(CONTENT_TYPE, "text/markdown");
    assert_eq!(send(put.body(guide)).await.unwrap().status, 201);

    talker.says([
        AnswerPiece::call("get-sum", &json!({"a": 2, "b": 40})),
        AnswerPiece::text("It is "),
        AnswerPiece::text("that."),
    ]);
    let first = agency
        .ask("I am Ada. Where is the breakfast room, and what is 2 + 40?")
        .await;
    let expected = [
        "message.delta",
        "tool.call.started",
        "tool.call.completed",
        "message.delta",
        "message.completed",
        "run.completed",
    ];
    assert_eq!(first.types(), expected, "{:?}", first.events);
    assert_eq!(first.answer(), "It is that.");
    let result = first
        .events
        .iter()
        .find(|event| event["type"] == "tool.call.completed")
        .unwrap();
    assert_contains!(result["data"]["result"].to_string(), "42");
    let usage = &first.ending()["usage"];
    assert_eq!(usage["model_calls"], 2);
    assert_eq!(usage["total_tokens"], 30);
    let requests = talker.requests();
    assert_eq!(requests[0].system(0), PROMPT);
    assert_contains!(requests[0].last(), "behind the red door");
    assert_eq!(requests[0].tools(), ["get-sum"]);
    assert!(
        requests[1].last().contains("42"),
        "the model receives the sum"
    );

    talker.says([AnswerPiece::text("You are Ada.")]);
    let second = agency.ask("Who am I?").await;
    assert_eq!(
        second.types(),
        ["message.delta", "message.completed", "run.completed"]
    );
    let memory = talker.requests().pop().unwrap();
    assert!(memory.all().contains("I am Ada."), "{memory:?}");
    assert!(memory.all().contains("It is that."), "{memory:?}");
    let calls = agency.audit(&second.run_id).await;
    assert!(
        !calls.contains(&"models_count_tokens".to_owned()),
        "{calls:?}"
    );
}

#[rstest]
#[tokio::test]
async fn shows_pictures_again_in_next_message(#[values(Sqlite, Postgres)] engine: Engine) {
    let talker = ScriptedProvider::start().await;
    let agency = or_skip!(LocalAgentStage::open(engine, &talker, AgentSetting::default()).await);
    // One stays in its event, the other is replaced by an artifact.
    let pictures = [2_000, 100_000].map(|bytes| {
        let picture = [&b"\x89PNG\r\n\x1a\n"[..], &vec![7; bytes]].concat();
        format!("data:image/png;base64,{}", BASE64_STANDARD.encode(picture))
    });
    let mut event = user_message("Look.");
    event["input"]["contents"] = pictures
        .iter()
        .map(|picture| json!({"type": "image_base64", "image_base64": picture}))
        .collect();
    talker.says([AnswerPiece::text("I see.")]);
    assert_eq!(agency.post(&event).await.answer(), "I see.");
    for (question, answer) in [
        ("What is on them?", "A cat and a dog."),
        ("Which is larger?", "The dog."),
    ] {
        talker.says([AnswerPiece::text(answer)]);
        assert_eq!(agency.ask(question).await.answer(), answer);
        let request = talker.requests().pop().unwrap();
        for picture in &pictures {
            let shown = request
                .pictures()
                .iter()
                .filter(|shown| **shown == picture)
                .count();
            assert_eq!(shown, 1, "{question}");
        }
    }
}

#[tokio::test]
async fn later_runs_stay_below_refused_size() {
    let talker = ScriptedProvider::start().await;
    let agency = or_skip!(LocalAgentStage::open(Sqlite, &talker, AgentSetting::default()).await);
    for turn in 1..=8 {
        talker.says([AnswerPiece::text("Noted.")]);
        agency
            .ask(&format!("{turn} {}", "some more words ".repeat(200)))
            .await;
    }
    let refusal = "This model's maximum context length is 1024 tokens";
    talker.says([
        AnswerPiece::Failure(400, refusal),
        AnswerPiece::text("Hello."),
    ]);
    let before = talker.requests().len();
    assert_eq!(agency.ask("Hi").await.answer(), "Hello.");
    assert!(
        talker.requests().len() > before + 1,
        "refused, then sent with less"
    );
    for _ in 0..2 {
        let before = talker.requests().len();
        talker.says([AnswerPiece::text("Hello.")]);
        assert_eq!(agency.ask("Hi").await.answer(), "Hello.");
        assert_eq!(
            talker.requests().len(),
            before + 1,
            "one call for a short message"
        );
    }
}

#[tokio::test]
async fn falls_back_when_first_model_fails_early() {
    let talker = ScriptedProvider::start().await;
    let agency = LocalAgentStage::open(Sqlite, &talker, AgentSetting::default())
        .await
        .unwrap();
    talker.says([AnswerPiece::Failure(500, "the model is away")]);
    let turn = agency.ask("hello").await;
    assert_eq!(turn.answer(), "You said: hello");
    assert_eq!(turn.ending()["type"], "run.completed");
}

#[tokio::test]
async fn cancel_during_answer_ends_run_and_model_call() {
    let talker = ScriptedProvider::start().await;
    let agency = LocalAgentStage::open(Sqlite, &talker, AgentSetting::default())
        .await
        .unwrap();
    talker.says([AnswerPiece::text("It is"), AnswerPiece::Silence]);
    let mut stream = agency.client.post_streaming(&user_message("hello")).await;
    let run_id = stream.run_id();
    let first = stream.event().await.unwrap();
    assert!(first.data.contains("It is"));
    agency.client.cancel(&run_id).await;
    let rest = stream.rest().await;
    assert_contains!(rest.last().unwrap().data, "\"cancelled\"");
    assert_eq!(agency.client.finished(&run_id).await["status"], "cancelled");
    talker.left().await;
}

/// A tool that answers on a signal.
async fn slow_tool() -> (String, Arc<(Notify, Notify)>, JoinSet<()>) {
    let signals = Arc::new((Notify::new(), Notify::new()));
    let shared = Arc::clone(&signals);
    let answer = async move || {
        shared.0.notify_one();
        shared.1.notified().await;
        "\"done\""
    };
    let router = axum::Router::new().fallback(answer);
    let (url, server) = serve(router).await;
    (url, signals, server)
}

#[tokio::test]
async fn steered_message_during_tool_call_reaches_next_turn() {
    let talker = ScriptedProvider::start().await;
    let (url, signals, _server) = slow_tool().await;
    let setting = AgentSetting {
        resources: "tools = [\"work\"]",
        catalog: format!("[[tools]]\ntool_name = \"work\"\nurl = \"{url}/work\"\n"),
        concurrency: "steer",
        ..AgentSetting::default()
    };
    let agency = LocalAgentStage::open(Sqlite, &talker, setting)
        .await
        .unwrap();
    talker.says([
        AnswerPiece::call("work", &json!({})),
        AnswerPiece::text("Both done."),
    ]);
    let run = agency.client.post_streaming(&user_message("do this")).await;
    within("the tool to be called", signals.0.notified()).await;
    let steered = agency.client.post(&user_message("and that")).await;
    assert_eq!(steered.status, 202, "{}", steered.body);
    signals.1.notify_one();
    let rest = run.rest().await;
    assert!(rest.last().unwrap().data.contains("run.completed"));
    let requests = talker.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].last(), "and that");
    assert!(requests[1].all().contains("do this"));
}

/// Enough turns for repeated summaries.
const TURNS: usize = 300;

#[tokio::test]
async fn keeps_300_turns_within_context_window() {
    let talker = ScriptedProvider::start().await;
    let setting = AgentSetting {
        model: "context_window_tokens = 16000\nmax_output_tokens = 2000",
        ..AgentSetting::default()
    };
    let agency = LocalAgentStage::open(Sqlite, &talker, setting)
        .await
        .unwrap();
    let padding = "this and that and something else ".repeat(12);
    for turn in 1..=TURNS {
        let reference = if turn == 5 {
            "The order is order-7731-ab12-x9."
        } else {
            ""
        };
        talker.says([AnswerPiece::text(&format!("Answer {turn}. {padding}"))]);
        let turn = agency
            .ask(&format!("Question {turn}. {reference} {padding}"))
            .await;
        assert_eq!(
            turn.ending()["type"],
            "run.completed",
            "{:?}",
            turn.ending()
        );
    }
    let requests = talker.requests();
    let (summaries, turns): (Vec<_>, Vec<_>) =
        requests.iter().partition(|request| request.is_summary());
    assert_eq!(turns.len(), TURNS);
    assert!(
        (1..TURNS / 20).contains(&summaries.len()),
        "{} summaries",
        summaries.len()
    );
    for request in turns {
        // Each padding word is one token.
        assert!(request.words() < 12_000, "{} words", request.words());
    }
    assert!(
        requests
            .last()
            .unwrap()
            .all()
            .contains("order-7731-ab12-x9")
    );
}

#[tokio::test]
async fn rejects_config_outside_agent_form() {
    let talker = ScriptedProvider::start().await;
    let agency = LocalAgentStage::open(Sqlite, &talker, AgentSetting::default())
        .await
        .unwrap();
    let admin = agency.gateway.admin();
    let agent = |config: Value| {
        json!({"name": "other", "event_types": ["other.event"], "scope": {"kind": "global"},
        "runner_id": RUNNER_ID, "config": config})
    };
    let refused = admin
        .create("/v1/agents", &agent(json!({"modell": "talker"})))
        .await;
    assert_eq!(refused.status, 400);
    assert_contains!(refused.body.to_string(), "/config/modell");
    let taken = admin
        .create(
            "/v1/agents",
            &agent(json!({"model": "talker", "tool-execution-mode": "serial"})),
        )
        .await;
    assert_eq!(taken.status, 201, "{}", taken.body);
}
