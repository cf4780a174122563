//! State that services share, and the services that are built from it.

use std::sync::{Arc, Mutex};

use domain::budget::Budget;
use store::Store;

use crate::artifacts::Artifacts;
use crate::async_runs::AsyncRuns;
use crate::awaited::AwaitedInteractions;
use crate::breakers::Breakers;
use crate::bus::Bus;
use crate::call_abort::CallAborts;
use crate::call_limits::CallLimits;
use crate::call_usage::{CallUsage, ReservedCalls};
use crate::cancel::Cancellation;
use crate::cancel_signals::CancelSignals;
use crate::child_cancellation::ChildCancellation;
use crate::children::Children;
use crate::decide::Decider;
use crate::denials::{DenialCounts, Denials};
use crate::discovery::{DiscoveryWorker, Endpoints};
use crate::ended_runs::EndedRuns;
use crate::executor::RunExecutor;
use crate::gauges::Gauges;
use crate::grant_lookup::GrantLookup;
use crate::intake::Intake;
use crate::interactions::Interactions;
use crate::lease_renewal::LeaseRenewal;
use crate::ledger::LedgerWriter;
use crate::lifecycle::Lifecycle;
use crate::limits::RunLimits;
use crate::live::LiveRegistry;
use crate::notifier::{Notifier, PeerNotifications};
use crate::preview::EventPreviews;
use crate::rate::EventRates;
use crate::recovery::{CancelPolling, Cleanup, ClockCheck, RunRecovery};
use crate::unconfirmed::UnconfirmedDispatches;
use crate::upkeep::Upkeep;
use crate::watch::RunStreams;
use clock::Clock;
use keys::keyring::Keyring;
use telemetry::spans::Spans;

use crate::parts::RunParts;

/// State that several services share.
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) keys: Arc<Keyring>,
    pub(super) spans: Spans,
    pub(super) limits: Arc<RunLimits>,
    pub(super) owner: Arc<str>,
    pub(super) live: Arc<LiveRegistry>,
    pub(super) notifier: Arc<Notifier>,
    pub(super) breakers: Breakers,
    pub(super) ledger: Arc<LedgerWriter>,
    pub(super) lifecycle: Lifecycle,
    pub(super) ended: EndedRuns,
}

impl Shared {
    pub(super) fn discovery(&self, endpoints: &Arc<Endpoints>) -> DiscoveryWorker {
        DiscoveryWorker {
            endpoints: Arc::clone(endpoints),
            lifecycle: self.lifecycle.clone(),
        }
    }

    pub(super) fn of(parts: &RunParts) -> Self {
        let limits = Arc::new(parts.limits.clone());
        Self {
            store: parts.store.clone(),
            clock: parts.clock,
            keys: Arc::clone(&parts.keys),
            spans: parts.spans.clone(),
            owner: parts.owner.as_str().into(),
            live: Arc::new(LiveRegistry::default()),
            notifier: Arc::new(Notifier::default()),
            breakers: Breakers::new(limits.breaker),
            ledger: Arc::new(LedgerWriter {
                store: parts.store.clone(),
                lease: limits.lease,
            }),
            lifecycle: Lifecycle::new(),
            ended: EndedRuns::default(),
            limits,
        }
    }

    fn signals(&self) -> CancelSignals {
        CancelSignals {
            live: Arc::clone(&self.live),
            notifier: Arc::clone(&self.notifier),
        }
    }

    pub(super) fn child_cancellation(&self) -> ChildCancellation {
        ChildCancellation {
            store: self.store.clone(),
            clock: self.clock,
            signals: self.signals(),
        }
    }

    pub(super) fn intake(
        &self,
        rates: &Arc<EventRates>,
        artifacts: &Artifacts,
        decider: &Arc<Decider>,
        executor: &Arc<RunExecutor>,
        unconfirmed: &Arc<UnconfirmedDispatches>,
    ) -> Arc<Intake> {
        Arc::new(Intake {
            store: self.store.clone(),
            clock: self.clock,
            spans: self.spans.clone(),
            limits: Arc::clone(&self.limits),
            rates: Arc::clone(rates),
            artifacts: artifacts.clone(),
            decider: Arc::clone(decider),
            executor: Arc::clone(executor),
            unconfirmed: Arc::clone(unconfirmed),
            signals: self.signals(),
            lifecycle: self.lifecycle.clone(),
        })
    }

    pub(super) fn unconfirmed(&self, executor: &Arc<RunExecutor>) -> Arc<UnconfirmedDispatches> {
        Arc::new(UnconfirmedDispatches {
            store: self.store.clone(),
            limits: Arc::clone(&self.limits),
            owner: Arc::clone(&self.owner),
            executor: Arc::clone(executor),
            pending: Mutex::default(),
        })
    }

    pub(super) fn cancellation(&self, executor: &Arc<RunExecutor>) -> Arc<Cancellation> {
        Arc::new(Cancellation {
            store: self.store.clone(),
            clock: self.clock,
            executor: Arc::clone(executor),
            children: self.child_cancellation(),
            signals: self.signals(),
            lifecycle: self.lifecycle.clone(),
        })
    }

    pub(super) fn aborts(&self) -> Arc<CallAborts> {
        Arc::new(CallAborts {
            store: self.store.clone(),
            clock: self.clock,
            limits: Arc::clone(&self.limits),
            live: Arc::clone(&self.live),
            lifecycle: self.lifecycle.clone(),
        })
    }

