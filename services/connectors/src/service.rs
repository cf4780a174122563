//! The platforms as runners.

use std::sync::Arc;

use egress::Egress;
use protocol::id::RunnerId;
use protocol::manifest::AgentRunnerManifest;
use runner_kit::{ResultSender, ResultStream, RunError, RunHandle, Runner, stream};

use crate::catalogue::{PLATFORMS, Platform};
use crate::driver::{GatewayHost, StopCause, deadline_of, drive, open};
use crate::upstream::config::SecretSource;

/// Parts that all runners of a process share.
#[derive(Clone)]
pub struct ConnectorService {
    pub egress: Egress,
    pub secrets: SecretSource,
}

/// The runner ids that are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedIds {
    /// Only `plugin:runnel/{name}/default`.
    Own,
    /// The ids of LangBot's runners as well.
    LangBot,
}

struct Connector {
    service: Arc<ConnectorService>,
    platform: &'static Platform,
    id: RunnerId,
}

impl ConnectorService {
    /// One runner for each id of each platform.
    pub fn runners(self, ids: ServedIds) -> Vec<Arc<dyn Runner>> {
        let service = Arc::new(self);
        let offered = PLATFORMS.iter().flat_map(|platform| {
            let legacy = match ids {
                ServedIds::Own => &[],
                ServedIds::LangBot => platform.legacy,
            };
            let legacy = legacy
                .iter()
                .map(|id| id.parse().expect("the catalogue has runner ids"));
            let ids = std::iter::once(platform.id()).chain(legacy);
            ids.map(move |id| (platform, id))
        });
        let runner = |(platform, id)| -> Arc<dyn Runner> {
            let service = Arc::clone(&service);
            Arc::new(Connector {
                service,
                platform,
                id,
            })
        };
        offered.map(runner).collect()
    }
}

impl Runner for Connector {
    fn manifest(&self) -> AgentRunnerManifest {
        self.platform.manifest(self.id.clone())
    }

    fn run(&self, run: RunHandle) -> ResultStream {
        let (service, platform) = (Arc::clone(&self.service), self.platform);
        stream(move |out| execute(service, platform, run, out))
    }
}

async fn execute(
    service: Arc<ConnectorService>,
    platform: &'static Platform,
    run: RunHandle,
    out: ResultSender,
) -> Result<(), RunError> {
    // Opening reads files from the gateway, so a cancelled run must not wait for it.
    let opened = run.until_cancelled(open(platform, &run, &service.secrets));
    let session = match opened.await? {
        Ok(session) => session,
        Err(failure) => {
            // A failed open is a failed run, not an error of the service.
            out.send(failure.into_result(platform.prefix)).await;
            return Ok(());
        }
    };
    let stop = StopCause {
        cancel: run.cancel.clone(),
        deadline: run.context.runtime.deadline_at.map(deadline_of),
    };
    let mut gateway = GatewayHost::of(&run.context, run.host, out);
    drive(
        session,
        platform.prefix,
        &mut gateway,
        &service.egress,
        &stop,
    )
    .await;
    Ok(())
}
