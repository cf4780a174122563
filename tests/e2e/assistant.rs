//! The assistants of `examples/python`: a model, a tool of an MCP server and a knowledge base, set up by the
//! example configuration.

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;

use crate::support::client::{Client, message, send};
use crate::support::gateway::{Config, GatewayProcess};
use crate::support::listening::ChildServer;
use crate::support::programs::runnel;
use crate::support::python::{example, python_with_httpx, python_with_openai};
use crate::support::repository::repository_file;
use crate::support::runner::SECRET;
use crate::support::talker::{AnswerPiece, ScriptedProvider};
use crate::support::{Sqlite, TempDirectory, run};
use crate::tool_servers::{EVERYTHING, PEERS};

/// Variant of the assistant.
#[derive(Clone, Copy)]
enum Assistant {
    /// Uses the package of `clients/python` only.
    Plain,
    /// Uses OpenAI's client, too.
    OpenAi,
}

impl Assistant {
    /// Returns `None` if its Python is not available.
    async fn start(self) -> Option<ChildServer> {
        match self {
            Self::Plain => example(python_with_httpx().await?, "assistant_runner.py").await,
            Self::OpenAi => example(python_with_openai().await?, "openai_runner.py").await,
        }
    }
}

fn configuration() -> String {
    std::fs::read_to_string(repository_file("examples/python/assistant.toml")).unwrap()
}

/// Replaces the first `word`, which must occur.
fn with(text: &str, word: &str, by: &str) -> String {
    assert!(text.contains(word), "{word}");
    text.replacen(word, by, 1)
}

struct AssistantFixture {
    client: Client,
    talker: ScriptedProvider,
    _running: (GatewayProcess, ChildServer),
}

impl AssistantFixture {
    /// The tables of the example, with a fake model and a local copy of the MCP server. The handbook has one
    /// page.
    async fn open(assistant: Assistant) -> Option<Self> {
        let peers = PEERS.built("mcp").await?;
        let runner = assistant.start().await?;
        let talker = ScriptedProvider::start().await;
        let text = configuration();
        let tables = &text[text.find("[[model_providers]]").unwrap()..];
        let upstream = format!("{}/v1", talker.url);
        let tables = with(tables, "https://api.openai.com/v1", &upstream);
        let npx = "\"npx\", \"-y\", \"@modelcontextprotocol/server-everything\"";
        let installed = format!("\"node\", \"{}\"", peers.join(EVERYTHING).display());
        let mut config = Config::for_runner_at(&runner.url);
        config.agents.clear();
        config.rest = with(&tables, npx, &installed);
        config
            .environment
            .push(("OPENAI_API_KEY", "sk-of-a-test".to_owned()));
        let gateway = GatewayProcess::start(Sqlite, config).await.unwrap();

        let admin = gateway.admin();
        crate::tool_servers::ready(&admin).await;
        let page = "/v1/knowledge-bases/handbook/documents/rooms";
        let put = admin
            .request(Method::PUT, page)
            .header(CONTENT_TYPE, "text/markdown")
            .body("# Rooms\n\nThe breakfast room is behind the red door.");
        assert_eq!(send(put).await.unwrap().status, 201);
        Some(Self {
            client: gateway.client(),
            talker,
            _running: (gateway, runner),
        })
    }

    /// Posts a text and returns the events of its run.
    async fn ask(&self, event_id: &str, text: &str) -> Vec<Value> {
        let mut event = message(event_id);
        event["input"]["text"] = json!(text);
        let frames = self.client.post_streaming(&event).await.rest().await;
        let event = |data: &String| serde_json::from_str(data).unwrap();
        frames.iter().map(|frame| event(&frame.data)).collect()
    }
}

fn types(events: &[Value]) -> Vec<&str> {
    let types = events.iter().map(|event| event["type"].as_str().unwrap());
    types.collect()
}

