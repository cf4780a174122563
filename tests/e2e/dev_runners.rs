//! `runnel dev --runner URL`: a runner of one's own in the playground.

use std::sync::Arc;

use protocol::id::RunnerId;
use protocol::manifest::{AgentRunnerManifest, I18n, Permissions};
use protocol::resources::{HistoryOperation, ModelOperation};
use runner_kit::{CancellationToken, ResultStream, RunHandle, Runner, SigningSecret, results};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::dev::sending;
use crate::support::playground::Playground;
use crate::support::runner::{SECRET, StubRunner};
use crate::support::{TempDirectory, run};

const OTHER_SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// A runner that answers with its name and the text of the event.
struct Repeater {
    id: RunnerId,
    permissions: Permissions,
}

impl Runner for Repeater {
    fn manifest(&self) -> AgentRunnerManifest {
        let label = I18n::from([("en_US".to_owned(), "Repeater".to_owned())]);
        AgentRunnerManifest {
            permissions: self.permissions.clone(),
            ..AgentRunnerManifest::new(self.id.clone(), label)
        }
    }

    fn run(&self, run: RunHandle) -> ResultStream {
        let text = run.context.input.text.clone().unwrap_or_default();
        let answer = format!("{}: {text}", self.id);
        runner_kit::stream(|out| async move {
            out.send(results::completed(answer)).await;
            Ok(())
        })
    }
}

