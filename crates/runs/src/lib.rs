//! The order of a run: start, drive, settle. The only owner of tasks.
//!
//! One task per run, child of one tracker; a run outlives every response that watches it. What a
//! client has seen is in the ledger, what was acknowledged is committed.

pub mod appended;
pub mod artifacts;
pub mod bus;
pub mod children;
pub mod denials;
pub mod discovery;
pub mod grant;
mod known_agents;
mod open_endpoints;
pub mod over;
pub mod preview;
pub mod rate;
pub mod start;
pub mod watch;

pub mod awaited;
mod book;
mod breakers;
mod budgets;
mod calls;
mod decide;
mod dispatch;
mod doorbell;
mod drive;
mod gauges;
pub mod interactions;
mod live;
mod prepare;
mod relay;
mod reserved;
mod settle;
mod spawn;
mod sweep;
mod unheard;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use domain::authorization::Catalog;
use domain::breaker::BreakerPolicy;
use domain::budget::Budget;
use domain::normalize::ResultLimits;
use domain::run::{Failure, Run};
use protocol::id::{RunId, WorkspaceId};
use protocol::run::RunStatus;
use store::{CancelOutcome, LeaseFilter, Store, StoreError, failpoint};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::artifacts::ArtifactLimits;
use crate::breakers::Breakers;
use crate::bus::{Bus, Ring};
use crate::calls::Calls;
use crate::decide::LastMet;
use crate::denials::Denials;
use crate::doorbell::Doorbell;
use crate::grant::Grant;
use crate::known_agents::KnownAgents;
use crate::live::Live;
use crate::open_endpoints::OpenEndpoints;
use crate::rate::{EventRate, EventRates};
use crate::reserved::ReservedCalls;
use crate::unheard::AllUnheard;
use base::clock::Clock;
use base::seal::MasterKey;
use blob_store::ArtifactStore;
use egress::Egress;
use keys::cursor::Cursors;
use keys::keyring::Keyring;
use keys::token::{Minted, RunTokens};
use runner_client::RunnerClient;
use telemetry::spans::Spans;

pub use prepare::told_limits;
pub use relay::reader;
pub use reserved::Reservation;

/// Bounds of runs, from the configuration.
#[derive(Clone, Debug)]
pub struct RunLimits {
    pub line_bytes: usize,
    pub results: ResultLimits,
    pub storage_blob_bytes: u64,
    pub storage_area_bytes: u64,
    pub first_byte: Duration,
    pub silence: Duration,
    pub cancel_grace: Duration,
    pub shutdown_grace: Duration,
    pub lease: Duration,
    /// How long a runner that appends its results may be silent.
    pub append_lease: Duration,
    pub max_deadline: Duration,
    /// How long the events of a run are kept once it has ended; `None`: for ever.
    pub retention: Option<Duration>,
    /// How long the audit of a call is kept; `None`: for ever.
    pub audit_kept: Option<Duration>,
    pub artifacts: ArtifactLimits,
    /// How often what happens elsewhere is looked at, should no ring be heard.
    pub poll: Duration,
    /// How long the answer of a runner endpoint holds.
    pub discovery_ttl: Duration,
    /// How soon an endpoint that gave no list is asked again.
    pub discovery_retry: Duration,
    /// Denied calls of one run, on this replica, after which it ends.
    pub run_denied_calls: u64,
    /// The most runs of one workspace that may live, waiting ones included; `None`: any number.
    pub workspace_runs: Option<u64>,
    /// How fast the events of one workspace may come to this replica; `None`: as they come.
    pub workspace_events: Option<EventRate>,
    /// When an endpoint that fails is left alone.
    pub breaker: BreakerPolicy,
}

