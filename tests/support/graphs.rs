//! A gateway with the protocol agent, a scripted model, and tools.

use serde_json::{Value, json};
use tokio::process::Command;

use super::client::Client;
use super::gateway::{Config, GatewayProcess};
use super::listening::ChildServer;
use super::programs::protocol_agent;
use super::runner::SECRET;
use super::tool_server::ToolServer;
use super::upstream::{Upstream, UpstreamReply};
use super::{Engine, until};

/// Two agents on the protocol agent: `main` takes messages, `helper` runs child runs. Tool `look` reads, `post`
/// publishes.
pub struct GraphFixture {
    pub client: Client,
    pub model: Upstream,
    pub tools: ToolServer,
    _gateway: GatewayProcess,
    service: ChildServer,
}

impl GraphFixture {
    /// Returns `None` if the engine is not available.
    pub async fn open(engine: Engine) -> Option<Self> {
        let model = Upstream::start().await;
        let tools = ToolServer::start().await;
        let service = service("127.0.0.1:0").await;
        let mut config = Config::for_runner_at(&service.url);
        config.agents.clear();
        config.rest = format!(
            "{main}{helper}[[model_providers]]\nname = \"played\"\nkind = \"openai\"\nbase_url = \"{model}/v1\"\n\
             [[models]]\nmodel_id = \"played\"\nprovider = \"played\"\n{look}{slow}{post}",
            main = agent(
                "main",
                "message.received",
                "agents = [\"helper\"]\n",
                "tools = [\"look\", \"slow\", \"post\"]"
            ),
            helper = agent("helper", "never.sent", "", "tools = [\"look\", \"post\"]"),
            model = model.url,
            look = tool("look", &format!("{}/echo", tools.url), "read"),
            slow = tool("slow", &format!("{}/slow", tools.url), "read"),
            post = tool("post", &format!("{}/echo/post", tools.url), "irreversible"),
        );
        let gateway = GatewayProcess::start(engine, config).await?;
        Some(Self {
            client: gateway.client(),
            model,
            tools,
            _gateway: gateway,
            service,
        })
    }

    /// Kills the service and restarts it at the same address.
    pub async fn restart_service(&mut self) {
        let address = self.service.url.trim_start_matches("http://").to_owned();
        self.service.kill().await;
        self.service = service(&address).await;
    }

    /// Posts a message in conversation `c` from a client that shows interactions. Returns the run id.
    pub async fn post(&self, text: &str) -> String {
        self.post_as("u-1", text).await
    }

    /// Like `post`, as this user.
    pub async fn post_as(&self, user: &str, text: &str) -> String {
        let event = json!({
            "event_type": "message.received", "input": {"text": text},
            "conversation": {"conversation_id": "c"}, "actor": {"actor_type": "user", "actor_id": user},
            "delivery": {"surface": "test", "supports_streaming": true, "interactions":
                {"field_types": ["text", "select"], "action_styles": ["default", "primary", "danger"]}},
        });
        self.client.post(&event).await.run_id()
    }

    /// Queues a model output that declares these calls.
    pub fn declares(&self, calls: &Value) {
        self.model.reply(output(
            &json!({"kind": "act", "message": "I work.", "calls": calls}),
        ));
    }

    /// Queues a model output with a final answer.
    pub fn answers(&self, text: &str) {
        self.model
            .reply(output(&json!({"kind": "answer", "message": text})));
    }

    /// The results of a run that have type `kind`.
    pub async fn results(&self, run: &str, kind: &str) -> Vec<Value> {
        self.client.ledger(run).await.of_type(kind)
    }

    /// Submits `action` to the only open interaction of a run. Returns the id of the run that continues.
    pub async fn take_action(&self, run: &str, action: &str) -> String {
        let path = format!("/v1/interactions?run_id={run}&status=open");
        let mut question = Value::Null;
        until("the question", async || {
            question = self.client.get(&path).await.body["items"][0].clone();
            !question.is_null()
        })
        .await;
        let id = question["id"].as_str().unwrap();
        let interaction_id = &question["request"]["interaction_id"];
        let body = json!({"interaction_id": interaction_id, "action_id": action, "values": {}});
        let path = format!("/v1/interactions/{id}/submit");
        self.client.create(&path, &body).await.run_id()
    }

    /// The user messages of the newest model request, as JSON texts.
    pub fn shown(&self) -> String {
        let requests = self.model.requests();
        let messages = requests.last().unwrap().body["messages"]
            .as_array()
            .unwrap();
        let users = messages.iter().filter(|message| message["role"] == "user");
        let texts: Vec<_> = users
            .map(|message| message["content"].to_string())
            .collect();
        texts.join("\n")
    }
}

async fn service(listen: &str) -> ChildServer {
    let mut command = Command::new(protocol_agent());
    command
        .args(["--listen", listen])
        .env("PROTOCOL_AGENT_SECRET", SECRET);
    ChildServer::spawn(&mut command).await.unwrap()
}

fn agent(name: &str, events: &str, more: &str, tools: &str) -> String {
    format!(
        "[[agents]]\nname = \"{name}\"\nevent_types = [\"{events}\"]\nscope = {{ kind = \"global\" }}\n\
         runner_id = \"plugin:runnel/protocol-agent/default\"\nconcurrency = \"enqueue\"\n\
         state_policy = {{ enabled = true, scopes = [\"conversation\"] }}\ndelivery_policy = {{ interactions = true }}\n\
         [agents.resource_policy]\nmodels = [\"played\"]\nhistory = [\"page\"]\n{tools}\n{more}\
         [agents.config]\nmodel = {{ primary = \"played\", fallbacks = [] }}\nprotocol-enabled = true\n\
         effects = {{ post = {{ effects = [\"publish\"] }} }}\n"
    )
}

fn tool(name: &str, url: &str, effect: &str) -> String {
    format!(
        "[[tools]]\ntool_name = \"{name}\"\nurl = \"{url}\"\neffect = \"{effect}\"\ndescription = \"Does {name}.\"\n\
         parameters = {{ type = \"object\", properties = {{ text = {{ type = \"string\" }} }} }}\n"
    )
}

/// A model output: one streamed call of the carrier function.
fn output(arguments: &Value) -> UpstreamReply {
    let chunk = |delta: Value, reason: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        format!(
            "data: {}",
            json!({"id": "x", "model": "played", "choices": [choice]})
        )
    };
    let function = json!({"name": "AgentProtocolOutput", "arguments": arguments.to_string()});
    let call = json!({"index": 0, "id": "c-1", "type": "function", "function": function});
    UpstreamReply::Events(vec![
        chunk(
            json!({"role": "assistant", "tool_calls": [call]}),
            Value::Null,
        ),
        chunk(json!({}), json!("tool_calls")),
        "data: [DONE]".to_owned(),
    ])
}
