//! One simulated world: clients, gateways, runners, network and database, drawn from one seed.

use std::collections::BTreeSet;

use protocol::admin::Concurrency;
use store::{LeaseFilter, StoreError};

use super::checks::Checks;
use super::clients::{Clients, cancel};
use super::database::{Answer, Database, Op};
use super::faults::{Faults, Plant, Violation};
use super::gateway::Gateway;
use super::network::{Address, Happening, Network, Occurrence, Process, TickKind};
use super::random::Random;
use super::runner_log::Runners;
use super::settings::{HEALED, REST};

const POLICIES: [Concurrency; 5] = [
    Concurrency::Enqueue,
    Concurrency::Interrupt,
    Concurrency::Steer,
    Concurrency::Reject,
    Concurrency::Concurrent,
];

pub(super) struct World {
    net: Network,
    gateways: Vec<Gateway>,
    clients: Clients,
    runners: Runners,
    is_healed: bool,
}

impl World {
    pub(super) fn new(seed: u64, plant: Plant) -> Self {
        let mut random = Random::new(seed);
        let policies = vec![random.pick(&POLICIES), random.pick(&POLICIES)];
        let count = usize::try_from(random.between(1, 3)).unwrap();
        let faults = Faults::draw(&mut random);
        let mut net = Network::new(random, Database::new(policies, plant), faults);
        let mut gateways = Vec::new();
        for gateway in 0..count {
            let high = if net.random.chance(10) { 20_000 } else { 20 };
            let skew = net.random.between(0, high);
            let process = Process { gateway, start: 0 };
            gateways.push(Gateway::start(&mut net, process, skew));
        }
        let clients = Clients::draw(&mut net);
        draw_faults(&mut net, count);
        Self {
            net,
            gateways,
            clients,
            runners: Runners::default(),
            is_healed: false,
        }
    }

    /// Runs until rest. Returns the ends that its runs have reached, or the first broken invariant.
    pub(super) fn run(mut self) -> Result<BTreeSet<String>, Violation> {
        loop {
            let (order, happening) = self.net.next();
            let at = self.net.now;
            let is_check = matches!(
                happening,
                Happening::At(_, Occurrence::Tick(TickKind::Sweep))
            );
            self.handle(order, happening);
            if let Some(text) = self.net.db.violation.take() {
                return Err(Violation { at, text });
            }
            let checks = Checks {
                db: &self.net.db,
                gateways: &self.gateways,
                clients: &self.clients,
                runners: &self.runners,
            };
            if is_check && self.is_healed && checks.is_at_rest() {
                let checked = checks.check_rest();
                return match checked {
                    Ok(()) => Ok(checks.ends()),
                    Err(text) => Err(Violation { at, text }),
                };
            }
            if at > REST {
                let text = checks.unrest();
                return Err(Violation { at, text });
            }
        }
    }

    fn handle(&mut self, order: u64, happening: Happening) {
        let (net, gateways) = (&mut self.net, &mut self.gateways);
        match happening {
            Happening::Post(event) => self.clients.post(net, gateways, event),
            Happening::Cancel(event) => cancel(net, gateways, event),
            Happening::Kill(gateway) => self.kill(gateway),
            Happening::Restart(gateway) => self.restart(gateway),
            Happening::Pause(gateway, length) => {
                gateways[gateway].paused_until = net.now + length;
            }
            Happening::Stop(gateway) => gateways[gateway].stop(net),
            Happening::Close(gateway) => gateways[gateway].close(net),
            Happening::Arrive(address, op) => self.arrive(address, op),
            Happening::RunnerReceives(process, connection, start) => {
                let gateway = &mut gateways[process.gateway];
                self.runners.receive(net, gateway, connection, start);
            }
            Happening::RunnerResumes(process, connection, after) => {
                self.runners.resume(net, process, connection, after);
            }
            Happening::Append(id, number) => self.runners.append(net, id, number),
            Happening::Pull(id) => net.db.pull(id),
            Happening::Heal => self.heal(),
            Happening::At(process, occurrence) => self.occur(process, order, occurrence),
        }
    }

