//! 64 coding agents that share a budget of cost.

use protocol::budget::BudgetScope;

use super::*;
use crate::budget::{Budget, BudgetReached, BudgetWindow};

const AGENTS: usize = 64;
/// Tokens of an event.
const CHUNK: u64 = 40;
/// Millionths for a token.
const INPUT: u64 = 3;
const OUTPUT: u64 = 15;

struct SimulatedRng(u64);

impl SimulatedRng {
    /// Uniform below 1,000.
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % 1000
    }

    /// Completion of a coding agent: mostly a tool call, sometimes a file.
    fn completion(&mut self) -> u64 {
        let within = self.next();
        match self.next() {
            0..600 => 80 + within / 3,
            600..880 => 400 + within,
            880..980 => 1_400 + 3 * within,
            _ => 4_400 + 12 * within,
        }
    }
}

/// A stream under way.
struct SimulatedStream {
    reserved: u64,
    prompt_tokens: u64,
    prompt_cost: u64,
    produced: u64,
    completion: u64,
}

impl SimulatedStream {
    fn cost(&self) -> u64 {
        self.prompt_cost + self.produced * OUTPUT
    }
}

struct BudgetSimulation {
    budget: Budget,
    rng: SimulatedRng,
    recent: Vec<RecentCalls>,
    contexts: Vec<u64>,
    streams: Vec<Option<SimulatedStream>>,
    /// Settled use and reservations, as in the row of the budget.
    row: u64,
    settled: u64,
    cut: usize,
    used_at_refusal: Option<u64>,
}

fn cost_of(cost_micros: u64) -> Amount {
    Amount {
        cost_micros,
        ..Amount::default()
    }
}

impl BudgetSimulation {
    /// Runs until a call is refused and the streams under way have ended.
    fn run(limit: u64, seed: u64, reserve: fn(&RecentCalls, CallBound) -> u64) -> Self {
        let budget = Budget {
            name: "b".to_owned(),
            scope: BudgetScope::Workspace,
            only: None,
            window: BudgetWindow::Lifetime,
            calls: None,
            tokens: None,
            cost_micros: Some(limit),
            wall_ms: None,
            reached: BudgetReached::Refuse,
        };
        let mut simulation = Self {
            budget,
            rng: SimulatedRng(seed),
            recent: vec![RecentCalls::default(); AGENTS],
            contexts: vec![8_000; AGENTS],
            streams: (0..AGENTS).map(|_| None).collect(),
            row: 0,
            settled: 0,
            cut: 0,
            used_at_refusal: None,
        };
        while simulation.used_at_refusal.is_none() || simulation.streams.iter().any(Option::is_some)
        {
            for agent in 0..AGENTS {
                match simulation.streams[agent].take() {
                    Some(stream) => simulation.proceed(agent, stream),
                    None if simulation.used_at_refusal.is_none() => {
                        simulation.begin(agent, reserve);
                    }
                    None => {}
                }
            }
        }
        simulation
    }

    fn fits(&self, more: Amount) -> bool {
        self.budget.check(cost_of(self.row), more, None).is_ok()
    }

    fn begin(&mut self, agent: usize, reserve: fn(&RecentCalls, CallBound) -> u64) {
        let context = self.contexts[agent];
        let bound = CallBound {
            prompt_tokens: context,
            cached_cost_micros: context * INPUT / 10,
            max_completion_tokens: 32_000,
        };
        let reserved = reserve(&self.recent[agent], bound);
        if !self.fits(cost_of(reserved)) {
            let running: u64 = self
                .streams
                .iter()
                .flatten()
                .map(SimulatedStream::cost)
                .sum();
            self.used_at_refusal = Some(self.settled + running);
            return;
        }
        self.row += reserved;
        // The cache misses one of twenty prompts; otherwise 300 tokens are new.
        let prompt_cost = if self.rng.next() < 50 {
            context * INPUT
        } else {
            context * INPUT / 10 + 300 * INPUT
        };
        self.streams[agent] = Some(SimulatedStream {
            reserved,
            prompt_tokens: context,
            prompt_cost,
            produced: 0,
            completion: self.rng.completion(),
        });
    }

    fn proceed(&mut self, agent: usize, mut stream: SimulatedStream) {
        stream.produced = (stream.produced + CHUNK).min(stream.completion);
        let is_cut = !self.grow(&mut stream);
        if !is_cut && stream.produced < stream.completion {
            self.streams[agent] = Some(stream);
            return;
        }
        self.recent[agent].add(PastCall {
            prompt_tokens: stream.prompt_tokens,
            prompt_cost_micros: stream.prompt_cost,
            completion_tokens: stream.produced,
        });
        self.settled += stream.cost();
        self.row = self.row - stream.reserved + stream.cost();
        self.cut += usize::from(is_cut);
        let context = &mut self.contexts[agent];
        *context = (*context + stream.produced + 600) % 120_000 + 4_000;
    }

    /// False if the budget has nothing left.
    fn grow(&mut self, stream: &mut SimulatedStream) -> bool {
        for step in [1024, 128] {
            let (running, reserved) = (cost_of(stream.cost()), cost_of(stream.reserved));
            let Some(more) = growth(running, reserved, cost_of(step * OUTPUT)) else {
                return true;
            };
            if self.fits(more) {
                stream.reserved += more.cost_micros;
                self.row += more.cost_micros;
                return true;
            }
        }
        false
    }
}

fn expected(recent: &RecentCalls, bound: CallBound) -> u64 {
    let unknown = ExpectedCall {
        prompt_cost_micros: bound.prompt_tokens * INPUT,
        completion_tokens: 8_192,
    };
    let call = recent.expected(bound).unwrap_or(unknown);
    call.prompt_cost_micros + call.completion_tokens * OUTPUT
}

fn worst(_: &RecentCalls, bound: CallBound) -> u64 {
    bound.prompt_tokens * INPUT + bound.max_completion_tokens * OUTPUT
}

#[test]
fn parallel_agents_use_a_budget_and_exceed_it_little() {
    // $100.
    let limit = 100_000_000;
    for seed in (1..=20).map(|seed| seed * 7919) {
        let simulated = BudgetSimulation::run(limit, seed, expected);
        let (used, total) = (simulated.used_at_refusal.unwrap(), simulated.settled);
        assert!(used * 100 >= limit * 90, "{seed}: refused at {used}");
        assert!(total * 100 <= limit * 101, "{seed}: ended with {total}");
        // Upper bounds refuse much earlier, and cut nothing.
        let starved = BudgetSimulation::run(limit, seed, worst);
        let used = starved.used_at_refusal.unwrap();
        assert!(used * 100 < limit * 80, "{seed}: refused at {used}");
        assert_eq!(starved.cut, 0);
    }
}
