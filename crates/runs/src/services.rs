//! Services of runs.

mod execution;
mod shared;

use std::sync::Arc;

use arc_swap::ArcSwap;
use domain::authorization::ResourceCatalog;
use domain::budget::Budget;
use store::Store;

use crate::artifacts::Artifacts;
use crate::async_runs::AsyncRuns;
use crate::awaited::AwaitedInteractions;
use crate::breakers::Breakers;
use crate::call_abort::CallAborts;
use crate::call_limits::CallLimits;
use crate::call_usage::CallUsage;
use crate::cancel::Cancellation;
use crate::children::Children;
use crate::denials::Denials;
use crate::discovery::{DiscoveryWorker, Endpoints};
use crate::ended_runs::EndedRuns;
use crate::endpoint_cache::EndpointCache;
use crate::gauges::Gauges;
use crate::grant_lookup::GrantLookup;
use crate::intake::Intake;
use crate::interactions::Interactions;
use crate::key_uses::KeyUses;
use crate::lease_renewal::LeaseRenewal;
use crate::ledger::LedgerWriter;
use crate::lifecycle::Lifecycle;
use crate::limits::RunLimits;
use crate::notifier::PeerNotifications;
use crate::preview::EventPreviews;
use crate::rate::EventRates;
use crate::recovery::RunRecovery;
use crate::upkeep::Upkeep;
use crate::watch::RunStreams;
use clock::Clock;
use keys::keyring::Keyring;
use telemetry::spans::Spans;

use crate::parts::RunParts;
use shared::Shared;

/// The services that runs consist of.
pub struct Services {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) keys: Arc<Keyring>,
    pub(super) catalog: Arc<ArcSwap<ResourceCatalog>>,
    pub(super) spans: Spans,
    pub(super) budgets: Arc<[Budget]>,
    pub(super) limits: Arc<RunLimits>,
    pub(super) owner: Arc<str>,
    pub(super) lifecycle: Lifecycle,
    pub(super) ended: EndedRuns,
    pub intake: Arc<Intake>,
    pub previews: EventPreviews,
    pub interactions: Interactions,
    pub awaited: AwaitedInteractions,
    pub children: Children,
    pub cancellation: Arc<Cancellation>,
    pub grants: GrantLookup,
    pub streams: Arc<RunStreams>,
    pub async_runs: AsyncRuns,
    pub ledger: Arc<LedgerWriter>,
    pub calls: Arc<CallLimits>,
    pub aborts: Arc<CallAborts>,
    pub usage: Arc<CallUsage>,
    pub denials: Denials,
    pub artifacts: Artifacts,
    pub endpoints: Arc<Endpoints>,
    pub discovery: DiscoveryWorker,
    pub breakers: Breakers,
    pub leases: LeaseRenewal,
    pub recovery: RunRecovery,
    pub notifications: PeerNotifications,
    pub upkeep: Upkeep,
    pub key_uses: KeyUses,
    pub gauges: Gauges,
}

impl Services {
    pub(super) fn new(parts: RunParts) -> Self {
        let shared = Shared::of(&parts);
        let RunParts {
            store,
            bus,
            clock,
            egress,
            client,
            keys,
            master_key,
            catalog,
            spans,
            budgets,
            artifacts: blobs,
            ..
        } = parts;
        let limits = Arc::clone(&shared.limits);
        let artifacts = Artifacts {
            store: store.clone(),
            blobs,
            clock,
            limits: Arc::clone(&limits),
        };
        let endpoints = Arc::new(Endpoints {
            store: store.clone(),
            clock,
            egress,
            client: client.clone(),
            master_key: Arc::clone(&master_key),
            limits: Arc::clone(&limits),
            breakers: shared.breakers.clone(),
        });
        let context = shared.context(&catalog);
        let opened = Arc::new(EndpointCache::new(master_key));
        let decider = shared.decider(&catalog, &context, &opened);
        let executor = shared.executor(client, Arc::clone(&decider), context, opened);
        let unconfirmed = shared.unconfirmed(&executor);
        let rates = Arc::new(EventRates::new(limits.workspace_events));
        let intake = shared.intake(&rates, &artifacts, &decider, &executor, &unconfirmed);
        let cancellation = shared.cancellation(&executor);
        let calls = Arc::new(CallLimits::default());
        let aborts = shared.aborts();
        let usage = shared.usage(Arc::clone(&budgets));
        Self {
            previews: shared.previews(decider),
            interactions: shared.interactions(&intake),
            awaited: shared.awaited(&calls, &aborts),
            children: shared.children(&intake, &calls, &aborts),
            denials: shared.denials(&cancellation),
            grants: shared.grants(),
            streams: shared.streams(),
            async_runs: shared.async_runs(&calls),
            leases: shared.leases(),
            recovery: shared.recovery(executor, unconfirmed, &usage, artifacts.clone()),
            notifications: shared.notifications(bus),
            upkeep: shared.upkeep(rates, &calls),
            key_uses: KeyUses::new(store.clone(), shared.lifecycle.clone()),
            gauges: shared.gauges(),
            discovery: shared.discovery(&endpoints),
            store,
            clock,
            keys,
            catalog,
            spans,
            budgets,
            limits,
            owner: shared.owner,
            lifecycle: shared.lifecycle,
            ended: shared.ended,
            intake,
            cancellation,
            ledger: shared.ledger,
            calls,
            aborts,
            usage,
            artifacts,
            endpoints,
            breakers: shared.breakers,
        }
    }
}