/// Everything that runs need.
pub struct Parts {
    pub store: Store,
    pub bus: Box<dyn Bus>,
    pub clock: Clock,
    pub egress: Egress,
    pub client: RunnerClient,
    pub keys: Keyring,
    pub master_key: Arc<MasterKey>,
    /// What exists now: tools come and go with their servers.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// Where traces are told.
    pub spans: Spans,
    pub budgets: Arc<[Budget]>,
    /// The bytes of artifacts.
    pub artifacts: ArtifactStore,
    pub limits: RunLimits,
    /// The name of this process in leases.
    pub owner: String,
}

/// All runs of this process. Cheap to clone.
#[derive(Clone)]
pub struct Runs(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) parts: Parts,
    pub(crate) live: Live,
    pub(crate) doorbell: Doorbell,
    breakers: Breakers,
    agents: KnownAgents,
    last_met: LastMet,
    endpoints: OpenEndpoints,
    rates: EventRates,
    calls: Calls,
    denials: Denials,
    reserved: ReservedCalls,
    unheard: AllUnheard,
    tasks: TaskTracker,
    /// No new run from here on.
    stopping: CancellationToken,
    /// Runs that still live end now.
    closing: CancellationToken,
}

impl std::ops::Deref for Inner {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Runs {
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            breakers: Breakers::new(parts.limits.breaker),
            agents: KnownAgents::default(),
            last_met: LastMet::default(),
            endpoints: OpenEndpoints::default(),
            rates: EventRates::new(parts.limits.workspace_events),
            calls: Calls::default(),
            denials: Denials::default(),
            reserved: ReservedCalls::default(),
            unheard: AllUnheard::default(),
            parts,
            live: Live::default(),
            doorbell: Doorbell::default(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            closing: CancellationToken::new(),
        }))
    }

    /// The tables behind the runs.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The one reader of time.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The keys that sign.
    pub fn keys(&self) -> &Keyring {
        &self.0.keys
    }

    /// The run tokens that they sign.
    pub fn tokens(&self) -> &RunTokens {
        &self.0.keys.tokens
    }

    /// Keeps the signing keys until the process stops.
    pub async fn keep_keys(&self) {
        tokio::select! {
            () = self.0.closing.cancelled() => {}
            () = self.0.keys.keep() => {}
        }
    }

    /// What exists at this moment.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.0.catalog.load_full()
    }

    /// Where traces are told.
    pub fn spans(&self) -> &Spans {
        &self.0.spans
    }

    /// What calls of runs may use up.
    pub fn budgets(&self) -> &[Budget] {
        &self.0.budgets
    }

    /// The bounds of runs.
    pub fn limits(&self) -> &RunLimits {
        &self.0.limits
    }

    /// The name of this process, as leases have it.
    pub fn owner(&self) -> &str {
        &self.0.owner
    }

    /// The maker of cursors.
    pub fn cursors(&self) -> &Cursors {
        &self.0.keys.cursors
    }

    /// Cancelled once no new run is taken.
    pub fn stopping(&self) -> &CancellationToken {
        &self.0.stopping
    }

    /// Notes the wish to cancel, and why, durably, and wakes the run when it lives here. Goes on when the
    /// caller has gone: what is stored is also told.
    pub async fn cancel(
        &self,
        workspace: &WorkspaceId,
        id: RunId,
        reason: Option<String>,
    ) -> Result<CancelOutcome, StoreError> {
        let (runs, workspace) = (self.clone(), workspace.clone());
        let cancelling = self.0.tasks.spawn(async move {
            let now = runs.0.clock.now_ms();
            let outcome = runs
                .0
                .store
                .runs()
                .request_cancel(&workspace, id, reason, now)
                .await?;
            failpoint::pass("cancel.after_commit").await?;
            let CancelOutcome::Requested(run) = &outcome else {
                return Ok(outcome);
            };
            if run.status == RunStatus::Queued {
                let failure = Failure::cancelled();
                settle::settle_orphan(&runs.0, id, &workspace, LeaseFilter::None, failure).await;
                // Where this is not known, the run is told as one that lives.
                if let Ok(Some(settled)) = runs.0.store.runs().find_run(&workspace, id).await
                    && settled.status.is_terminal()
                {
                    return Ok(CancelOutcome::Ended(Box::new(settled)));
                }
            }
            runs.cancel_children(id).await;
            // It may have been let go meanwhile.
            let at = run.cancel_requested_at.unwrap_or(now);
            match runs.0.live.get(id) {
                Some(live) => live.request_cancel(at),
                None => runs.0.doorbell.ring(Ring::Cancelled(id)),
            }
            Ok(outcome)
        });
        cancelling.await.map_err(|_| StoreError::Closed)?
    }

    /// From where a run is watched from now on: what comes next, or its end when that has come.
    pub async fn from_now_on(&self, workspace: &WorkspaceId, id: RunId) -> Result<u64, StoreError> {
        let run = self.0.store.runs().find_run(workspace, id).await?;
        Ok(run.map_or(0, |run| {
            run.last_sequence
                .saturating_sub(u64::from(run.status.is_terminal()))
        }))
    }

    /// The rights of a live run: from memory while its lease is held here, else from its row.
    pub async fn find_grant(&self, id: RunId) -> Result<Option<Arc<Grant>>, StoreError> {
        let live = self.0.live.get(id);
        if let Some(grant) = live.and_then(|live| live.grant(Instant::now())) {
            return Ok(Some(grant));
        }
        let run = self.0.store.runs().find_run_anywhere(id).await?;
        let Some(run) = run.filter(|run| run.status == RunStatus::Running) else {
            return Ok(None);
        };
        let snapshot = self.0.store.runs().find_snapshot(id).await?;
        Ok(snapshot
            .and_then(|snapshot| Grant::of(run, &snapshot).ok())
            .map(Arc::new))
    }

    /// The run of a grant as it stands this moment, without a query when it is driven here.
    pub async fn current_run(&self, grant: &Grant) -> Result<Run, StoreError> {
        let mut run = grant.run.clone();
        match self.0.live.get(run.id) {
            Some(live) => {
                run.last_sequence = live.log.progress().last_sequence;
                run.cancel_requested_at = live.cancel_requested_at().or(run.cancel_requested_at);
                // Why it is to end stands in its row alone.
                if run.cancel_requested_at.is_some()
                    && let Ok(Some(row)) =
                        self.0.store.runs().find_run(&run.workspace, run.id).await
                {
                    run.status_reason = row.status_reason;
                }
            }
            None => {
                if let Some(row) = self.0.store.runs().find_run(&run.workspace, run.id).await? {
                    run = row;
                }
            }
        }
        Ok(run)
    }

    /// Whether the run of a grant was asked to end.
    pub fn is_cancel_requested(&self, grant: &Grant) -> bool {
        // The grant may have been read just now, and tell what is not heard here yet.
        let live = self.0.live.get(grant.run.id);
        live.is_some_and(|live| live.cancel_requested_at().is_some())
            || grant.run.cancel_requested_at.is_some()
    }

    /// A fresh token for a live run: only its id and times differ. `None`: the key is unusable.
    pub fn renew_token(&self, grant: &Grant) -> Option<Minted> {
        let subject = grant.token_subject();
        self.tokens()
            .mint(&subject, self.0.clock.now_seconds())
            .ok()
    }

    /// Takes no new run from here on, and gives the live ones the grace to end.
    pub async fn finish(&self) {
        self.0.stopping.cancel();
        self.0.tasks.close();
        let grace = self.0.limits.shutdown_grace;
        if tokio::time::timeout(grace, self.0.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                grace_ms = grace.as_millis(),
                "runs still live after the grace are ended"
            );
        }
    }

    /// Ends what still lives as `host.shutdown`. Returns when all of it is written.
    pub async fn end(&self) {
        self.0.closing.cancel();
        self.0.tasks.wait().await;
    }
}
