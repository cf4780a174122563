//! State that the services of runs share.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use domain::authorization::ResourceCatalog;
use domain::budget::BudgetReached;
use domain::manifest::resume_window;
use domain::run::Run;
use egress::Egress;
use protocol::id::{RunId, WorkspaceId};
use protocol::manifest::AgentRunnerManifest;
use protocol::principal::Principal;
use store::{ChangeStamp, OwnerLock, RunWaits, Store, StoreError};
use tokio::sync::Mutex as AsyncMutex;

use crate::breakers::Breakers;
use crate::budget_cache::BudgetCache;
use crate::bus::{Bus, Notification};
use crate::call_limits::CallLimits;
use crate::ended_runs::EndedRuns;
use crate::endpoint_cache::EndpointCache;
use crate::feed::Change;
use crate::grant::Grant;
use crate::hooks::Hooks;
use crate::ledger::LedgerWriter;
use crate::lifecycle::Lifecycle;
use crate::limits::RunLimits;
use crate::live::LiveRegistry;
use crate::notifier::Notifier;
use crate::own_limits::OwnLimiters;
use crate::parts::RunParts;
use crate::pause_board::PauseBoard;
use crate::rate::EventRates;
use blob_store::ArtifactStore;
use clock::Clock;
use keys::keyring::Keyring;
use runner_client::RunnerClient;
use secrets::seal::MasterKey;
use telemetry::spans::Spans;

/// Timeout for the read of a run's waits.
const WAITS_TIMEOUT: Duration = Duration::from_millis(500);

/// Parts and shared state of the runs of this process. Each service holds it in an `Arc`.
pub(crate) struct RunDeps {
    pub(super) store: Store,
    pub(super) bus: Box<dyn Bus>,
    pub(super) clock: Clock,
    pub(super) egress: Egress,
    pub(super) client: RunnerClient,
    pub(super) keys: Arc<Keyring>,
    pub(super) master_key: Arc<MasterKey>,
    pub(super) catalog: Arc<ArcSwap<ResourceCatalog>>,
    pub(super) spans: Spans,
    pub(super) budgets: BudgetCache,
    pub(super) blobs: ArtifactStore,
    pub(super) limits: RunLimits,
    /// Name of this process in leases.
    pub(super) owner: String,
    /// Held until the process ends, also after its background work.
    pub(super) owner_lock: AsyncMutex<Option<OwnerLock>>,
    pub(super) lifecycle: Lifecycle,
    pub(super) live: Arc<LiveRegistry>,
    pub(super) notifier: Arc<Notifier>,
    pub(super) breakers: Breakers,
    pub(super) ended: EndedRuns,
    pub(super) ledger: LedgerWriter,
    pub(super) calls: CallLimits,
    pub(super) rates: EventRates,
    pub(super) own_limits: OwnLimiters,
    pub(super) endpoint_cache: EndpointCache,
    pub(super) pauses: PauseBoard,
    pub(super) hooks: Arc<Hooks>,
}

impl RunDeps {
    pub(super) fn new(parts: RunParts) -> Self {
        let notifier = Arc::<Notifier>::default();
        Self {
            lifecycle: Lifecycle::new(),
            live: Arc::default(),
            notifier: Arc::clone(&notifier),
            breakers: Breakers::new(parts.limits.breaker),
            ended: EndedRuns::default(),
            ledger: LedgerWriter {
                store: parts.store.clone(),
                notifier,
                lease: parts.limits.lease,
            },
            calls: CallLimits::default(),
            rates: EventRates::new(parts.limits.workspace_events),
            own_limits: OwnLimiters::default(),
            pauses: PauseBoard::default(),
            hooks: Arc::new(Hooks::new(parts.egress.clone(), parts.clock)),
            endpoint_cache: EndpointCache::new(Arc::clone(&parts.master_key)),
            store: parts.store,
            bus: parts.bus,
            clock: parts.clock,
            egress: parts.egress,
            client: parts.client,
            keys: parts.keys,
            master_key: parts.master_key,
            catalog: parts.catalog,
            spans: parts.spans,
            budgets: BudgetCache::new(parts.budgets),
            blobs: parts.artifacts,
            limits: parts.limits,
            owner: parts.owner,
            owner_lock: AsyncMutex::new(parts.owner_lock),
        }
    }

