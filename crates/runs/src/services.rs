//! Services of runs.

use std::sync::{Arc, Mutex};

use crate::agent_cache::AgentCache;
use crate::artifacts::Artifacts;
use crate::async_runs::AsyncRuns;
use crate::awaited::AwaitedInteractions;
use crate::budget_waits::BudgetWaits;
use crate::call_abort::CallAborts;
use crate::call_usage::CallUsage;
use crate::cancel::Cancellation;
use crate::checkpoints::Checkpoints;
use crate::children::Children;
use crate::context::ContextWriter;
use crate::decide::Decider;
use crate::denials::Denials;
use crate::deps::RunDeps;
use crate::discovery::Endpoints;
use crate::dispatch::Dispatcher;
use crate::executor::RunExecutor;
use crate::feed::Feed;
use crate::finish::Finisher;
use crate::gauges::Gauges;
use crate::grant_lookup::GrantLookup;
use crate::hooks::Hooks;
use crate::intake::{ClientActivity, Intake};
use crate::interactions::Interactions;
use crate::interrupts::Interrupts;
use crate::jobs::Jobs;
use crate::key_uses::KeyUses;
use crate::lease_renewal::LeaseRenewal;
use crate::notifier::PeerNotifications;
use crate::pauses::Pauses;
use crate::platform_actions::PlatformActions;
use crate::prepare::Preparer;
use crate::preview::EventPreviews;
use crate::recovery::RunRecovery;
use crate::relay::Relayer;
use crate::schedules::Schedules;
use crate::sources::Sources;
use crate::unconfirmed::UnconfirmedDispatches;
use crate::upkeep::Upkeep;
use crate::watch::RunStreams;
use crate::webhooks::Webhooks;

/// The services that runs consist of.
pub struct Services {
    pub(super) deps: Arc<RunDeps>,
    pub intake: Arc<Intake>,
    pub previews: EventPreviews,
    pub interactions: Interactions,
    pub awaited: AwaitedInteractions,
    pub platform_actions: PlatformActions,
    pub budget_waits: BudgetWaits,
    pub children: Children,
    pub cancellation: Arc<Cancellation>,
    pub grants: GrantLookup,
    pub streams: RunStreams,
    pub feed: Feed,
    pub hooks: Arc<Hooks>,
    pub async_runs: AsyncRuns,
    pub checkpoints: Checkpoints,
    pub aborts: CallAborts,
    pub usage: Arc<CallUsage>,
    pub denials: Denials,
    pub artifacts: Artifacts,
    pub endpoints: Endpoints,
    pub leases: LeaseRenewal,
    pub recovery: RunRecovery,
    pub notifications: PeerNotifications,
    pub upkeep: Upkeep,
    pub key_uses: KeyUses,
    pub gauges: Gauges,
    pub jobs: Jobs,
    pub pauses: Pauses,
    pub sources: Sources,
    pub webhooks: Arc<Webhooks>,
    pub schedules: Schedules,
}

impl Services {
    pub(super) fn new(deps: Arc<RunDeps>) -> Self {
        let shared = || Arc::clone(&deps);
        let artifacts = Artifacts { deps: shared() };
        let aborts = CallAborts { deps: shared() };
        let usage = Arc::new(CallUsage::new(shared()));
        let context = ContextWriter { deps: shared() };
        let decider = Arc::new(Decider {
            deps: shared(),
            context: context.clone(),
            agents: AgentCache::new(&deps.limits),
        });
        let executor = Arc::new(executor(&deps, context, Arc::clone(&decider)));
        let unconfirmed = Arc::new(UnconfirmedDispatches {
            deps: shared(),
            executor: Arc::clone(&executor),
            pending: Mutex::default(),
        });
        let intake = Arc::new(Intake {
            deps: shared(),
            artifacts: artifacts.clone(),
            decider: Arc::clone(&decider),
            executor: Arc::clone(&executor),
            unconfirmed: Arc::clone(&unconfirmed),
            activity: ClientActivity::default(),
        });
        let cancellation = Arc::new(Cancellation {
            deps: shared(),
            executor: Arc::clone(&executor),
        });
        Self {
            previews: EventPreviews {
                deps: shared(),
                decider,
            },
            interactions: Interactions {
                deps: shared(),
                intake: Arc::clone(&intake),
            },
            awaited: AwaitedInteractions {
                deps: shared(),
                aborts: aborts.clone(),
            },
            platform_actions: PlatformActions {
                deps: shared(),
                aborts: aborts.clone(),
            },
            budget_waits: BudgetWaits {
                deps: shared(),
                aborts: aborts.clone(),
            },
            children: Children {
                deps: shared(),
                intake: Arc::clone(&intake),
                aborts: aborts.clone(),
            },
            denials: Denials {
                deps: shared(),
                counts: Arc::default(),
                cancellation: Arc::clone(&cancellation),
            },
            jobs: Jobs::new(shared(), &cancellation, &intake),
            pauses: Pauses::new(&deps, &executor, &cancellation),
            sources: Sources::new(shared()),
            webhooks: Arc::new(Webhooks::new(shared())),
            schedules: Schedules::new(shared(), &intake),
            recovery: RunRecovery {
                deps: shared(),
                executor,
                unconfirmed,
                usage: Arc::clone(&usage),
                artifacts: artifacts.clone(),
            },
            grants: GrantLookup { deps: shared() },
            streams: RunStreams { deps: shared() },
            feed: Feed { deps: shared() },
            hooks: Arc::clone(&deps.hooks),
            async_runs: AsyncRuns { deps: shared() },
            checkpoints: Checkpoints { deps: shared() },
            endpoints: Endpoints { deps: shared() },
            leases: LeaseRenewal { deps: shared() },
            notifications: PeerNotifications { deps: shared() },
            upkeep: Upkeep { deps: shared() },
            gauges: Gauges { deps: shared() },
            key_uses: KeyUses::new(shared()),
            intake,
            cancellation,
            aborts,
            usage,
            artifacts,
            deps,
        }
    }
}

fn executor(deps: &Arc<RunDeps>, context: ContextWriter, decider: Arc<Decider>) -> RunExecutor {
    let shared = || Arc::clone(deps);
    let interrupts = Interrupts { deps: shared() };
    RunExecutor {
        deps: shared(),
        preparer: Preparer {
            deps: shared(),
            context,
        },
        dispatcher: Dispatcher {
            deps: shared(),
            interrupts: interrupts.clone(),
        },
        relayer: Relayer {
            deps: shared(),
            interrupts,
        },
        finisher: Finisher {
            deps: shared(),
            decider,
        },
    }
}