#[rstest]
#[tokio::test]
async fn assistant_answers_with_model_tool_knowledge_memory(
    #[values(Assistant::Plain, Assistant::OpenAi)] assistant: Assistant,
) {
    let desk = or_skip!(AssistantFixture::open(assistant).await);
    desk.talker.says([
        AnswerPiece::text("Let me see. "),
        AnswerPiece::call("get-sum", &json!({"a": 2, "b": 40})),
        AnswerPiece::text("It is "),
        AnswerPiece::text("42."),
    ]);
    let question = "Where is the breakfast room, and what is 2 + 40?";
    let events = desk.ask("m-1", question).await;
    let expected = [
        "message.delta",
        "tool.call.started",
        "tool.call.completed",
        "message.delta",
        "message.delta",
        "message.completed",
        "run.completed",
    ];
    assert_eq!(types(&events), expected, "{events:?}");
    let started =
        json!({"tool_call_id": "call_1", "tool_name": "get-sum", "parameters": {"a": 2, "b": 40}});
    assert_eq!(events[1]["data"], started);
    assert_contains!(events[2]["data"]["result"].to_string(), "42");
    assert_eq!(
        events[5]["data"]["message"],
        json!({"role": "assistant", "content": "Let me see. It is 42."})
    );

    let requests = desk.talker.requests();
    assert_eq!(requests[0].tools(), ["get-sum"]);
    assert_contains!(requests[0].last(), "behind the red door");
    assert!(requests[0].last().ends_with(question), "{:?}", requests[0]);
    assert!(
        requests[1].last().contains("42"),
        "the model receives the sum"
    );

    desk.talker
        .says([AnswerPiece::text("Of a breakfast room.")]);
    desk.ask("m-2", "What did I ask of?").await;
    let memory = desk.talker.requests().pop().unwrap();
    assert!(memory.all().contains(question), "{memory:?}");
    assert!(memory.all().contains("It is 42."), "{memory:?}");
}

#[rstest]
#[tokio::test]
async fn tool_errors_reach_model_model_errors_reach_client(
    #[values(Assistant::Plain, Assistant::OpenAi)] assistant: Assistant,
) {
    let desk = or_skip!(AssistantFixture::open(assistant).await);
    desk.talker.says([
        AnswerPiece::call("get-sum", &json!({"a": "two", "b": 40})),
        AnswerPiece::call("get-env", &json!({})),
        AnswerPiece::text("I cannot."),
    ]);
    let events = desk.ask("m-1", "add").await;
    assert_members!(events.last().unwrap(), {"type": "run.completed"});
    for (event, request_index) in [(1, 1), (3, 2)] {
        let error = events[event]["data"]["error"].as_str().unwrap();
        let prompt = desk.talker.requests()[request_index].last();
        assert_eq!(prompt, format!("Error: {error}"));
    }

    desk.talker
        .says([AnswerPiece::Failure(400, "the model is away")]);
    let events = desk.ask("m-2", "fail").await;
    let failed = events.last().unwrap();
    assert_eq!(failed["type"], "run.failed");
    assert_eq!(failed["data"]["code"], "invalid_argument", "{failed}");
}

#[rstest]
#[tokio::test]
async fn cancels_assistant_with_silent_model(
    #[values(Assistant::Plain, Assistant::OpenAi)] assistant: Assistant,
) {
    let desk = or_skip!(AssistantFixture::open(assistant).await);
    desk.talker
        .says([AnswerPiece::text("Well, "), AnswerPiece::Silence]);
    let mut stream = desk.client.post_streaming(&message("m-1")).await;
    let run_id = stream.run_id();
    assert_eq!(stream.event().await.unwrap().event, "message.delta");
    desk.client.cancel(&run_id).await;
    let last = stream.rest().await.pop().unwrap();
    let last: Value = serde_json::from_str(&last.data).unwrap();
    assert_eq!(last["type"], "run.failed");
    assert_eq!(last["data"]["code"], "cancelled", "{last}");
    assert_eq!(last["source"], "runner", "it has ended by itself: {last}");
    assert_eq!(desk.client.run(&run_id).await["status"], "cancelled");
    desk.talker.left().await;
}

#[tokio::test]
async fn assistant_example_configuration_is_valid() {
    let directory = TempDirectory::new();
    let data = directory.file("runnel-data");
    std::fs::create_dir(&data).unwrap();
    let key = [Uuid::new_v4(), Uuid::new_v4()].map(|half| half.simple().to_string());
    std::fs::write(data.join("serve.key"), key.concat()).unwrap();
    std::fs::write(data.join("runner.secret"), SECRET).unwrap();
    // Its paths are relative to the file.
    let text = std::fs::read_to_string(repository_file("examples/python/assistant.toml"));
    let file = directory.write("assistant.toml", &text.unwrap());
    let mut check = Command::new(runnel());
    check
        .args(["check-config", "--config"])
        .arg(file)
        .env("OPENAI_API_KEY", "sk-of-a-test");
    run(&mut check).await.exited(0);
}