    /// Author and time of a change that begins now.
    pub(super) fn stamp(&self, by: impl Into<Principal>) -> ChangeStamp {
        ChangeStamp {
            master_key: Some(Arc::clone(&self.master_key)),
            ..ChangeStamp::of(by, self.clock.now_ms())
        }
    }

    /// Runs a task of the process until live runs must end.
    pub(super) async fn until_closing(&self, task: impl Future) {
        // Boxed, because this future would hold the task twice: as an argument and while it is awaited.
        let task = Box::pin(task);
        self.lifecycle.closing.run_until_cancelled(task).await;
    }

    pub(super) async fn find_run(
        &self,
        workspace: &WorkspaceId,
        id: RunId,
    ) -> Result<Option<Run>, StoreError> {
        self.store.runs().find_run(workspace, id).await
    }

    /// The current manifest of the runner of a run. `None`: it is not listed any more.
    pub(super) async fn find_manifest(
        &self,
        run: &Run,
    ) -> Result<Option<AgentRunnerManifest>, StoreError> {
        let endpoints = self.store.endpoints();
        let runner = endpoints
            .find_runner(&run.workspace, &run.runner_id)
            .await?;
        Ok(runner.and_then(|runner| serde_json::from_str(&runner.manifest).ok()))
    }

    /// True when the runner of a run works on after a lost connection.
    pub(super) async fn is_resumable(&self, run: &Run) -> Result<bool, StoreError> {
        let manifest = self.find_manifest(run).await?;
        Ok(manifest.as_ref().and_then(resume_window).is_some())
    }

    /// Deadline of a run with its waits for budgets, and whether it waits now. `None`: no answer within
    /// [`WAITS_TIMEOUT`], or no such run.
    pub(super) async fn waits_of(&self, run: RunId) -> Option<RunWaits> {
        let reading = async {
            let now = self.clock.now_ms();
            self.store.interactions().waits_of_run(run, now).await
        };
        // An outage extends no deadline, and must not hang what needs none.
        let read = tokio::time::timeout(WAITS_TIMEOUT, reading).await;
        read.ok()?.ok()?
    }

    /// Reads the deadline of a run again, because waits for budgets extend it.
    pub(super) async fn refresh_deadline(&self, grant: &Grant) {
        if let Some(waits) = self.waits_of(grant.run.id).await {
            grant.extend_deadline(waits.deadline_at);
        }
    }

    /// Longest wait of a run of this workspace for its budgets, in milliseconds; 0 if none pauses.
    pub(super) async fn max_wait_of(&self, workspace: &WorkspaceId) -> i64 {
        let budgets = self.budgets.get(&self.store, workspace).await;
        let waits = budgets.iter().flat_map(|budgets| budgets.iter());
        let waits = waits.map(|one| match one.budget.reached {
            BudgetReached::Refuse => 0,
            BudgetReached::Pause { max_wait_ms } => max_wait_ms,
        });
        waits.sum()
    }

    /// Time until `at`, in epoch milliseconds; zero if it is over.
    pub(super) fn time_until(&self, at: i64) -> Duration {
        let left = at - self.clock.now_ms();
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }

    /// Signals a stored cancel request to the process that drives the run: wakes its task here, else notifies the
    /// other replicas. `at`: epoch milliseconds.
    pub(super) fn send_cancel(&self, run: RunId, at: i64) {
        if let Some(live) = self.live.get(run) {
            live.request_cancel(at);
            self.notifier.notify_changed(run);
        } else {
            self.notifier.notify(Notification::Cancelled(run));
            self.notifier.feed.note(Change::Run(run));
        }
    }
}