    pub(super) fn usage(&self, budgets: Arc<[Budget]>) -> Arc<CallUsage> {
        Arc::new(CallUsage {
            store: self.store.clone(),
            clock: self.clock,
            limits: Arc::clone(&self.limits),
            budgets,
            reserved: Arc::new(ReservedCalls::default()),
            lifecycle: self.lifecycle.clone(),
        })
    }

    pub(super) fn previews(&self, decider: Arc<Decider>) -> EventPreviews {
        EventPreviews {
            store: self.store.clone(),
            clock: self.clock,
            limits: Arc::clone(&self.limits),
            decider,
        }
    }

    pub(super) fn interactions(&self, intake: &Arc<Intake>) -> Interactions {
        Interactions {
            store: self.store.clone(),
            clock: self.clock,
            notifier: Arc::clone(&self.notifier),
            intake: Arc::clone(intake),
        }
    }

    pub(super) fn awaited(
        &self,
        calls: &Arc<CallLimits>,
        aborts: &Arc<CallAborts>,
    ) -> AwaitedInteractions {
        AwaitedInteractions {
            store: self.store.clone(),
            clock: self.clock,
            limits: Arc::clone(&self.limits),
            live: Arc::clone(&self.live),
            notifier: Arc::clone(&self.notifier),
            calls: Arc::clone(calls),
            aborts: Arc::clone(aborts),
        }
    }

    pub(super) fn children(
        &self,
        intake: &Arc<Intake>,
        calls: &Arc<CallLimits>,
        aborts: &Arc<CallAborts>,
    ) -> Children {
        Children {
            store: self.store.clone(),
            clock: self.clock,
            spans: self.spans.clone(),
            limits: Arc::clone(&self.limits),
            live: Arc::clone(&self.live),
            notifier: Arc::clone(&self.notifier),
            intake: Arc::clone(intake),
            calls: Arc::clone(calls),
            aborts: Arc::clone(aborts),
            lifecycle: self.lifecycle.clone(),
        }
    }

    pub(super) fn denials(&self, cancellation: &Arc<Cancellation>) -> Denials {
        Denials {
            counts: Arc::new(DenialCounts::default()),
            clock: self.clock,
            limits: Arc::clone(&self.limits),
            cancellation: Arc::clone(cancellation),
            lifecycle: self.lifecycle.clone(),
        }
    }

    pub(super) fn grants(&self) -> GrantLookup {
        GrantLookup {
            store: self.store.clone(),
            clock: self.clock,
            keys: Arc::clone(&self.keys),
            live: Arc::clone(&self.live),
        }
    }

    pub(super) fn streams(&self) -> Arc<RunStreams> {
        Arc::new(RunStreams {
            store: self.store.clone(),
            limits: Arc::clone(&self.limits),
            live: Arc::clone(&self.live),
            notifier: Arc::clone(&self.notifier),
            lifecycle: self.lifecycle.clone(),
        })
    }

    pub(super) fn async_runs(&self, calls: &Arc<CallLimits>) -> AsyncRuns {
        AsyncRuns {
            store: self.store.clone(),
            limits: Arc::clone(&self.limits),
            live: Arc::clone(&self.live),
            notifier: Arc::clone(&self.notifier),
            calls: Arc::clone(calls),
        }
    }

    pub(super) fn leases(&self) -> LeaseRenewal {
        LeaseRenewal {
            store: self.store.clone(),
            limits: Arc::clone(&self.limits),
            owner: Arc::clone(&self.owner),
            live: Arc::clone(&self.live),
            lifecycle: self.lifecycle.clone(),
        }
    }

    pub(super) fn recovery(
        &self,
        executor: Arc<RunExecutor>,
        unconfirmed: Arc<UnconfirmedDispatches>,
        usage: &Arc<CallUsage>,
        artifacts: Artifacts,
    ) -> RunRecovery {
        RunRecovery {
            store: self.store.clone(),
            limits: Arc::clone(&self.limits),
            owner: Arc::clone(&self.owner),
            live: Arc::clone(&self.live),
            executor,
            unconfirmed,
            children: self.child_cancellation(),
            usage: Arc::clone(usage),
            cancel_polling: CancelPolling {
                store: self.store.clone(),
                limits: Arc::clone(&self.limits),
                owner: Arc::clone(&self.owner),
                live: Arc::clone(&self.live),
                notifier: Arc::clone(&self.notifier),
            },
            clock_check: ClockCheck {
                store: self.store.clone(),
                clock: self.clock,
                limits: Arc::clone(&self.limits),
            },
            cleanup: Cleanup {
                store: self.store.clone(),
                clock: self.clock,
                limits: Arc::clone(&self.limits),
                artifacts,
            },
            lifecycle: self.lifecycle.clone(),
        }
    }

    pub(super) fn notifications(&self, bus: Box<dyn Bus>) -> PeerNotifications {
        PeerNotifications {
            bus,
            notifier: Arc::clone(&self.notifier),
            live: Arc::clone(&self.live),
            lifecycle: self.lifecycle.clone(),
        }
    }

    pub(super) fn upkeep(&self, rates: Arc<EventRates>, calls: &Arc<CallLimits>) -> Upkeep {
        Upkeep {
            rates,
            calls: Arc::clone(calls),
            breakers: self.breakers.clone(),
            lifecycle: self.lifecycle.clone(),
        }
    }

    pub(super) fn gauges(&self) -> Gauges {
        Gauges {
            store: self.store.clone(),
            live: Arc::clone(&self.live),
            breakers: self.breakers.clone(),
            lifecycle: self.lifecycle.clone(),
        }
    }
}
