//! Construction of the services that execute runs.

use std::sync::Arc;

use arc_swap::ArcSwap;
use domain::authorization::ResourceCatalog;

use super::shared::Shared;
use crate::agent_cache::AgentCache;
use crate::context::ContextWriter;
use crate::decide::{CandidateCache, Decider};
use crate::dispatch::Dispatcher;
use crate::endpoint_cache::EndpointCache;
use crate::executor::RunExecutor;
use crate::finish::Finisher;
use crate::interrupts::Interrupts;
use crate::prepare::Preparer;
use crate::relay::Relayer;
use runner_client::RunnerClient;

impl Shared {
    pub(super) fn context(&self, catalog: &Arc<ArcSwap<ResourceCatalog>>) -> Arc<ContextWriter> {
        Arc::new(ContextWriter {
            store: self.store.clone(),
            keys: Arc::clone(&self.keys),
            catalog: Arc::clone(catalog),
            limits: Arc::clone(&self.limits),
        })
    }

    pub(super) fn decider(
        &self,
        catalog: &Arc<ArcSwap<ResourceCatalog>>,
        context: &Arc<ContextWriter>,
        endpoints: &Arc<EndpointCache>,
    ) -> Arc<Decider> {
        Arc::new(Decider {
            store: self.store.clone(),
            clock: self.clock,
            catalog: Arc::clone(catalog),
            limits: Arc::clone(&self.limits),
            owner: Arc::clone(&self.owner),
            live: Arc::clone(&self.live),
            context: Arc::clone(context),
            endpoints: Arc::clone(endpoints),
            agents: AgentCache::default(),
            candidates: CandidateCache::default(),
        })
    }

    pub(super) fn executor(
        &self,
        client: RunnerClient,
        decider: Arc<Decider>,
        context: Arc<ContextWriter>,
        endpoints: Arc<EndpointCache>,
    ) -> Arc<RunExecutor> {
        let interrupts = Arc::new(Interrupts {
            store: self.store.clone(),
            clock: self.clock,
            client: client.clone(),
            limits: Arc::clone(&self.limits),
            lifecycle: self.lifecycle.clone(),
        });
        let dispatcher = Dispatcher {
            store: self.store.clone(),
            clock: self.clock,
            client,
            keys: Arc::clone(&self.keys),
            spans: self.spans.clone(),
            breakers: self.breakers.clone(),
            limits: Arc::clone(&self.limits),
            owner: Arc::clone(&self.owner),
            ledger: Arc::clone(&self.ledger),
            interrupts: Arc::clone(&interrupts),
        };
        let relayer = Relayer {
            store: self.store.clone(),
            clock: self.clock,
            limits: Arc::clone(&self.limits),
            notifier: Arc::clone(&self.notifier),
            lifecycle: self.lifecycle.clone(),
            ledger: Arc::clone(&self.ledger),
            interrupts,
        };
        let finisher = Finisher {
            store: self.store.clone(),
            clock: self.clock,
            limits: Arc::clone(&self.limits),
            owner: Arc::clone(&self.owner),
            live: Arc::clone(&self.live),
            notifier: Arc::clone(&self.notifier),
            spans: self.spans.clone(),
            decider,
            ledger: Arc::clone(&self.ledger),
            children: self.child_cancellation(),
            ended: self.ended.clone(),
        };
        Arc::new(RunExecutor {
            store: self.store.clone(),
            live: Arc::clone(&self.live),
            notifier: Arc::clone(&self.notifier),
            lifecycle: self.lifecycle.clone(),
            preparer: Preparer {
                store: self.store.clone(),
                clock: self.clock,
                context,
                endpoints,
            },
            dispatcher,
            relayer,
            finisher,
        })
    }
}