    fn occur(&mut self, process: Process, order: u64, occurrence: Occurrence) {
        let (net, gateway) = (&mut self.net, &mut self.gateways[process.gateway]);
        if gateway.process != process || !gateway.is_up {
            return;
        }
        if net.now < gateway.paused_until {
            // Its threads do not run; the events wait in their order.
            let happening = Happening::At(process, occurrence);
            return net.postpone(gateway.paused_until, order, happening);
        }
        if let Occurrence::Answer(_, Ok(Answer::Ingested(answer))) = &occurrence {
            self.clients.ingested(net, answer);
        }
        gateway.on(net, occurrence);
    }

    // --- database ---

    fn arrive(&mut self, address: Address, op: Op) {
        let net = &mut self.net;
        let latency = net.now + net.random.between(1, 30);
        let draw = net.random.between(0, 99);
        let faults = &net.faults;
        let (failed, unknown) = (faults.failed, faults.failed + faults.unknown);
        let answer = if faults.is_away(net.now) || draw < failed {
            Err(StoreError::Unreachable)
        } else if draw < unknown {
            self.apply(&op);
            Err(StoreError::Unreachable)
        } else if draw < unknown + faults.late {
            // The connection breaks, and the transaction commits later.
            let nobody = Address {
                token: 0,
                ..address
            };
            net.within(1, 5_000, Happening::Arrive(nobody, op));
            Err(StoreError::Unreachable)
        } else {
            Ok(self.apply(&op))
        };
        if address.token != 0 {
            let answer = Occurrence::Answer(address.token, answer);
            let happening = Happening::At(address.process, answer);
            self.net.at(latency, happening);
        }
    }

    fn apply(&mut self, op: &Op) -> Answer {
        let net = &mut self.net;
        let answer = net.db.apply(op, net.now);
        // Two processes never hold one run, whatever their clocks show, unless one of them has lost its session lock.
        if let Op::TakeOver { owner, leases, .. } = op
            && !matches!(leases, LeaseFilter::Unlocked(_))
            && let Answer::Taken(taken) = &answer
        {
            let now = net.instant(net.now);
            for (run, _) in taken {
                let is_held = self.gateways.iter().any(|gateway| {
                    let live = gateway.live.get(run.id);
                    gateway.owner != *owner
                        && live.is_some_and(|live| live.is_held(now) && !live.is_ending())
                });
                // A released run has no task any more.
                if is_held && !net.db.rows[&run.id].was_released {
                    let text = format!("{} was taken over while its owner held the lease", run.id);
                    net.db.break_with(text);
                }
            }
        }
        answer
    }

    // --- processes ---

    fn kill(&mut self, gateway: usize) {
        let process = &mut self.gateways[gateway];
        if self.is_healed && !process.is_stopping {
            return;
        }
        if std::mem::replace(&mut process.is_up, false) {
            self.net.within(100, 4_000, Happening::Restart(gateway));
        }
    }

    fn restart(&mut self, gateway: usize) {
        let former = &mut self.gateways[gateway];
        if !former.is_up {
            let start = former.process.start + 1;
            let process = Process { gateway, start };
            *former = Gateway::start(&mut self.net, process, former.skew);
        }
    }

    fn heal(&mut self) {
        self.is_healed = true;
        self.net.faults = Faults::default();
        for gateway in &mut self.gateways {
            gateway.paused_until = self.net.now;
        }
    }
}

/// Draws an outage of the database and faults of gateways.
fn draw_faults(net: &mut Network, gateways: usize) {
    net.at(HEALED, Happening::Heal);
    if net.random.chance(20) {
        let begin = net.random.between(500, 8_000);
        net.faults.outage = (begin, begin + net.random.between(300, 3_900));
    }
    for _ in 0..net.random.between(0, 3) {
        let gateway = net.random.index(gateways);
        let at = net.random.between(200, 9_000);
        let happening = match net.random.between(0, 3) {
            0 | 1 => Happening::Pause(gateway, net.random.between(200, 5_500)),
            2 => Happening::Kill(gateway),
            _ => Happening::Stop(gateway),
        };
        net.at(at, happening);
    }
}