/// A served runner.
struct Served {
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

impl Served {
    /// Serves a runner that asks for models and history at this address.
    async fn start(address: &str, id: &str, secret: &str) -> Self {
        let runner: Arc<dyn Runner> = Arc::new(Repeater {
            id: id.parse().unwrap(),
            permissions: Permissions {
                models: vec![ModelOperation::Stream],
                history: vec![HistoryOperation::Page],
                ..Permissions::default()
            },
        });
        let secret: SigningSecret = secret.parse().unwrap();
        let router = runner_kit::router(vec![runner], secret);
        let listener = TcpListener::bind(address).await.unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(runner_kit::serve(listener, router, stop.clone()));
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// An address that nothing listens at.
async fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

fn secret(playground: &Playground) -> String {
    let line = playground.line("         export RUNNER_SECRET=");
    line.unwrap().to_owned()
}

async fn answer(directory: &TempDirectory, arguments: &[&str]) -> String {
    let printed = run(&mut sending(&directory.file(""), arguments)).await;
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    printed.stdout
}

#[tokio::test]
async fn own_runner_is_bound_once_it_is_up() {
    let directory = TempDirectory::new();
    let address = free_address().await;
    let url = format!("http://{address}");
    let data = directory.file("runnel-data");
    let playground = Playground::start_with(&data, &["--runner", &url], &[]).await;
    let expected = format!("{url}, start it with this secret:");
    assert_eq!(playground.line("runner "), Some(expected.as_str()));
    playground
        .logged(&format!("{url} is not up yet, waiting for it"))
        .await;
    let hello = answer(&directory, &["What is Runnel?"]).await;
    assert!(hello.starts_with("My notes say:"), "{hello}");

    let served = Served::start(&address, "plugin:acme/fast/default", &secret(&playground)).await;
    let line = playground.logged(&format!("fast at {url} is up; ")).await;
    assert!(line.ends_with("try: runnel send \"Hello\""), "{line}");
    let granted = playground.logged("fast may use ").await;
    let unasked = playground.logged("fast could ask for ").await;
    for right in ["history page", "model script"] {
        assert!(granted.contains(right), "{granted}");
    }
    for kind in ["knowledge base", "tool", "storage"] {
        assert!(
            unasked.contains(kind) && !granted.contains(kind),
            "{kind}: {granted}, {unasked}"
        );
    }
    assert_eq!(
        answer(&directory, &["Hi"]).await,
        "plugin:acme/fast/default: Hi\n"
    );
    let line = playground.logged("fast ✓").await;
    assert!(line.ends_with(" s \"Hi\""), "{line}");

    served.stop().await;
    playground
        .logged(&format!("{url} is down, waiting for it"))
        .await;
}

#[tokio::test]
async fn own_runner_keeps_secret_and_agent_over_restarts() {
    let directory = TempDirectory::new();
    let address = free_address().await;
    let url = format!("http://{address}");
    let data = directory.file("runnel-data");
    let arguments = ["--runner", url.as_str()];
    let first = Playground::start_with(&data, &arguments, &[]).await;
    let given = secret(&first);
    let served = Served::start(&address, "plugin:acme/fast/default", &given).await;
    first.logged("is up; ").await;
    first.stop().await;

    let second = Playground::start_with(&data, &arguments, &[]).await;
    assert_eq!(secret(&second), given);
    assert_eq!(
        second.line("agent "),
        Some("fast → plugin:acme/fast/default")
    );
    assert_eq!(
        answer(&directory, &["Hi"]).await,
        "plugin:acme/fast/default: Hi\n"
    );
    assert!(!second.log().contains("WARN"), "{}", second.log());
    second.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn changed_manifest_binds_the_new_runner() {
    let directory = TempDirectory::new();
    let address = free_address().await;
    let url = format!("http://{address}");
    let data = directory.file("runnel-data");
    let playground = Playground::start_with(&data, &["--runner", &url], &[]).await;
    let secret = secret(&playground);
    let served = Served::start(&address, "plugin:acme/fast/default", &secret).await;
    playground.logged("fast at ").await;
    served.stop().await;

    let served = Served::start(&address, "plugin:acme/better/default", &secret).await;
    playground.logged("better at ").await;
    assert_eq!(
        answer(&directory, &["Hi"]).await,
        "plugin:acme/better/default: Hi\n"
    );
    let agents = playground.client().get("/v1/agents").await.body;
    let agents = agents["items"].as_array().unwrap();
    let fast = agents.iter().find(|agent| agent["name"] == "fast").unwrap();
    assert_eq!(fast["enabled"], false, "{fast}");
    served.stop().await;
}

#[tokio::test]
async fn mistyped_permissions_are_reported_with_the_meant_word() {
    let directory = TempDirectory::new();
    let id = "plugin:acme/fast/default";
    let runner = StubRunner::start_as(json!({
        "id": id, "name": "default", "label": {"en_US": "Fast"},
        "permissions": {"models": ["streem"], "knowledge_base": ["retrieve"]},
    }))
    .await;
    let arguments = ["--runner", runner.url.as_str(), "--verbose"];
    let data = directory.file("runnel-data");
    let playground = Playground::start_with(&data, &arguments, &[("RUNNER_SECRET", SECRET)]).await;
    let url = runner.url.trim_end_matches('/');
    for fault in [
        "/permissions/models/0 unknown name \"streem\", dropped; did you mean stream?",
        "/permissions/knowledge_base unknown permission \"knowledge_base\", dropped; did you mean knowledge_bases?",
    ] {
        playground.logged(&format!("{url}: manifest {fault}")).await;
        let fault = fault.replacen(' ', ": ", 1);
        let warning = playground
            .logged(&format!("manifest of {id}: {fault}"))
            .await;
        assert!(warning.contains("WARN"), "{warning}");
    }
    playground.stop().await;
}

#[tokio::test]
async fn wrong_secret_of_own_runner_is_explained() {
    let directory = TempDirectory::new();
    let address = free_address().await;
    let served = Served::start(&address, "plugin:acme/fast/default", OTHER_SECRET).await;
    let url = format!("http://{address}");
    let data = directory.file("runnel-data");
    let playground = Playground::start_with(&data, &["--runner", &url], &[]).await;
    let line = playground.logged("HTTP 401").await;
    assert!(
        line.ends_with("start it with the RUNNER_SECRET of this playground"),
        "{line}"
    );
    served.stop().await;
}

#[tokio::test]
async fn single_runner_has_the_secret_of_the_environment() {
    let directory = TempDirectory::new();
    let address = free_address().await;
    let url = format!("http://{address}");
    let served = Served::start(&address, "plugin:acme/fast/default", OTHER_SECRET).await;
    let data = directory.file("runnel-data");
    let variables = [("RUNNER_SECRET", OTHER_SECRET)];
    let playground = Playground::start_with(&data, &["--runner", &url], &variables).await;
    let expected = format!("{url}, its secret is RUNNER_SECRET of this environment");
    assert_eq!(playground.line("runner "), Some(expected.as_str()));
    playground.logged("fast at ").await;
    assert!(!data.join("runner.secret").exists());
    playground.stop().await;
    served.stop().await;

    let several = [
        "--runner",
        "http://127.0.0.1:1",
        "--runner",
        "http://127.0.0.1:2",
    ];
    let playground = Playground::start_with(&data, &several, &variables).await;
    assert_ne!(secret(&playground), OTHER_SECRET);
    let note = playground.line("note ").unwrap();
    assert_starts_with!(note, "RUNNER_SECRET of this environment is not used");
    playground.stop().await;
}
