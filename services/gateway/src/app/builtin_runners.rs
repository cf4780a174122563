//! Servers of `[builtin_runners]`, each on a loopback port of its own. The gateway reaches them over HTTP like any
//! other runner or tool server, with a secret of this process.

mod clock_server;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use protocol::admin::{DeltaMode, EndpointMode, EndpointSpec};
use protocol::manifest::AgentRunnerManifest;
use protocol::resources::{EffectSource, ToolEffect};
use runner_kit::{ResultStream, RunHandle, Runner};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Declared;
use crate::config::BuiltinRunner;
use clock::Clock;
use clock_server::{POST, Router, TOOL};
use egress::AllowRule;
use secrets::signature::SigningSecret;
use tools::{McpServerSpec, McpTransport, ToolEffects};

/// Timeout of a call of the built-in tool server.
const TOOL_TIMEOUT: Duration = Duration::from_mins(1);

/// HTTP servers on loopback ports. They run until `end`.
#[derive(Default)]
pub(crate) struct LoopbackServers {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl LoopbackServers {
    /// Serves runners. `secret`: the text `whsec_…` that signs their requests.
    pub(crate) async fn serve_runners(
        &self,
        name: &'static str,
        runners: Vec<Arc<dyn Runner>>,
        secret: &str,
    ) -> anyhow::Result<SocketAddr> {
        let router = runner_kit::router(runners, secret.parse()?);
        self.serve(name, router).await
    }

    async fn serve(&self, name: &'static str, router: Router) -> anyhow::Result<SocketAddr> {
        // Port 0 lets the system choose, so that several gateways can run on one machine.
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            if let Err(error) = runner_kit::serve(listener, router, stop).await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "the built-in server `{name}` stopped");
            }
        });
        Ok(address)
    }

    /// Tasks and their stop token, for further work that ends with the servers.
    #[cfg(feature = "harness")]
    pub(crate) fn tasks(&self) -> (&TaskTracker, CancellationToken) {
        (&self.tasks, self.stop.clone())
    }

    /// Stops all servers and waits for them.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// The servers of `[builtin_runners]`.
#[derive(Default)]
pub(crate) struct BuiltinServers {
    servers: LoopbackServers,
    addresses: Vec<SocketAddr>,
}

/// A runner in the process of the gateway. It ends with the gateway, so no run of it can be resumed.
struct InProcess(Arc<dyn Runner>);

impl Runner for InProcess {
    fn manifest(&self) -> AgentRunnerManifest {
        let mut manifest = self.0.manifest();
        manifest.capabilities.resumable = false;
        manifest
    }

    fn run(&self, run: RunHandle) -> ResultStream {
        self.0.run(run)
    }
}

impl BuiltinServers {
    /// Starts the servers and declares them as endpoints and tool servers.
    pub(crate) async fn start(
        enabled: &[BuiltinRunner],
        declared: &mut Declared,
    ) -> anyhow::Result<Self> {
        let mut builtin = Self::default();
        for server in enabled {
            let name = server.name();
            let address = match server {
                BuiltinRunner::Clock => {
                    let router = clock_server::router(Clock::system());
                    let address = builtin.servers.serve(name, router).await?;
                    declared.tools.servers.push(tool_server(name, address)?);
                    address
                }
                BuiltinRunner::LocalAgent => {
                    let id = local_agent::manifest::RUNNER_ID.parse()?;
                    let runner = local_agent::LocalAgent::runner(id);
                    builtin.serve_runner(name, runner, declared).await?
                }
                BuiltinRunner::ProtocolAgent => {
                    let runner = protocol_agent()?;
                    builtin.serve_runner(name, runner, declared).await?
                }
                BuiltinRunner::Echo => {
                    let runner = echo_runner::echo();
                    builtin.serve_runner(name, runner, declared).await?
                }
            };
            builtin.addresses.push(address);
        }
        Ok(builtin)
    }

    async fn serve_runner(
        &self,
        name: &'static str,
        runner: Arc<dyn Runner>,
        declared: &mut Declared,
    ) -> anyhow::Result<SocketAddr> {
        // A new secret for each start: both sides are in this process.
        let secret = SigningSecret::generate();
        let runners: Vec<Arc<dyn Runner>> = vec![Arc::new(InProcess(runner))];
        let served = self.servers.serve_runners(name, runners, &secret);
        let address = served.await?;
        declared.endpoints.push(EndpointSpec {
            name: name.to_owned(),
            base_url: format!("http://{address}"),
            mode: EndpointMode::Standard,
            delta_mode: DeltaMode::Increment,
            secret: Some(secret),
            headers: BTreeMap::new(),
            manifests: None,
            max_runs: None,
            replaces: None,
        });
        Ok(address)
    }

    /// Rules by which the gateway may reach the servers.
    pub(crate) fn rules(&self) -> impl Iterator<Item = AllowRule> {
        self.addresses.iter().copied().map(AllowRule::Address)
    }

    /// Stops all servers and waits for them.
    pub(crate) async fn end(self) {
        self.servers.end().await;
    }
}

#[cfg(feature = "graph")]
fn protocol_agent() -> anyhow::Result<Arc<dyn Runner>> {
    let id = protocol_agent::manifest::RUNNER_ID.parse()?;
    Ok(protocol_agent::ProtocolAgent::runner(id))
}

/// The configuration refuses the setting of such a build.
#[cfg(not(feature = "graph"))]
fn protocol_agent() -> anyhow::Result<Arc<dyn Runner>> {
    anyhow::bail!("this build has no protocol agent; add the feature `graph`")
}

fn tool_server(name: &str, address: SocketAddr) -> anyhow::Result<McpServerSpec> {
    let effects = [(TOOL, ToolEffect::Read), (POST, ToolEffect::Irreversible)];
    let facts = effects.map(|(tool, effect)| {
        let effects = ToolEffects::of(Some(effect), None, EffectSource::Operator);
        (tool.to_owned(), effects)
    });
    Ok(McpServerSpec {
        name: name.to_owned(),
        transport: McpTransport::Http {
            url: format!("http://{address}/mcp").parse()?,
            headers: HeaderMap::new(),
        },
        tools: None,
        prefix: String::new(),
        facts: BTreeMap::from(facts),
        reconcile: BTreeMap::new(),
        timeout: TOOL_TIMEOUT,
        on_behalf_of: None,
    })
}
