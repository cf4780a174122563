//! Simulated clients: they post events until an answer comes, and cancel runs.

use super::database::{Ingested, Op};
use super::gateway::{Gateway, Waiter};
use super::network::{Happening, Network};
use super::settings::{self, EVENTS};

/// An event of a client, and its progress.
struct EventPlan {
    agent: usize,
    conversation: usize,
    is_settled: bool,
    is_accepted: bool,
}

pub(super) struct Clients {
    events: Vec<EventPlan>,
}

impl Clients {
    pub(super) fn draw(net: &mut Network) -> Self {
        let conversations = usize::try_from(net.random.between(1, 3)).unwrap();
        let count = usize::try_from(net.random.between(1, EVENTS as u64)).unwrap();
        let mut events = Vec::new();
        for event in 0..count {
            events.push(EventPlan {
                agent: net.random.index(2),
                conversation: net.random.index(conversations),
                is_settled: false,
                is_accepted: false,
            });
            let at = net.random.between(0, 6_000);
            net.at(at, Happening::Post(event));
            if net.random.chance(25) {
                let at = at + net.random.between(20, 4_000);
                net.at(at, Happening::Cancel(event));
            }
        }
        Self { events }
    }

    pub(super) fn post(&self, net: &mut Network, gateways: &mut [Gateway], event: usize) {
        let plan = &self.events[event];
        if plan.is_settled {
            return;
        }
        // Until the answer comes, the client repeats its request.
        net.at(net.now + 700, Happening::Post(event));
        let Some(gateway) = reachable(net, gateways) else {
            return;
        };
        let first_owner = net.random.chance(60).then(|| gateway.owner.clone());
        let run = settings::run(event, plan.agent, plan.conversation, net.now);
        let requested_at = net.now;
        let op = Op::Ingest {
            event,
            first_owner,
            run: Box::new(run),
        };
        gateway.request(net, Waiter::Ingest { requested_at }, op);
    }

    /// Takes the answer to an event.
    pub(super) fn ingested(&mut self, net: &mut Network, answer: &Ingested) {
        let plan = &mut self.events[answer.event];
        plan.is_settled = true;
        plan.is_accepted = answer.is_accepted;
        if let Some(id) = answer.absorbed_by
            && net.random.chance(70)
        {
            net.within(10, 1_500, Happening::Pull(id));
        }
    }

    pub(super) fn are_settled(&self) -> bool {
        self.events.iter().all(|event| event.is_settled)
    }

    /// Numbers of acknowledged events.
    pub(super) fn accepted(&self) -> impl Iterator<Item = usize> {
        let numbered = self.events.iter().enumerate();
        numbered.filter_map(|(number, event)| event.is_accepted.then_some(number))
    }
}

pub(super) fn cancel(net: &mut Network, gateways: &mut [Gateway], event: usize) {
    if let Some(gateway) = reachable(net, gateways) {
        let id = settings::run_id(event);
        gateway.request(net, Waiter::Cancel(id), Op::RequestCancel(id));
    }
}

/// A gateway that a client reaches.
fn reachable<'a>(net: &mut Network, gateways: &'a mut [Gateway]) -> Option<&'a mut Gateway> {
    let mut found: Vec<_> = gateways
        .iter_mut()
        .filter(|gateway| gateway.serves(net.now))
        .collect();
    (!found.is_empty()).then(|| found.swap_remove(net.random.index(found.len())))
}
