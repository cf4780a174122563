//! A gateway with a stub runner and a client, and the outcome of a run.

use std::ops::Deref;

use reqwest::Method;
use serde_json::Value;
use uuid::Uuid;

use super::Sqlite;
use super::client::{ApiResponse, Client, message, send};
use super::database::Engine;
use super::gateway::{Config, GatewayProcess};
use super::ledger::Ledger;
use super::runner::StubRunner;
use super::script::{Run, ScriptStep};
use super::shared::{SharedGateway, TestWorkspace};

/// A runner, and clients of its workspace. Other tests may share the gateway.
pub struct Stage {
    /// Workspace id.
    pub workspace: String,
    pub client: Client,
    pub admin: Client,
    pub runner: StubRunner,
    _keeps: OwnedResources,
}

/// Gateway or workspace owned by the stage, if any.
enum OwnedResources {
    Nothing,
    GatewayProcess { _one: Box<GatewayProcess> },
    TestWorkspace { _one: TestWorkspace },
}

/// A stage with its own gateway, for tests that kill, stop, pause or inspect it.
pub struct OwnStage {
    pub stage: Stage,
    pub gateway: GatewayProcess,
}

impl Deref for OwnStage {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl OwnStage {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(configure: impl FnOnce(&mut Config)) -> Self {
        Self::on(Sqlite, configure)
            .await
            .expect("SQLite is always at hand")
    }

    /// Returns `None` if the engine is not available.
    pub async fn on(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<Self> {
        Self::of(engine, StubRunner::start().await, configure).await
    }

    pub async fn of(
        engine: Engine,
        runner: StubRunner,
        configure: impl FnOnce(&mut Config),
    ) -> Option<Self> {
        let mut config = Config::new(&runner);
        configure(&mut config);
        let gateway = GatewayProcess::start(engine, config).await?;
        let stage = Stage {
            workspace: "default".to_owned(),
            client: gateway.client(),
            admin: gateway.admin(),
            runner,
            _keeps: OwnedResources::Nothing,
        };
        Some(Self { stage, gateway })
    }
}

pub struct VerifiedOutcome {
    pub run: Value,
    pub ledger: Ledger,
    pub rejections: Vec<Value>,
}

impl Stage {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(configure: impl FnOnce(&mut Config)) -> Self {
        Self::on(Sqlite, configure)
            .await
            .expect("SQLite is always at hand")
    }

    /// Returns `None` if the engine is not available.
    pub async fn on(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<Self> {
        Self::of(engine, StubRunner::start().await, configure).await
    }

    pub async fn of(
        engine: Engine,
        runner: StubRunner,
        configure: impl FnOnce(&mut Config),
    ) -> Option<Self> {
        let mut config = Config::new(&runner);
        configure(&mut config);
        if config.is_default_except_agents() {
            let workspace = SharedGateway::of(engine).await?.workspace().await;
            workspace.enter(&config).await;
            return Some(Self {
                workspace: workspace.id.clone(),
                client: workspace.client.clone(),
                admin: workspace.admin.clone(),
                runner,
                _keeps: OwnedResources::TestWorkspace { _one: workspace },
            });
        }
        let gateway = GatewayProcess::start(engine, config).await?;
        Some(Self {
            workspace: "default".to_owned(),
            client: gateway.client(),
            admin: gateway.admin(),
            runner,
            _keeps: OwnedResources::GatewayProcess {
                _one: Box::new(gateway),
            },
        })
    }

    /// A host API client with the token of this run, at the address of the gateway.
    pub async fn host_of(&self, run_id: &str) -> Client {
        let run_request = self.runner.run_request(run_id).await.json();
        let token = run_request["host"]["token"].as_str().unwrap();
        Client::new(&format!("{}/host/v1", self.client.url), token)
    }

    /// Starts a run that the runner answers with `script`.
    pub async fn start(
        &self,
        script: impl Fn(&Run) -> Vec<ScriptStep> + Send + Sync + 'static,
    ) -> String {
        let event_id = Uuid::new_v4().to_string();
        self.runner.answer(&event_id, script);
        self.client.post(&message(&event_id)).await.run_id()
    }

    pub async fn play(
        &self,
        script: impl Fn(&Run) -> Vec<ScriptStep> + Send + Sync + 'static,
    ) -> VerifiedOutcome {
        let run_id = self.start(script).await;
        self.outcome(&run_id).await
    }

    /// The result of `/readyz`: `ok`, or the reason why the gateway is not ready.
    pub async fn readiness(&self) -> String {
        let readiness = send(self.client.anonymous(Method::GET, "/readyz"));
        let ApiResponse { status, body, .. } = readiness.await.unwrap();
        assert_eq!(status == 200, body["status"] == "ok", "{body}");
        body["status"].as_str().expect("a status").to_owned()
    }

    /// Waits until the run ends. Asserts that event page, stream and run agree.
    pub async fn outcome(&self, run_id: &str) -> VerifiedOutcome {
        let frames = self.client.follow(run_id, 0).await.rest().await;
        let run = self.client.run(run_id).await;
        let ledger = self.client.ledger(run_id).await;
        let streamed: Vec<_> = frames.into_iter().map(|frame| frame.data).collect();
        assert_eq!(streamed, ledger.0);
        ledger.assert_valid(run_id);
        assert!(ledger.is_ended(), "{ledger:?}");
        assert_eq!(run["last_sequence"], ledger.0.len());
        VerifiedOutcome {
            run,
            ledger,
            rejections: self.client.rejections(run_id).await,
        }
    }
}

/// Status of a run and, unless completed, its error code: `failed runner.unreachable`.
pub fn ending_of(run: &Value) -> String {
    let status = run["status"].as_str().unwrap();
    match run["error"]["code"].as_str() {
        Some(code) => format!("{status} {code}"),
        None => status.to_owned(),
    }
}

impl VerifiedOutcome {
    /// The status and, unless completed, the error code: `failed runner.unreachable`.
    pub fn ending(&self) -> String {
        ending_of(&self.run)
    }

    #[track_caller]
    pub fn assert(&self, ending: &str, types: &[&str]) {
        let outcome = (self.ending(), self.ledger.types());
        let expected = (
            ending.to_owned(),
            types.iter().map(ToString::to_string).collect(),
        );
        assert_eq!(outcome, expected, "rejected: {:?}", self.rejections);
    }

    #[track_caller]
    pub fn assert_rejected(&self, reasons: &[&str]) {
        let events: Vec<_> = self
            .rejections
            .iter()
            .map(|row| row["reason"].as_str())
            .collect();
        let expected: Vec<_> = reasons.iter().copied().map(Some).collect();
        assert_eq!(events, expected);
        assert_eq!(self.run["metadata"]["rejected"], reasons.len());
    }
}
