//! A gateway, the connectors service, and an agent on a fake platform.

use std::ops::Deref;

use serde_json::{Value, json};
use tokio::process::Command;

use super::Sqlite;
use super::client::Client;
use super::gateway::{Config, GatewayProcess};
use super::listening::ChildServer;
use super::programs::runnel_connectors;
use super::runner::SECRET;
use super::upstream::Upstream;

/// API key of the platform; only the connectors have this variable.
pub const PLATFORM_KEY: (&str, &str) = ("CONNECTOR_DIFY", "app-key-of-the-platform");

/// A gateway with one agent on a platform, and the connectors service, which is killed on drop.
pub struct ConnectedAgent {
    pub client: Client,
    _gateway: GatewayProcess,
    _service: ChildServer,
}

impl ConnectedAgent {
    /// Starts an agent of `runner` (for example `dify-agent`) with the TOML lines `config`.
    pub async fn open(runner: &str, config: &str) -> Self {
        let service = connectors_for(config).await;
        let mut gateway = Config::for_runner_at(&service.url);
        gateway.agents.clear();
        gateway.rest = format!(
            "[[agents]]\nname = \"connected\"\nevent_types = [\"message.received\"]\nscope = {{ kind = \"global\" }}\n\
             runner_id = \"plugin:runnel/{runner}/default\"\nconcurrency = \"enqueue\"\n\
             resource_policy = {{ history = [\"page\"] }}\n\
             state_policy = {{ enabled = true, scopes = [\"conversation\"] }}\n\
             delivery_policy = {{ interactions = true }}\n\
             [agents.config]\n{config}\n"
        );
        let gateway = GatewayProcess::start(Sqlite, gateway).await;
        let gateway = gateway.expect("SQLite is always at hand");
        Self {
            client: gateway.client(),
            _gateway: gateway,
            _service: service,
        }
    }

    /// Posts a message in conversation `c` from a client that shows interactions. Returns the run id.
    pub async fn post(&self, text: &str) -> String {
        let event = json!({
            "event_type": "message.received", "input": {"text": text},
            "conversation": {"conversation_id": "c"}, "actor": {"actor_type": "user", "actor_id": "u-1"},
            "delivery": {"surface": "test", "supports_streaming": true, "interactions":
                {"field_types": ["text", "textarea", "select"], "action_styles": ["default", "primary"]}},
        });
        self.client.post(&event).await.run_id()
    }

    /// Posts a message and returns the finished run.
    pub async fn ended(&self, text: &str) -> Value {
        let run = self.post(text).await;
        self.client.finished(&run).await
    }

    /// The results of a run that have type `kind`.
    pub async fn results(&self, run: &str, kind: &str) -> Vec<Value> {
        self.client.ledger(run).await.of_type(kind)
    }
}

/// An agent on a fake Dify platform.
pub struct DifyFixture {
    agent: ConnectedAgent,
    pub platform: Upstream,
}

impl DifyFixture {
    /// Starts it; `config` adds members to the agent's configuration.
    pub async fn open(config: &str) -> Self {
        let platform = Upstream::start().await;
        let config = format!(
            "base-url = \"{}/v1\"\napp-type = \"chat\"\n{config}",
            platform.url
        );
        Self {
            agent: ConnectedAgent::open("dify-agent", &config).await,
            platform,
        }
    }
}

impl Deref for DifyFixture {
    type Target = ConnectedAgent;

    fn deref(&self) -> &ConnectedAgent {
        &self.agent
    }
}

/// Starts the connectors service. The key may go to the platform of this configuration.
async fn connectors_for(config: &str) -> ChildServer {
    let platform = config.split("http://").nth(1).unwrap_or_default();
    let platform = platform.split(['/', '"']).next().unwrap_or_default();
    let (name, value) = PLATFORM_KEY;
    let variables = [(name, value), ("CONNECTOR_DIFY_HOSTS", platform)];
    connectors_with(
        &[],
        &variables.map(|(name, value)| (name.to_owned(), value.to_owned())),
    )
    .await
}

/// Starts the connectors service with loopback targets allowed and these extra arguments.
pub async fn connectors(arguments: &[&str]) -> ChildServer {
    let (name, value) = PLATFORM_KEY;
    connectors_with(arguments, &[(name.to_owned(), value.to_owned())]).await
}

/// Like `connectors`, with these environment variables.
pub async fn connectors_with(arguments: &[&str], variables: &[(String, String)]) -> ChildServer {
    let mut command = Command::new(runnel_connectors());
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--allow", "127.0.0.0/8"])
        .args(arguments)
        .env("RUNNEL_CONNECTORS_SECRET", SECRET)
        .envs(variables.iter().cloned());
    ChildServer::spawn(&mut command).await.unwrap()
}
